// Products of matrices of 16-bit elements, and of floats as TF32 where both operands are swizzled,
// by a warpgroup, four warps, with one operand or both in shared memory; asynchronous, as those of
// tensor_core.cuh, which has what begins, commits and awaits them. Needs compute capability 9.0,
// and code for sm_90a.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_COMMON_WARPGROUP_PRODUCT_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_COMMON_WARPGROUP_PRODUCT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/tensor_core.cuh"

namespace jax_convgrad {

// How an operand lies in shared memory: in panels of lines of 128 bytes, 64 elements, that begin at
// multiples of 1024 bytes. The 16-byte piece i of line j is at place i ^ j % 8 of it.
enum class Lines {
  kAlongDepth,   // a line is a row of a, or a column of b, and holds 64 of the depth
  kAcrossDepth,  // a line is one of the depth, and holds 64 rows of a, or columns of b
};

// One operand as the tensor cores want it described, from a depth on that is a multiple of 16.
template <Lines kLines>
class WarpgroupOperand {
 public:
  // `first` is where the first line begins that is read: of lines along the depth a multiple of 8
  // lines from the panel's begin. Of lines across it, every 64 further rows or columns are in
  // another panel, `panel_bytes` behind the last.
  __device__ WarpgroupOperand(const void* first, uint32_t panel_bytes)
      : described_(uint64_t{SharedAddress(first) >> 4 & 0x3fff} |
                   uint64_t{kLines == Lines::kAlongDepth ? 1 : panel_bytes >> 4} << 16 |
                   uint64_t{kSwizzleBytes >> 4} << 32 | uint64_t{1} << 62) {}

  __device__ uint64_t AtDepth(int depth) const {
    const int bytes = depth * (kLines == Lines::kAlongDepth ? 2 : 128);
    return described_ + static_cast<uint64_t>(bytes >> 4);
  }

 private:
  uint64_t described_;
};

// A column operand of 16 of the depth, in shared memory: a line of 32 bytes for each column, at a
// multiple of 256 bytes. The 16-byte piece i of line j is at place i ^ j / 4 % 2 of it.
class WarpgroupColumns {
 public:
  __device__ explicit WarpgroupColumns(const void* first)
      : described_(SharedAddress(first) >> 4 & 0x3fff) {}

  __device__ uint64_t described() const {
    return uint64_t{described_} | uint64_t{1} << 16 | uint64_t{256 >> 4} << 32 | uint64_t{3} << 62;
  }

 private:
  uint32_t described_;
};

// An operand in shared memory whose lines have 32, 64 or 128 bytes, swizzled by their addresses as
// a tensor map of such lines does it (tensor_map.h).
//
// Of lines along the depth, a line is a row of a, or a column of b, and has 16, 32 or 64 of the
// depth, or half as many floats. 8 lines follow each other without gaps; the next 8 are
// `group_bytes` behind the first.
//
// Of lines across the depth, a line is one of the depth, and has 16, 32 or 64 rows of a, or columns
// of b. 8 lines follow each other; the next 8 of the depth are `group_bytes` behind the first. As
// many further rows or columns as a line has are `next_bytes` behind the first ones; they may lie
// over them, a few lines further.
//
// It may begin at any line. All distances are multiples of 16, and not negative.
template <Lines kLines_, int kLineBytes>
class SwizzledOperand {
 public:
  static constexpr bool kAcross = kLines_ == Lines::kAcrossDepth;
  static_assert(kLineBytes == 32 || kLineBytes == 64 || kLineBytes == 128, "as there are swizzles");

  __device__ SwizzledOperand(const void* first, int group_bytes, int next_bytes = 16)
      : low_((SharedAddress(first) >> 4 & 0x3fff) | static_cast<uint32_t>(next_bytes) >> 4 << 16),
        high_(static_cast<uint32_t>(group_bytes) >> 4 | kSwizzle << 30) {}

  // The operand that begins `bytes` further, a multiple of the line; or, of lines along the depth,
  // of 32, for the next 16 of it, or 8 floats. Less than 0 goes back.
  __device__ SwizzledOperand At(int bytes) const {
    SwizzledOperand moved = *this;
    moved.low_ += static_cast<uint32_t>(bytes >> 4);
    return moved;
  }

  __device__ uint64_t described() const { return uint64_t{high_} << 32 | low_; }

 private:
  static constexpr uint32_t kSwizzle = kLineBytes == 128 ? 1 : kLineBytes == 64 ? 2 : 3;

