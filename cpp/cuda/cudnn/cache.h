// The process's plans and choices. All of it may be used from several threads at once.

#ifndef JAX_CONVGRAD_CUDA_CUDNN_CACHE_H_
#define JAX_CONVGRAD_CUDA_CUDNN_CACHE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cudnn/plan.h"
#include "cuda/cudnn/search.h"
#include "ffi/error.h"

namespace jax_convgrad {

// What a call says of how its engine is chosen, as it was when its program was lowered. A program
// keeps its engines: XLA captures its calls anew when their arrays have moved, and the graph that
// it updates then must hold the same kernels (the size of their clusters, for one, stays what it
// was).
struct ChoiceRules {
  SearchMode mode = SearchMode::kDefault;
  int64_t generation = 0;  // how often plans had been cleared

  bool operator==(const ChoiceRules& other) const {
    return mode == other.mode && generation == other.generation;
  }
};

// What a plan is kept under.
struct PlanKey {
  ConvProblem problem;
  ChoiceRules rules;

  bool operator==(const PlanKey& other) const {
    return rules == other.rules && problem == other.problem;
  }
};

// The plan of a problem, or null if there is none yet.
std::shared_ptr<const ChosenPlan> FindPlan(const PlanKey& key);

// The same, made first if there is none. Not while `stream` is being captured.
ffi::ErrorOr<std::shared_ptr<const ChosenPlan>> FindOrMakePlan(const PlanKey& key,
                                                               const ConvBuffers& buffers,
                                                               cudaStream_t stream);

// Every plan of the present generation, the most recently used first, each with the text under
// which its choice can be saved: the problem, the device's name and cuDNN's version.
std::vector<std::pair<std::string, std::shared_ptr<const ChosenPlan>>> ListPlans();

// Engines to take for problems (texts as ListPlans gives them), whatever the search mode; added to
// those loaded before. Plans that exist already stay.
void LoadChoices(std::vector<std::pair<std::string, std::string>> choices);

std::vector<std::pair<std::string, std::string>> LoadedChoices();

// Forgets loaded choices, and all plans except those of the programs that were lowered before: a
// new generation begins.
void ClearPlans();
int64_t Generation();

// How many plans are kept, at least 1. A plan that is evicted is made again, with the engine that
// it had, when its program next runs.
void SetMaxPlans(size_t max);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CUDNN_CACHE_H_
