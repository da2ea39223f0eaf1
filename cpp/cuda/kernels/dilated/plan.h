// Gradients of dense dilated convolutions by CUDA kernels of this project, in TF32 on the tensor
// cores. Depends on the CUDA runtime, not on XLA or cuDNN.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_DILATED_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_DILATED_PLAN_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "cuda/kernels/dilated/work.h"

namespace jax_convgrad {

struct DilatedArrays {
  void* x;
  void* w;
  void* y;
  void* workspace;  // 256 bytes aligned
};

// The kernels of one problem, with all numbers that they need. Operands are rounded to TF32, sums
// are float32, in an order that depends only on the problem and the device's size: the same bits
// every time.
class DilatedPlan {
 public:
  virtual ~DilatedPlan() = default;

  // Null if the arrays' layout is not the one that the kernels read, a size is beyond what they can
  // count, or the workspace limit is too low.
  static std::unique_ptr<const DilatedPlan> Make(const DilatedProblem& problem);

  virtual int64_t workspace_bytes() const = 0;
  // Launches and returns; every element of the result is written.
  virtual cudaError_t Run(const DilatedArrays& arrays, cudaStream_t stream) const = 0;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_DILATED_PLAN_H_