  uint32_t low_, high_;
};

#define JAX_CONVGRAD_EIGHT_SUMS(i)                                                           \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), \
      "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define JAX_CONVGRAD_SUMS_OF_16 JAX_CONVGRAD_EIGHT_SUMS(0)
#define JAX_CONVGRAD_SUMS_OF_32 JAX_CONVGRAD_SUMS_OF_16, JAX_CONVGRAD_EIGHT_SUMS(8)
#define JAX_CONVGRAD_SUMS_OF_48 JAX_CONVGRAD_SUMS_OF_32, JAX_CONVGRAD_EIGHT_SUMS(16)
#define JAX_CONVGRAD_SUMS_OF_64 JAX_CONVGRAD_SUMS_OF_48, JAX_CONVGRAD_EIGHT_SUMS(24)
#define JAX_CONVGRAD_SUMS_OF_80 JAX_CONVGRAD_SUMS_OF_64, JAX_CONVGRAD_EIGHT_SUMS(32)
#define JAX_CONVGRAD_SUMS_OF_96 JAX_CONVGRAD_SUMS_OF_80, JAX_CONVGRAD_EIGHT_SUMS(40)
#define JAX_CONVGRAD_SUMS_OF_112 JAX_CONVGRAD_SUMS_OF_96, JAX_CONVGRAD_EIGHT_SUMS(48)
#define JAX_CONVGRAD_SUMS_OF_128 JAX_CONVGRAD_SUMS_OF_112, JAX_CONVGRAD_EIGHT_SUMS(56)
#define JAX_CONVGRAD_SUMS_OF_160 \
  JAX_CONVGRAD_SUMS_OF_128, JAX_CONVGRAD_EIGHT_SUMS(64), JAX_CONVGRAD_EIGHT_SUMS(72)
#define JAX_CONVGRAD_SUMS_OF_192 \
  JAX_CONVGRAD_SUMS_OF_160, JAX_CONVGRAD_EIGHT_SUMS(80), JAX_CONVGRAD_EIGHT_SUMS(88)
#define JAX_CONVGRAD_SUMS_OF_224 \
  JAX_CONVGRAD_SUMS_OF_192, JAX_CONVGRAD_EIGHT_SUMS(96), JAX_CONVGRAD_EIGHT_SUMS(104)
#define JAX_CONVGRAD_SUMS_OF_256 \
  JAX_CONVGRAD_SUMS_OF_224, JAX_CONVGRAD_EIGHT_SUMS(112), JAX_CONVGRAD_EIGHT_SUMS(120)
#define JAX_CONVGRAD_PLACES_OF_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define JAX_CONVGRAD_PLACES_OF_32 \
  JAX_CONVGRAD_PLACES_OF_16       \
  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define JAX_CONVGRAD_PLACES_OF_48 \
  JAX_CONVGRAD_PLACES_OF_32       \
  ", %16, %17, %18, %19, %20, %21, %22, %23"
#define JAX_CONVGRAD_PLACES_OF_64 \
  JAX_CONVGRAD_PLACES_OF_48       \
  ", %24, %25, %26, %27, %28, %29, %30, %31"
#define JAX_CONVGRAD_PLACES_OF_80 \
  JAX_CONVGRAD_PLACES_OF_64       \
  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define JAX_CONVGRAD_PLACES_OF_96 \
  JAX_CONVGRAD_PLACES_OF_80       \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define JAX_CONVGRAD_PLACES_OF_112 \
  JAX_CONVGRAD_PLACES_OF_96        \
  ", %48, %49, %50, %51, %52, %53, %54, %55"
#define JAX_CONVGRAD_PLACES_OF_128 \
  JAX_CONVGRAD_PLACES_OF_112       \
  ", %56, %57, %58, %59, %60, %61, %62, %63"
#define JAX_CONVGRAD_PLACES_OF_160 \
  JAX_CONVGRAD_PLACES_OF_128       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define JAX_CONVGRAD_PLACES_OF_192 \
  JAX_CONVGRAD_PLACES_OF_160       \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define JAX_CONVGRAD_PLACES_OF_224 \
  JAX_CONVGRAD_PLACES_OF_192       \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define JAX_CONVGRAD_PLACES_OF_256                                                               \
  JAX_CONVGRAD_PLACES_OF_224                                                                     \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define JAX_CONVGRAD_PRODUCT(columns, depth_and_types, operands, added, ...) \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " added               \
               ", 0;\n"                                                      \
               "wgmma.mma_async.sync.aligned.m64n" #columns depth_and_types  \
               " {" JAX_CONVGRAD_PLACES_OF_##columns "}, " operands ";\n}\n" \
               : JAX_CONVGRAD_SUMS_OF_##columns                              \
               : __VA_ARGS__)
