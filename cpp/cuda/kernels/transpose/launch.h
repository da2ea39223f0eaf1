// A matrix transposed, by a CUDA kernel of this project: how weights get from one order in memory
// into the other (cudnn/reordered.h). Depends on the CUDA runtime, not on XLA or cuDNN.
//
// Serves elements of 2, 4 and 8 bytes, whatever their type, and matrices of any size. A block takes
// squares of 32 by 32 elements, one after the other, through shared memory, so that both matrices
// are accessed along their rows. Bound: memory; for small weights the launch.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_TRANSPOSE_LAUNCH_H_
#define JAX_CONVGRAD_CUDA_KERNELS_TRANSPOSE_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace jax_convgrad {

// `to`, of `columns` by `rows` elements, becomes the transpose of `from`, of `rows` by `columns`.
// The two do not overlap, neither is empty, and an int64_t counts their elements. Launches and
// returns.
cudaError_t LaunchTranspose(const void* from, void* to, int64_t rows, int64_t columns,
                            int64_t element_bytes, cudaStream_t stream);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_TRANSPOSE_LAUNCH_H_
