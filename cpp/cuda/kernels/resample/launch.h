#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_LAUNCH_H_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "ffi/resample_form.h"

namespace jax_convgrad {

enum class ResampleType { kF16, kBF16, kF32, kF64 };

// Launches the kernel for a problem with bands: x, y and the tables are on the current device. Does
// nothing else, so it may be captured.
cudaError_t LaunchResample(const ResampleForm& form, ResampleType type, const void* x, void* y,
                           cudaStream_t stream);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_LAUNCH_H_
