// Weights in shared memory in the order in which fragments of products have them, so that a lane
// reads those of two products at once, next to what its neighbors read.
//
// Neighbors in memory are 16 bytes of the depth or of the columns. Both are padded with zeros.
// Columns are permuted, so that a lane's sums of several products are of neighboring channels.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WEIGHTS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WEIGHTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/implicit_gemm/warp/fprop_params.h"

namespace jax_convgrad {

// Products of 8 columns of which a lane's channels are neighbors: of 16 bytes, or of all columns if
// these are fewer. A product gives a lane two.
template <typename T>
__host__ __device__ constexpr int WarpStored(int columns) {
  const int most = kPieceElements<T> / 2;
  return most < columns / 8 ? most : columns / 8;
}

// The word of a weight. Taps that are multiplied with the same pixels, `taps` of them, follow each
// other, then units of the depth, then taps.
template <typename T>
__device__ inline int WarpWeightPlace(int columns, int taps, int units, int tap, int depth_word,
                                      int column) {
  const int stored = WarpStored<T>(columns), of_store = column % (2 * stored);
  const int product = column / (8 * stored) * stored + of_store / 2;
  const int in_pair = column % (8 * stored) / (2 * stored) * 2 + of_store % 2;
  const int block = (tap / taps * units + depth_word / 8) * taps + tap % taps;
  const int lane = in_pair * 4 + depth_word % 4;
  return ((block * (columns / 16) + product / 2) * 32 + lane) * 4 + product % 2 * 2 +
         depth_word % 8 / 4;
}

struct alignas(16) WarpPiece {
  uint32_t words[4];
};

template <typename T>
__device__ inline WarpPiece LoadWarpPiece(const T* at, bool exists) {
  WarpPiece piece = {};
  if (exists) piece = *reinterpret_cast<const WarpPiece*>(at);
  return piece;
}

// By `threads` threads, of which this one is `thread`: writes the weights of the `columns` channels
// from `first_channel` on. `taps` are multiplied with the same pixels.
template <typename T>
__device__ inline void StageWarpWeights(const WarpWeights& w, int columns, int taps,
                                        int first_channel, int thread, int threads, uint32_t* to) {
  // As many reads are under way at once.
  constexpr int kBatch = 4;
  const T* const from = static_cast<const T*>(w.from);
  if (w.depth == 1) {
    const int count = w.units * 2 * w.taps * columns;
    for (int first = thread; first < count; first += kBatch * threads) {
      WarpPiece pieces[kBatch];
      int of_taps[kBatch], of_columns[kBatch], parts[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        int rest = first + i * threads;
        const bool counts = rest < count;
        parts[i] = w.by_pieces.Split(&rest);
        of_taps[i] = w.by_taps.Split(&rest);
        of_columns[i] = rest;
        const int depth = parts[i] * kPieceElements<T>, column = first_channel + rest;
        const bool exists = counts & (depth < w.depths) & (column < w.columns);
        pieces[i] = LoadWarpPiece(
            from + (exists ? w.places[of_taps[i]] * w.tap + column * w.column + depth : 0), exists);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i * threads >= count) break;
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          to[WarpWeightPlace<T>(columns, taps, w.units, of_taps[i], parts[i] * 4 + word,
                                of_columns[i])] = MultipliedWord<T>(pieces[i].words[word]);
        }
      }
    }
    return;
  }
  // A thread takes the words of a piece's columns: of 16-bit elements, two lines of the depth.
  const int line = columns / kPieceElements<T>;
  const int count = line * w.units * 8 * w.taps;
  for (int first = thread; first < count; first += kBatch * threads) {
    WarpPiece pieces[kBatch][kWordElements<T>];
    int of_taps[kBatch], words[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int rest = first + i * threads;
      int word = rest / line;
      of_taps[i] = w.by_taps.Split(&word);
      words[i] = word;
      const int column = first_channel + rest % line * kPieceElements<T>;
#pragma unroll
      for (int e = 0; e < kWordElements<T>; ++e) {
        const int depth = word * kWordElements<T> + e;
        const bool exists = (rest < count) & (depth < w.depths) & (column < w.columns);
        pieces[i][e] = LoadWarpPiece(
            from + (exists ? w.places[of_taps[i]] * w.tap + depth * w.depth + column : 0), exists);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * threads >= count) break;
      const int column = (first + i * threads) % line * kPieceElements<T>;
#pragma unroll
      for (int e = 0; e < kPieceElements<T>; ++e) {
        uint32_t word = pieces[i][0].words[e / kWordElements<T>];
        if constexpr (sizeof(T) == 2) {
          const uint32_t next = pieces[i][1].words[e / 2];
          word = e % 2 == 0 ? __byte_perm(word, next, 0x5410) : __byte_perm(word, next, 0x7632);
        }
        to[WarpWeightPlace<T>(columns, taps, w.units, of_taps[i], words[i], column + e)] =
            MultipliedWord<T>(word);
      }
    }
  }
}

// What lays weights out in memory for blocks that do not hold all of them at once.
struct WarpArrangeParams {
  WarpWeights weights;
  void* to;  // set at each launch
  int columns, taps, column_tiles;
  int blocks;      // of a column tile
  int tile_words;  // from one column tile's to the next one's
};

constexpr int kWarpArrangeThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kWarpArrangeThreads)
    WarpArrange(const __grid_constant__ WarpArrangeParams p) {
  const int tile = static_cast<int>(blockIdx.x) % p.column_tiles;
  const int block = static_cast<int>(blockIdx.x) / p.column_tiles;
  StageWarpWeights<T>(p.weights, p.columns, p.taps, tile * p.columns,
                      block * kWarpArrangeThreads + static_cast<int>(threadIdx.x),
                      p.blocks * kWarpArrangeThreads,
                      static_cast<uint32_t*>(p.to) + static_cast<int64_t>(tile) * p.tile_words);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WEIGHTS_CUH_