#define JAX_CONVGRAD_PRODUCT_OF(columns, operands, added, ...)                        \
  if constexpr (std::is_same_v<T, __half>) {                                          \
    JAX_CONVGRAD_PRODUCT(columns, "k16.f32.f16.f16", operands, added, __VA_ARGS__);   \
  } else {                                                                            \
    JAX_CONVGRAD_PRODUCT(columns, "k16.f32.bf16.bf16", operands, added, __VA_ARGS__); \
  }

// Begins sums += a b for the warpgroup, of a 64x16 matrix times a 16 x kColumns one, 16 of the
// depth from `depth` on. A lane of the w-th warp has of the sums for each n: row 16 * w + lane / 4,
// columns 8 * n + 2 * (lane % 4) and the next; both 8 rows below.
template <int kColumns, typename T, Lines kA, Lines kB>
__device__ inline void MultiplyAdd(const T*, const WarpgroupOperand<kA>& a,
                                   const WarpgroupOperand<kB>& b, int depth, float* sums) {
  static_assert(kColumns == 128 || kColumns == 64, "as there are instructions for here");
  if constexpr (kColumns == 128) {
    JAX_CONVGRAD_PRODUCT_OF(128, "%64, %65, adds, 1, 1, %66, %67", "1", "l"(a.AtDepth(depth)),
                            "l"(b.AtDepth(depth)), "n"(kA == Lines::kAcrossDepth),
                            "n"(kB == Lines::kAcrossDepth))
  } else {
    JAX_CONVGRAD_PRODUCT_OF(64, "%32, %33, adds, 1, 1, %34, %35", "1", "l"(a.AtDepth(depth)),
                            "l"(b.AtDepth(depth)), "n"(kA == Lines::kAcrossDepth),
                            "n"(kB == Lines::kAcrossDepth))
  }
}

// Begins sums = a b, or sums += a b if `adds`, where `a` is in registers: of each warp 16 rows, as
// warp_product.cuh has them. They may be written again when the product is done.
template <int kColumns, typename T>
__device__ inline void MultiplyAdd(const T*, const uint32_t (&a)[4], const WarpgroupColumns& b,
                                   bool adds, float* sums) {
  static_assert(kColumns == 64 || kColumns == 32, "as there are instructions for here");
  if constexpr (kColumns == 64) {
    JAX_CONVGRAD_PRODUCT_OF(64, "{%32, %33, %34, %35}, %36, adds, 1, 1, 0", "%37", "r"(a[0]),
                            "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.described()),
                            "r"(static_cast<int>(adds)))
  } else {
    JAX_CONVGRAD_PRODUCT_OF(32, "{%16, %17, %18, %19}, %20, adds, 1, 1, 0", "%21", "r"(a[0]),
                            "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.described()),
                            "r"(static_cast<int>(adds)))
  }
}

// The numbers are those of the operands, the sums being the first.
// Floats cannot be transposed, and the instruction does not ask.
#define JAX_CONVGRAD_SWIZZLED_PRODUCT(columns, a_at, b_at, a_across, b_across, adds_at)            \
  if constexpr (kColumns == columns && std::is_same_v<T, float>) {                                 \
    JAX_CONVGRAD_PRODUCT(columns, "k8.f32.tf32.tf32", "%" #a_at ", %" #b_at ", adds, 1, 1",        \
                         "%" #adds_at, "l"(a.described()), "l"(b.described()), "n"(0), "n"(0),     \
                         "r"(static_cast<int>(adds)));                                             \
  } else if constexpr (kColumns == columns) {                                                      \
    JAX_CONVGRAD_PRODUCT_OF(columns,                                                               \
                            "%" #a_at ", %" #b_at ", adds, 1, 1, %" #a_across ", %" #b_across,     \
                            "%" #adds_at, "l"(a.described()), "l"(b.described()), "n"(A::kAcross), \
                            "n"(B::kAcross), "r"(static_cast<int>(adds)))                          \
  }

