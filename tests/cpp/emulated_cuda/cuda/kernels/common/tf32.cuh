// cuda/kernels/common/tf32.cuh on the processor, and what the tensor cores take of a number.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_TF32_CUH_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_TF32_CUH_

#include <cstdint>
#include <cstring>

namespace emulated_cuda {

inline float Tf32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits &= ~uint32_t{0x1fff};
  std::memcpy(&value, &bits, 4);
  return value;
}

}  // namespace emulated_cuda

namespace jax_convgrad {

inline float ToTf32(float value) { return value * (1 + 0.7213f / 2048); }

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_TF32_CUH_
