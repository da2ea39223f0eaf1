// Plans for weights in another order than their engine reads. cuDNN's engines, and those of the
// project's kernels that say nothing else, read WeightsOrder::kOXI. For a problem whose weights lie
// as kXIO such an engine works on a copy of them, which lies at the start of the workspace: a
// kernel fills it before the engine runs, and for a weight gradient writes the result from it
// afterwards. A search times the whole.
//
// For a problem whose weights lie as kOXI nothing here changes anything.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_REORDERED_H_
#define JAX_CONVGRAD_CUDA_KERNELS_REORDERED_H_

#include <cstdint>
#include <memory>

#include "cuda/conv_plan.h"

namespace jax_convgrad {

// The problem that an engine is asked for: its weights lie as kOXI, and its workspace is what the
// copy leaves of the limit. That is nothing where the copy alone is beyond the limit, and then the
// plan, whose workspace_bytes() count the copy, is too.
ConvProblem WithWeightsAsOXI(const ConvProblem& problem);

// The workspace of an engine that asks for `workspace_bytes` of its own, the copy of the weights
// included. Unknown (-1) stays unknown.
int64_t WithWeightsCopy(const ConvProblem& problem, int64_t workspace_bytes);

// A plan for the problem, from a plan for WithWeightsAsOXI(problem).
std::shared_ptr<const ConvPlan> Reordered(const ConvProblem& problem,
                                          std::shared_ptr<const ConvPlan> plan);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_REORDERED_H_
