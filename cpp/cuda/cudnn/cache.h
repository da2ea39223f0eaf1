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

#include "cuda/conv_plan.h"
#include "cuda/cudnn/search.h"
#include "ffi/error.h"

namespace jax_convgrad {

// The part of a call that says how its engine is chosen, as it was when its program was lowered. A
// program keeps its engines: XLA captures its calls again when their arrays have moved, and the
// graph that it then updates must have the same kernels (the size of their clusters, for example,
// cannot change).
struct ChoiceRules {
  SearchMode mode;
  int64_t generation = 0;  // how often plans had been cleared

  bool operator==(const ChoiceRules& other) const {
    return mode == other.mode && generation == other.generation;
  }
};

// The key of a plan.
struct PlanKey {
  ConvProblem problem;
  ChoiceRules rules;

  bool operator==(const PlanKey& other) const {
    return rules == other.rules && problem == other.problem;
  }
};

// The plan of a problem, or null if there is none yet.
std::shared_ptr<const ChosenPlan> FindPlan(const PlanKey& key);

// The same, but makes the plan if there is none. Not while `stream` is being captured.
ffi::ErrorOr<std::shared_ptr<const ChosenPlan>> FindOrMakePlan(const PlanKey& key,
                                                               const ConvBuffers& buffers,
                                                               cudaStream_t stream);

// Every plan of the present generation, the most recently used first. Each has the text under which
// its choice can be saved: the problem, the device's name and cuDNN's version.
std::vector<std::pair<std::string, std::shared_ptr<const ChosenPlan>>> ListPlans();

// Engines to take for problems (texts as ListPlans gives them), whatever the search mode; added to
// those loaded before. Existing plans stay.
void LoadChoices(std::vector<std::pair<std::string, std::string>> choices);

std::vector<std::pair<std::string, std::string>> LoadedChoices();

// Forgets loaded choices, and all plans except those of the programs that were lowered before: a
// new generation begins.
void ClearPlans();
int64_t Generation();

// Sets how many plans are kept, at least 1. A plan that was evicted is made again, with the engine
// that it had, when its program next runs.
void SetMaxPlans(size_t max);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CUDNN_CACHE_H_
