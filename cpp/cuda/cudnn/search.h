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

#include "cuda/cudnn/plan.h"
#include "cuda/cudnn/scratch.h"
#include "ffi/error.h"

namespace jax_convgrad {

enum class SearchMode {
  kDefault,     // the fastest of the first few; the heuristics' order if to be deterministic
  kHeuristic,   // the heuristics' order
  kExhaustive,  // the fastest, timed once on memory of the search's own
};

const char* SearchModeName(SearchMode mode);
std::optional<SearchMode> SearchModeNamed(std::string_view name);

// What became of one engine during a search.
struct TriedEngine {
  std::string engine;
  int64_t workspace_bytes = -1;  // -1: not known
  double microseconds = -1;      // -1: not timed
  std::string failure;           // empty if it may be used
};

// A plan that may run inside a capture, and how it came to be chosen.
struct ChosenPlan {
  std::shared_ptr<const ConvPlan> plan;
  std::string problem;    // ConvProblem::ToString()
  std::string chosen_by;  // "default", "heuristic", "exhaustive" or "loaded"
  double microseconds = -1;
  std::string note;  // why it was not chosen as it should have been, empty if it was
  std::vector<TriedEngine> tried;
};

// An engine that is known for a problem without a search, and how it was chosen. Empty: none is.
struct KnownChoice {
  std::string engine, chosen_by;
  bool binding = false;  // a captured graph may hold it: no other may take its place
};

// Tries the known engine first, then, unless it is binding, what `mode` says. `buffers` are the
// call's own: the chosen plan is recorded into a graph with them, which loads its kernels, but
// nothing runs on them. What runs, to be timed or to see that it does, runs on `scratch`. Two
// searches at once would measure each other.
ffi::ErrorOr<ChosenPlan> SearchPlan(const ConvProblem& problem, SearchMode mode,
                                    const KnownChoice& known, const ConvBuffers& buffers,
                                    DeviceScratch* scratch);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CUDNN_SEARCH_H_