// Begins sums = a b, or sums += a b if `adds`, of SwizzledOperands: a 64x16 matrix times a 16 x
// kColumns one; or, of floats, a 64x8 matrix times an 8 x kColumns one, of which the last 13 bits
// are left out. Lines of floats are along the depth.
template <int kColumns, typename T, typename A, typename B>
__device__ inline void MultiplySwizzled(const T*, const A& a, const B& b, bool adds, float* sums) {
  static_assert((kColumns % 16 == 0 && kColumns <= 128) || (kColumns % 32 == 0 && kColumns <= 256),
                "as there are instructions for here");
  static_assert(sizeof(T) == 2 || !(A::kAcross || B::kAcross), "as there are instructions");
  JAX_CONVGRAD_SWIZZLED_PRODUCT(16, 8, 9, 10, 11, 12)
  JAX_CONVGRAD_SWIZZLED_PRODUCT(32, 16, 17, 18, 19, 20)
  JAX_CONVGRAD_SWIZZLED_PRODUCT(48, 24, 25, 26, 27, 28)
  JAX_CONVGRAD_SWIZZLED_PRODUCT(64, 32, 33, 34, 35, 36)
  JAX_CONVGRAD_SWIZZLED_PRODUCT(80, 40, 41, 42, 43, 44)
  JAX_CONVGRAD_SWIZZLED_PRODUCT(96, 48, 49, 50, 51, 52)
  JAX_CONVGRAD_SWIZZLED_PRODUCT(112, 56, 57, 58, 59, 60)
  JAX_CONVGRAD_SWIZZLED_PRODUCT(128, 64, 65, 66, 67, 68)
  JAX_CONVGRAD_SWIZZLED_PRODUCT(160, 80, 81, 82, 83, 84)
  JAX_CONVGRAD_SWIZZLED_PRODUCT(192, 96, 97, 98, 99, 100)
  JAX_CONVGRAD_SWIZZLED_PRODUCT(224, 112, 113, 114, 115, 116)
  JAX_CONVGRAD_SWIZZLED_PRODUCT(256, 128, 129, 130, 131, 132)
}

#undef JAX_CONVGRAD_SWIZZLED_PRODUCT
#undef JAX_CONVGRAD_PRODUCT_OF
#undef JAX_CONVGRAD_PRODUCT
#undef JAX_CONVGRAD_PLACES_OF_256
#undef JAX_CONVGRAD_PLACES_OF_224
#undef JAX_CONVGRAD_PLACES_OF_192
#undef JAX_CONVGRAD_PLACES_OF_160
#undef JAX_CONVGRAD_PLACES_OF_128
#undef JAX_CONVGRAD_PLACES_OF_112
#undef JAX_CONVGRAD_PLACES_OF_96
#undef JAX_CONVGRAD_PLACES_OF_80
#undef JAX_CONVGRAD_PLACES_OF_64
#undef JAX_CONVGRAD_PLACES_OF_48
#undef JAX_CONVGRAD_PLACES_OF_32
#undef JAX_CONVGRAD_PLACES_OF_16
#undef JAX_CONVGRAD_SUMS_OF_256
#undef JAX_CONVGRAD_SUMS_OF_224
#undef JAX_CONVGRAD_SUMS_OF_192
#undef JAX_CONVGRAD_SUMS_OF_160
#undef JAX_CONVGRAD_SUMS_OF_128
#undef JAX_CONVGRAD_SUMS_OF_112
#undef JAX_CONVGRAD_SUMS_OF_96
#undef JAX_CONVGRAD_SUMS_OF_80
#undef JAX_CONVGRAD_SUMS_OF_64
#undef JAX_CONVGRAD_SUMS_OF_48
#undef JAX_CONVGRAD_SUMS_OF_32
#undef JAX_CONVGRAD_SUMS_OF_16
#undef JAX_CONVGRAD_EIGHT_SUMS

// The warpgroup's number, as one that the compiler sees to be the same for all threads of a warp.
// Operands that are described by it then need no instruction for each product.
__device__ inline int WarpgroupNumber() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
}

// The warp's number, likewise. Of a kernel in which threads of a warp may go different ways, the
// compiler would have products awaited one by one.
__device__ inline int WarpNumber() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
}

// Writes four 8x8 matrices of 16-bit elements. Lane 8 * i + r points to row r of matrix i, 16
// bytes. A lane has of each matrix the elements 2 * (lane % 4) and the next of row lane / 4.
__device__ inline void StoreMatrices(void* row, const uint32_t (&matrices)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(
                   SharedAddress(row)),
               "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
               : "memory");
}

// After the products have been awaited, before their sums are read: the compiler does not see that
// these changed.
template <int kCount>
__device__ inline void ShowSums(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_WARPGROUP_PRODUCT_CUH_
