// Plans whose products the warpgroups of a Hopper device compute.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_PLAN_H_

#include <memory>
#include <vector>

#include "cuda/kernels/implicit_gemm/plan.h"

namespace jax_convgrad {

// For a problem that IsWarpgroupGemm: what is likely the fastest first.
std::vector<std::unique_ptr<const ImplicitGemmPlan>> WarpgroupGemmCandidates(
    const ImplicitGemmProblem& problem, GemmWanted wanted);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_PLAN_H_
