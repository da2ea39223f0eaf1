// What a warp does with shared memory and its tensor core: copies in the background, fragments and
// products of TF32 matrices. Needs compute capability 8.0.

#ifndef JAX_CONVGRAD_CUDA_TENSOR_CORE_CUH_
#define JAX_CONVGRAD_CUDA_TENSOR_CORE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace jax_convgrad {

__device__ inline uint32_t SharedAddress(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Begins to copy 16 bytes into shared memory, or zeros where `inside` is false.
__device__ inline void CopyAsync(float* to, const float* from, bool inside) {
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(SharedAddress(to)),
               "l"(from), "r"(bytes)
               : "memory");
}

// What was begun since the last call becomes one group.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until all but the last `kPending` groups of this thread have arrived.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// What the tensor core, which leaves out the last 13 bits, takes for the nearest TF32 number. There
// is no instruction for it on a Hopper device, and what replaces it takes two: this takes one. A
// TF32 number stays what it is, since less than the value of the last bit that counts is added to
// it; others are rounded up from 0.64 of that value on if the significand is near 1, and from 0.28
// on if near 2, such that the errors cancel on average. Infinities and NaNs stay what they are.
__device__ inline float ToTf32(float value) {
  constexpr float kHalf = 1.0f / 2048;
  return __fmul_rn(value, 1 + 0.7213f * kHalf);
}

// sums[n] += a b[n] for the warp, of TF32 numbers: a 16x8 matrix times 8x8 ones, from the last if
// `backwards`. A lane holds of a: row lane / 4, column lane % 4; 8 rows below; 4 columns right;
// both. Of b: row lane % 4, column lane / 4; 4 rows below. Of the sums: row lane / 4, columns
// 2 * (lane % 4) and the next; both 8 rows below.
template <int N>
__device__ inline void MultiplyAdd(const float (&a)[4], const float (&b)[N][2], bool backwards,
                                   float (&sums)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int n = backwards ? N - 1 - i : i;
    float(&c)[4] = sums[n];
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[n][0])),
          "r"(__float_as_uint(b[n][1])));
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_TENSOR_CORE_CUH_
