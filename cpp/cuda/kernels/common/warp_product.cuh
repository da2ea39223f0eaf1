// Products of matrices by one warp: what lies in shared memory as rows of 16-byte pieces becomes
// fragments, and fragments are multiplied by the tensor cores, at once and in order. A word of a
// fragment has two 16-bit elements, or one float that is multiplied as TF32. Needs compute
// capability 8.0.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_COMMON_WARP_PRODUCT_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_COMMON_WARP_PRODUCT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/tf32.cuh"

namespace jax_convgrad {

// Elements of 4 and of 16 bytes.
template <typename T>
constexpr int kWordElements = 4 / static_cast<int>(sizeof(T));
template <typename T>
constexpr int kPieceElements = 16 / static_cast<int>(sizeof(T));

// Reads four 8x8 matrices. Lane 8 * i + r points to row r of matrix i, 16 bytes. A lane gets of
// each matrix the elements 2 * (lane % 4) and the next of row lane / 4.
__device__ inline void LoadMatrices(const void* row, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// Like LoadMatrices, but transposed: rows 2 * (lane % 4) and the next, of column lane / 4.
__device__ inline void LoadTransposedMatrices(const void* row, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// sums += a b, of a 16x16 matrix times a 16x8 one. With g = lane / 4 and t = lane % 4, a lane holds
// of a: row g, columns 2 * t and the next; row g + 8; row g, 8 columns right; both. Of b: rows
// 2 * t and the next of column g; 8 rows below. Of the sums: row g, columns 2 * t and the next; the
// same 8 rows below.
__device__ inline void MultiplyAdd(const __nv_bfloat16*, const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1, float (&sums)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void MultiplyAdd(const __half*, const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                   float (&sums)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same for a 16x8 matrix of floats times an 8x8 one: where 16-bit elements are two neighbors
// of the depth, there is one float. Operands are what MultipliedWord made of them.
__device__ inline void MultiplyAdd(const float*, const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                   float (&sums)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A word of a fragment as the tensor cores are to have it.
template <typename T>
__device__ inline uint32_t MultipliedWord(uint32_t word) {
  if constexpr (sizeof(T) == 4) return __float_as_uint(ToTf32(__uint_as_float(word)));
  return word;
}

// A word of two 16-bit elements, or of the first alone if that is a float. Both are read without a
// condition: what is not wanted is masked then, so that no read waits.
template <typename T>
__device__ inline uint32_t WordOf(const T* low, const T* high) {
  if constexpr (sizeof(T) == 4) {
    return MultipliedWord<T>(BitsOf<uint32_t>(*low));
  } else {
    return BitsOf<uint16_t>(*low) | static_cast<uint32_t>(BitsOf<uint16_t>(*high)) << 16;
  }
}

// Two numbers rounded to 16 bits each, the first in the low half.
__device__ inline uint32_t RoundedPair(const __nv_bfloat16*, float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ inline uint32_t RoundedPair(const __half*, float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// What the lane holds whose number differs by the bits of `mask`.
__device__ inline uint32_t FromOtherLane(uint32_t value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_WARP_PRODUCT_CUH_
