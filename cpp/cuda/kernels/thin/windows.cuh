// Windows side by side, windows_copies.cuh has what they are, multiplied by warps.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/thin/ring.cuh"
#include "cuda/kernels/thin/windows_copies.cuh"

namespace jax_convgrad {

// A block's part of the result, 32 rows by 64 columns for each warp.
template <int kWarpsAbove_, int kWarpsBeside_, int kBlocks_>
struct WindowsTile {
  static constexpr int kWarpRows = 32, kWarpColumns = 64;
  static constexpr int kWarpsBeside = kWarpsBeside_;
  static constexpr int kRows = kWarpsAbove_ * kWarpRows;
  static constexpr int kColumns = kWarpsBeside_ * kWarpColumns;
  static constexpr int kThreads = 32 * kWarpsAbove_ * kWarpsBeside_;
  static constexpr int kBlocks = kBlocks_;  // of a multiprocessor, as registers allow
  static constexpr int kDepthUnit = 16;     // of a product
  static constexpr int kDepth = 32;         // windows of a step of wgrad
};

// A warp's sums, and its product of one depth of 16.
template <typename T>
struct WarpSums {
  float of[2][8][4] = {};

  __device__ void Add(const uint32_t (&a)[2][4], const uint32_t (&b)[4][4]) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        MultiplyAdd(static_cast<const T*>(nullptr), a[m], b[n / 2][n % 2 * 2],
                    b[n / 2][n % 2 * 2 + 1], of[m][n]);
      }
    }
  }
};

// fprop or dgrad, as WindowsCopies has them.
template <typename T, typename Tile, bool kDgrad, bool kInOut, int kPiece>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    WindowsProduct(const __grid_constant__ WindowsParams p) {
  using Copies = WindowsCopies<T, Tile, kDgrad, kInOut, kPiece>;
  Copies copies(p);
  copies.Start(p.stages - 1);

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row_of_warp = warp / Tile::kWarpsBeside * Tile::kWarpRows;
  const int column_of_warp = warp % Tile::kWarpsBeside * Tile::kWarpColumns;
  int stage = 0;
  for (int tile = copies.first_tile(); tile < copies.end_tile(); ++tile) {
    WarpSums<T> sums;
    for (int step = 0; step < copies.steps(); ++step) {
      WaitForOldest(p.stages);
      copies.Next();
      const unsigned char* const rows = copies.Rows(stage);
      const unsigned char* const weights = copies.Weights(step, stage);
      if (++stage == p.stages) stage = 0;
      const int rest = copies.depth() - step * kWindowsDepth;
#pragma unroll
      for (int k = 0; k < kWindowsDepth; k += 16) {
        if (k >= rest) break;
        uint32_t a[2][4], b[4][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          LoadMatrices(rows + SwizzledPiece(row_of_warp + m * 16 + lane % 16, k / 8 + lane / 16),
                       a[m]);
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          if constexpr (Copies::kDepthLast) {
            LoadMatrices(weights + SwizzledPiece(column_of_warp + n * 16 + lane / 16 * 8 + lane % 8,
                                                 k / 8 + lane / 8 % 2),
                         b[n]);
          } else {
            LoadTransposedMatrices(weights + column_of_warp * (kWindowsDepth * 2) +
                                       SwizzledPiece(k + lane % 16, n * 2 + lane / 16),
                                   b[n]);
          }
        }
        sums.Add(a, b);
      }
    }
#pragma unroll
    for (int half = 0; half < 4; ++half) {
      T* const row =
          WindowsRow<T, kDgrad>(p, tile * Tile::kRows + row_of_warp + half * 8 + lane / 4);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float (&of)[4] = sums.of[half / 2][part * 4 + i];
          words[i] =
              RoundedPair(static_cast<const T*>(nullptr), of[half % 2 * 2], of[half % 2 * 2 + 1]);
        }
        StoreWindowsRow<T, kDgrad, kPiece>(
            p, row, copies.first_column() + column_of_warp + part * 32, words);
      }
    }
  }
}

constexpr int kWindowsWgradStages = 4;

// A part of wgrad's sums: rows are channels, columns elements of a window. Partial sums lie part,
// channel, element of a window, in float32.
template <typename T, typename Tile, int kPiece>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    WindowsWgrad(const __grid_constant__ WindowsParams p) {
  constexpr int kDepth = Tile::kDepth, kStages = kWindowsWgradStages;
  WindowsWgradCopies<T, Tile, kPiece> copies(p);
  copies.Start(kStages - 1);

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row_of_warp = warp / Tile::kWarpsBeside * Tile::kWarpRows;
  const int column_of_warp = warp % Tile::kWarpsBeside * Tile::kWarpColumns;
  WarpSums<T> sums;
  for (int step = 0; step < copies.steps(); ++step) {
    WaitForStage<kStages - 2>();
    copies.Next();
    const unsigned char* const rows = copies.Rows(step % kStages);
    const unsigned char* const columns = copies.Columns(step % kStages);
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t a[2][4], b[4][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        LoadTransposedMatrices(rows + SwizzledElement(kDepth, k + lane / 16 * 8 + lane % 8,
                                                      row_of_warp + m * 16 + lane / 8 % 2 * 8),
                               a[m]);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        LoadTransposedMatrices(columns + SwizzledElement(kDepth, k + lane % 16,
                                                         column_of_warp + n * 16 + lane / 16 * 8),
                               b[n]);
      }
      sums.Add(a, b);
    }
  }

#pragma unroll
  for (int half = 0; half < 4; ++half) {
    const int row = copies.first_row() + row_of_warp + half * 8 + lane / 4;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float (&of)[4] = sums.of[half / 2][n];
      StorePartialSums(p, copies.part(), row,
                       copies.first_column() + column_of_warp + n * 8 + lane % 4 * 2,
                       of[half % 2 * 2], of[half % 2 * 2 + 1]);
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_CUH_
