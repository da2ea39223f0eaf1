// Operations of a warpgroup, four warps, on shared memory and the tensor cores: products of TF32
// matrices, asynchronous. Needs compute capability 9.0, and code for sm_90a.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_COMMON_TENSOR_CORE_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_COMMON_TENSOR_CORE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/tf32.cuh"

namespace jax_convgrad {

// Makes copied data visible to the tensor cores, after the block's next barrier.
__device__ inline void ShowTensorCores() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// Columns of a product of a warpgroup.
constexpr int kProductColumns = 128;
// Floats of a column of the second operand that lie together, and bytes that it is aligned to.
constexpr int kSwizzled = 32;
constexpr int kSwizzleBytes = 1024;

// Where element `k`, a multiple of 4, and the three after it of column `n` lie in shared memory.
__device__ inline int Swizzled(int n, int k) { return n * kSwizzled + ((k / 4 ^ n % 8) * 4); }

// Before the products that read registers written since the last ones.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }

// Commits the products begun since the last call as one group.
__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

// Waits until all but the last `kPending` groups are done.
template <int kPending>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// Begins sums += a b for the warpgroup, of TF32 numbers: a 64x8 matrix times an 8x128 one. A lane
// of the w-th warp holds of a: row 16 * w + lane / 4, column lane % 4; 8 rows below; 4 columns
// right; both. b's rows are `depth` to depth + 7 of what lies in shared memory as Swizzled says. Of
// the sums a lane has for each n: row 16 * w + lane / 4, columns 8 * n + 2 * (lane % 4) and the
// next; both 8 rows below.
__device__ inline void MultiplyAdd(const float (&a)[4], const float* b, int depth,
                                   float (&c)[kProductColumns / 2]) {
  // The address, 1024 bytes between groups of 8 columns, and the kind of swizzling.
  const uint64_t described =
      uint64_t{(SharedAddress(b) + static_cast<uint32_t>(4 * depth)) >> 4 & 0x3fff} |
      uint64_t{1} << 16 | uint64_t{kSwizzleBytes >> 4} << 32 | uint64_t{1} << 62;
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1;\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
        "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
        "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]),
        "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
        "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]),
        "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
        "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]),
        "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]),
        "+f"(c[63])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "l"(described));
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_TENSOR_CORE_CUH_
