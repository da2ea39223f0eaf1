// The process's plans and choices, and the settings that decide them. All of it may be used from
// several threads at once.

#ifndef JAX_CONVGRAD_CUDA_PLAN_CACHE_H_
#define JAX_CONVGRAD_CUDA_PLAN_CACHE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "cuda/conv_plan.h"
#include "cuda/plan_search.h"

namespace jax_convgrad {

// Settings. They decide for plans that are made afterwards.
void SetSearchMode(SearchMode mode);
SearchMode GetSearchMode();
void SetWorkspaceLimit(int64_t bytes);  // negative: none but the size of what the call was given
int64_t GetWorkspaceLimit();
void SetDeterministic(bool deterministic);
bool GetDeterministic();

// The plan of a problem, or null if there is none yet.
std::shared_ptr<const ChosenPlan> FindPlan(const ConvProblem& problem);

// The same, made first if there is none. Not while `stream` is being captured.
ffi::ErrorOr<std::shared_ptr<const ChosenPlan>> FindOrMakePlan(const ConvProblem& problem,
                                                               const ConvBuffers& buffers,
                                                               cudaStream_t stream);

// Every plan in use, the most recently used first, each with the text under which its choice can be
// remembered: the problem, the device's name and cuDNN's version.
std::vector<std::pair<std::string, std::shared_ptr<const ChosenPlan>>> ListPlans();

// Engines to take for problems (texts as ListPlans gives them), whatever the search mode; added to
// those remembered before. Plans that exist already stay.
void RememberChoices(std::vector<std::pair<std::string, std::string>> choices);

std::vector<std::pair<std::string, std::string>> RememberedChoices();

// Forgets all plans and remembered choices.
void ClearPlans();

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_PLAN_CACHE_H_
