// wgrad by warps: the products of a tile's positions, whose pixels lie in shared memory.
//
// The depth is the positions. They are the same for both operands, so that their order does not
// matter. Pixels are rows of channels, which ldmatrix transposes if these have 16 bits; then rows
// of a product are output channels, and its columns input channels. Of floats, which are rounded
// already, it is the other way round: a lane has two neighboring input channels of a position in
// one read, and they are where the product wants them. Pixels are as far apart that all lanes then
// read other banks.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_PRODUCTS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_PRODUCTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/implicit_gemm/warp/wgrad_params.h"

namespace jax_convgrad {

// The sums of a lane: unit, fragment of output channels, product, and what MultiplyAdd has.
template <int kFragments, int kUnits>
using WarpWgradSums = float[kUnits][kFragments][2][4];

// The place among a chunk's offsets of a position's one: those that a lane of floats reads, 2 * t
// and the next of 8 and of the other 8, follow each other.
template <typename T>
__device__ inline int WarpWgradOffsetPlace(int position) {
  if constexpr (sizeof(T) == 2) return position;
  const int of_eight = position % 8;
  return position / kWarpWgradChunk * kWarpWgradChunk + of_eight / 2 * 4 + position / 8 % 2 * 2 +
         of_eight % 2;
}

// What a lane adds to the address of a pixel of x, and to that of a chunk's first pixel of y.
template <typename T>
__device__ inline int WarpWgradLaneOfX(int lane) {
  return sizeof(T) == 2 ? lane / 16 * 16 : lane / 4 * 8;
}
template <typename T>
__device__ inline int WarpWgradLaneOfY(int lane, int pixel_bytes) {
  if constexpr (sizeof(T) == 2) {
    return (lane / 16 * 8 + lane % 8) * pixel_bytes + lane / 8 % 2 * 16;
  }
  return lane % 4 * 2 * pixel_bytes + lane / 4 * 4;
}

// The output channel, of a fragment's, and the input channel, of a unit's, that one of a lane's 4
// sums of a product belongs to.
template <typename T>
__device__ inline int WarpWgradOutputOf(int lane, int product, int of_four) {
  if constexpr (sizeof(T) == 2) return of_four / 2 * 8 + lane / 4;
  return product * 8 + lane % 4 * 2 + of_four % 2;
}
template <typename T>
__device__ inline int WarpWgradInputOf(int lane, int product, int of_four) {
  if constexpr (sizeof(T) == 2) return product * 8 + lane % 4 * 2 + of_four % 2;
  return lane / 4 * 2 + of_four / 2;
}

// A chunk's products of 16-bit elements with the first `kCount` units. `y` is the lane's first
// pixel; `x` the begin of its pixels, each `at` bytes further, and of each unit its operand's byte.
template <typename T, int kCount, int kFragments, int kUnits>
__device__ inline void MultiplyWarpWgradHalves(const unsigned char* y, const unsigned char* x,
                                               const int* offsets, int lane,
                                               const int (&at)[kCount],
                                               WarpWgradSums<kFragments, kUnits>& sums) {
  const T* const type = nullptr;
  const unsigned char* const pixel = x + offsets[lane % 16];
  uint32_t a[kFragments][4], b[2][4];
#pragma unroll
  for (int m = 0; m < kFragments; ++m) LoadTransposedMatrices(y + m * 32, a[m]);
  LoadTransposedMatrices(pixel + at[0], b[0]);
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    if (u + 1 < kCount) LoadTransposedMatrices(pixel + at[(u + 1) % kCount], b[(u + 1) % 2]);
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        MultiplyAdd(type, a[m], b[u % 2][2 * n], b[u % 2][2 * n + 1], sums[u][m][n]);
      }
    }
  }
}

// The same of floats.
template <int kCount, int kFragments, int kUnits>
__device__ inline void MultiplyWarpWgradFloats(const unsigned char* y, int y_pixel_bytes,
                                               const unsigned char* x, const int* offsets, int lane,
                                               const int (&at)[kCount],
                                               WarpWgradSums<kFragments, kUnits>& sums) {
  const float* const type = nullptr;
  const int4 four = *reinterpret_cast<const int4*>(offsets + lane % 4 * 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const unsigned char* const pixels[] = {x + (half == 0 ? four.x : four.z),
                                           x + (half == 0 ? four.y : four.w)};
    uint32_t a[2][4], b[kFragments * 2][2];
    const auto load = [&](int u, uint32_t (&words)[4]) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint2 two = *reinterpret_cast<const uint2*>(pixels[i] + at[u]);
        words[2 * i] = two.x;
        words[2 * i + 1] = two.y;
      }
    };
    load(0, a[0]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n < kFragments * 2; ++n) {
        b[n][i] = *reinterpret_cast<const uint32_t*>(y + (half * 8 + i) * y_pixel_bytes + n * 32);
      }
    }
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      if (u + 1 < kCount) load((u + 1) % kCount, a[(u + 1) % 2]);
#pragma unroll
      for (int n = 0; n < kFragments * 2; ++n) {
        MultiplyAdd(type, a[u % 2], b[n][0], b[n][1], sums[u][n / 2][n % 2]);
      }
    }
  }
}

// Where a warp's products find a step.
struct WarpWgradLane {
  const unsigned char* y;  // a lane's first pixel
  int y_pixel_bytes;
  const unsigned char* x;
  const int* offsets;
  const WarpWgradOperand* operands;
  int x_slot, x_slots, x_slot_bytes;
  int first, chunks, every;  // of the tile's chunks
};

// A step's products with the first `units` units, at most kCount. There is code for each number, so
// that no branch keeps reads from running ahead.
template <typename T, int kCount, int kFragments, int kUnits>
__device__ inline void MultiplyWarpWgradStep(const WarpWgradLane& of, int units, int lane,
                                             WarpWgradSums<kFragments, kUnits>& sums) {
  if constexpr (kCount > 1) {
    if (units < kCount) {
      return MultiplyWarpWgradStep<T, kCount - 1, kFragments, kUnits>(of, units, lane, sums);
    }
  }
  int at[kCount];
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    const WarpWgradOperand operand = of.operands[u];
    int slot = of.x_slot + operand.plane;
    if (slot >= of.x_slots) slot -= of.x_slots;
    at[u] = slot * of.x_slot_bytes + operand.at;
  }
#pragma unroll 1
  for (int chunk = of.first; chunk < of.chunks; chunk += of.every) {
    const unsigned char* const y = of.y + chunk * kWarpWgradChunk * of.y_pixel_bytes;
    const int* const offsets = of.offsets + chunk * kWarpWgradChunk;
    if constexpr (sizeof(T) == 2) {
      MultiplyWarpWgradHalves<T, kCount, kFragments, kUnits>(y, of.x, offsets, lane, at, sums);
    } else {
      MultiplyWarpWgradFloats<kCount, kFragments, kUnits>(y, of.y_pixel_bytes, of.x, offsets, lane,
                                                          at, sums);
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_PRODUCTS_CUH_
