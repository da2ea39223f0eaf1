// Products of matrices of 16-bit elements by a warpgroup, four warps, with one operand or both in
// shared memory; asynchronous, as those of tensor_core.cuh, which has what begins, commits and
// awaits them. Needs compute capability 9.0, and code for sm_90a.

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

#define JAX_CONVGRAD_EIGHT_SUMS(i)                                                           \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), \
      "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define JAX_CONVGRAD_SUMS_OF_32 JAX_CONVGRAD_EIGHT_SUMS(0), JAX_CONVGRAD_EIGHT_SUMS(8)
#define JAX_CONVGRAD_SUMS_OF_64 \
  JAX_CONVGRAD_SUMS_OF_32, JAX_CONVGRAD_EIGHT_SUMS(16), JAX_CONVGRAD_EIGHT_SUMS(24)
#define JAX_CONVGRAD_SUMS_OF_128                                                     \
  JAX_CONVGRAD_SUMS_OF_64, JAX_CONVGRAD_EIGHT_SUMS(32), JAX_CONVGRAD_EIGHT_SUMS(40), \
      JAX_CONVGRAD_EIGHT_SUMS(48), JAX_CONVGRAD_EIGHT_SUMS(56)
#define JAX_CONVGRAD_PLACES_OF_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define JAX_CONVGRAD_PLACES_OF_64 \
  JAX_CONVGRAD_PLACES_OF_32       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define JAX_CONVGRAD_PLACES_OF_128                                                   \
  JAX_CONVGRAD_PLACES_OF_64                                                          \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define JAX_CONVGRAD_PRODUCT(columns, type, operands, added, ...)                    \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " added                       \
               ", 0;\n"                                                              \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type \
               " {" JAX_CONVGRAD_PLACES_OF_##columns "}, " operands ";\n}\n"         \
               : JAX_CONVGRAD_SUMS_OF_##columns                                      \
               : __VA_ARGS__)
#define JAX_CONVGRAD_PRODUCT_OF(columns, operands, added, ...)           \
  if constexpr (std::is_same_v<T, __half>) {                             \
    JAX_CONVGRAD_PRODUCT(columns, "f16", operands, added, __VA_ARGS__);  \
  } else {                                                               \
    JAX_CONVGRAD_PRODUCT(columns, "bf16", operands, added, __VA_ARGS__); \
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

#undef JAX_CONVGRAD_PRODUCT_OF
#undef JAX_CONVGRAD_PRODUCT
#undef JAX_CONVGRAD_PLACES_OF_128
#undef JAX_CONVGRAD_PLACES_OF_64
#undef JAX_CONVGRAD_PLACES_OF_32
#undef JAX_CONVGRAD_SUMS_OF_128
#undef JAX_CONVGRAD_SUMS_OF_64
#undef JAX_CONVGRAD_SUMS_OF_32
#undef JAX_CONVGRAD_EIGHT_SUMS

// After the products have been awaited, before their sums are read: the compiler does not see that
// these changed.
template <int kCount>
__device__ inline void ShowSums(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_WARPGROUP_PRODUCT_CUH_
