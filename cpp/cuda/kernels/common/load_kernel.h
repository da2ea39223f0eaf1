// Kernels are made ready when their plans are made, and not when they are first launched.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_COMMON_LOAD_KERNEL_H_
#define JAX_CONVGRAD_CUDA_KERNELS_COMMON_LOAD_KERNEL_H_

#include <cuda_runtime_api.h>

namespace jax_convgrad {

// Loads a kernel onto the current device. CUDA would do it at the first launch, and that may be
// while some thread captures a stream. Of a kernel whose attributes are set it is not needed.
template <typename Params>
cudaError_t LoadKernel(void (*kernel)(Params)) {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
  if (status != cudaSuccess) (void)cudaGetLastError();
  return status;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_LOAD_KERNEL_H_
