// The engines that cuDNN offers although they compute wrong numbers.

#ifndef JAX_CONVGRAD_CUDA_CUDNN_ERRATA_H_
#define JAX_CONVGRAD_CUDA_CUDNN_ERRATA_H_

#include <string>

#include "cuda/cudnn/plan.h"

namespace jax_convgrad {

// Whether the engine of that name, "eng3_k2=1_k3=0", must not be used for the problem.
bool ComputesWrongNumbers(const ConvProblem& problem, const std::string& engine);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CUDNN_ERRATA_H_
