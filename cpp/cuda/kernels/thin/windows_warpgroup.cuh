// Windows side by side, windows_copies.cuh has what they are, multiplied by warpgroups: for windows
// and channels so many that the tensor cores bound, which only these keep busy on a Hopper device.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_WARPGROUP_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_WARPGROUP_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/common/warpgroup_product.cuh"
#include "cuda/kernels/thin/ring.cuh"
#include "cuda/kernels/thin/windows_copies.cuh"

namespace jax_convgrad {

// A block's part of the result, 64 rows by all columns for each warpgroup.
template <int kWarpgroups_, int kColumns_, int kBlocks_>
struct WarpgroupTile {
  static constexpr int kWarpgroupRows = 64;
  static constexpr int kRows = kWarpgroups_ * kWarpgroupRows;
  static constexpr int kColumns = kColumns_;
  static constexpr int kThreads = kWarpgroups_ * 128;
  static constexpr int kBlocks = kBlocks_;          // of a multiprocessor, as registers allow
  static constexpr int kDepthUnit = kWindowsDepth;  // no branch is around products
  static constexpr int kDepth = 64;                 // windows of a step of wgrad
  // Steps whose products may still run while the next one's begin. Of two blocks on a
  // multiprocessor, one has products while the other waits.
  static constexpr int kPending = kBlocks == 1 ? 1 : 0;
  static_assert(kDepth == kWindowsDepth, "MultiplyStep is of both");
};

// Waits until a step has arrived, `ahead` of them being under way, and the products that read the
// stage that is copied to next are done.
template <typename Tile>
__device__ inline void WaitForStep(int ahead) {
  if (ahead == 1) WaitForCopies<0>();
  if (ahead == 2) WaitForCopies<1>();
  if (ahead == 3) WaitForCopies<2>();
  ShowTensorCores();
  if constexpr (Tile::kPending == 0) WaitForProducts<0>();
  __syncthreads();
}

// Begins the products of a step: a warpgroup's 64 rows by all columns, which lie in panels of
// `panel_bytes` where their lines are depths.
template <typename T, typename Tile, Lines kRows, Lines kColumns>
__device__ inline void MultiplyStep(const unsigned char* rows, const unsigned char* columns,
                                    uint32_t panel_bytes, float (&sums)[Tile::kColumns / 2]) {
  constexpr int kWide = Tile::kColumns / 128;
  const WarpgroupOperand<kRows> a(rows, panel_bytes);
  const auto columns_at = [&](int column) {
    const uint32_t bytes = kColumns == Lines::kAlongDepth
                               ? static_cast<uint32_t>(column) * 128
                               : static_cast<uint32_t>(column / kWindowsLine) * panel_bytes;
    return WarpgroupOperand<kColumns>(columns + bytes, panel_bytes);
  };
  BeginProducts();
#pragma unroll
  for (int k = 0; k < kWindowsDepth; k += 16) {
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      MultiplyAdd<128>(static_cast<const T*>(nullptr), a, columns_at(n * 128), k, sums + n * 64);
    }
    if constexpr (Tile::kColumns % 128 == 64) {
      MultiplyAdd<64>(static_cast<const T*>(nullptr), a, columns_at(kWide * 128), k,
                      sums + kWide * 64);
    }
  }
  CommitProducts();
}

// fprop or dgrad, as WindowsCopies has them.
template <typename T, typename Tile, bool kDgrad, bool kInOut, int kPiece>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    WarpgroupProduct(const __grid_constant__ WindowsParams p) {
  using Copies = WindowsCopies<T, Tile, kDgrad, kInOut, kPiece>;
  constexpr Lines kWeights = Copies::kDepthLast ? Lines::kAlongDepth : Lines::kAcrossDepth;
  const int ahead = p.stages - 1 - Tile::kPending;
  Copies copies(p);
  copies.Start(ahead);

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_row = warp / 4 * Tile::kWarpgroupRows;
  int stage = 0;
  for (int tile = copies.first_tile(); tile < copies.end_tile(); ++tile) {
    float sums[Tile::kColumns / 2];
#pragma unroll
    for (float& sum : sums) sum = 0;
    for (int step = 0; step < copies.steps(); ++step) {
      WaitForStep<Tile>(ahead);
      MultiplyStep<T, Tile, Lines::kAlongDepth, kWeights>(copies.Rows(stage) + first_row * 128,
                                                          copies.Weights(step, stage),
                                                          kWindowsDepth * 128, sums);
      copies.Next();
      if constexpr (Tile::kPending > 0) WaitForProducts<Tile::kPending>();
      if (++stage == p.stages) stage = 0;
    }
    WaitForProducts<0>();
    ShowSums(sums);
    const int position = tile * Tile::kRows + first_row + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* const row = WindowsRow<T, kDgrad>(p, position + half * 8);
#pragma unroll
      for (int part = 0; part < Tile::kColumns / 32; ++part) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const of = sums + (part * 4 + i) * 4 + half * 2;
          words[i] = RoundedPair(static_cast<const T*>(nullptr), of[0], of[1]);
        }
        StoreWindowsRow<T, kDgrad, kPiece>(p, row, copies.first_column() + part * 32, words);
      }
    }
  }
}

// A part of wgrad's sums, as WindowsWgrad has them.
template <typename T, typename Tile, int kPiece>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    WarpgroupWgrad(const __grid_constant__ WindowsParams p) {
  constexpr int kPanelBytes = Tile::kDepth * 128;
  const int ahead = p.stages - 1 - Tile::kPending;
  WindowsWgradCopies<T, Tile, kPiece> copies(p);
  copies.Start(ahead);

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float sums[Tile::kColumns / 2];
#pragma unroll
  for (float& sum : sums) sum = 0;
  ShowSums(sums);
  int stage = 0;
  for (int step = 0; step < copies.steps(); ++step) {
    WaitForStep<Tile>(ahead);
    MultiplyStep<T, Tile, Lines::kAcrossDepth, Lines::kAcrossDepth>(
        copies.Rows(stage) + warp / 4 * kPanelBytes, copies.Columns(stage), kPanelBytes, sums);
    copies.Next();
    if constexpr (Tile::kPending > 0) WaitForProducts<Tile::kPending>();
    if (++stage == p.stages) stage = 0;
  }
  WaitForProducts<0>();
  ShowSums(sums);
  const int row = copies.first_row() + warp / 4 * Tile::kWarpgroupRows + warp % 4 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < Tile::kColumns / 8; ++n) {
      const float* const of = sums + n * 4 + half * 2;
      StorePartialSums(p, copies.part(), row + half * 8,
                       copies.first_column() + n * 8 + lane % 4 * 2, of[0], of[1]);
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_WARPGROUP_CUH_
