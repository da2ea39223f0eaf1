// Chooses an engine for a problem, builds its plan and makes it ready for capture.

#ifndef JAX_CONVGRAD_CUDA_CUDNN_SEARCH_H_
#define JAX_CONVGRAD_CUDA_CUDNN_SEARCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/conv_plan.h"
#include "cuda/cudnn/scratch.h"
#include "cuda/kernels/plan.h"
#include "ffi/error.h"

namespace jax_convgrad {

enum class SearchMode {
  kDefault,     // the fastest of the first few; the first that works if deterministic
  kHeuristic,   // the first that works, in the heuristics' order
  kExhaustive,  // the fastest, timed once on the search's own memory
};

const char* SearchModeName(SearchMode mode);

std::optional<SearchMode> SearchModeNamed(std::string_view name);

// The outcome for one engine in a search.
struct TriedEngine {
  std::string engine;
  int64_t workspace_bytes = -1;  // -1: unknown
  double microseconds = -1;      // -1: not timed
  std::string failure;           // empty if it may be used
};

// A plan that may run inside a capture, and how it was chosen.
struct ChosenPlan {
  std::shared_ptr<const ConvPlan> plan;
  std::string problem;    // ConvProblem::ToString()
  std::string chosen_by;  // "default", "heuristic", "exhaustive" or "loaded"
  double microseconds = -1;
  std::string note;  // why it was not chosen as asked for, empty if it was
  std::vector<TriedEngine> tried;
};

// An engine that is known for a problem without a search, and how it was chosen. May be empty.
struct KnownChoice {
  std::string engine, chosen_by;
  bool binding = false;  // a captured graph may hold it: no other engine may take its place
};

// Tries the known engine first; then, unless it is binding, searches by `mode`. `buffers` are the
// call's own: the chosen plan is recorded into a graph with them, which loads its kernels, but
// nothing runs on them. Engines that run, to be timed or to see whether they work, run on
// `scratch`. Two searches at once would disturb each other's timings.
ffi::ErrorOr<ChosenPlan> SearchPlan(const ConvProblem& problem, SearchMode mode,
                                    const KnownChoice& known, const ConvBuffers& buffers,
                                    DeviceScratch* scratch);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CUDNN_SEARCH_H_
