// Windows side by side (the stride is the kernel, without padding or dilation): a window of the
// image is a row of a matrix, since no two windows share an element. The image is read or written
// in place; nothing is copied in front or behind.
//
// WindowsProduct is both fprop, windows times weights, and dgrad, whose columns are scattered to
// the windows' elements (a pixel shuffle). WindowsWgrad sums over windows.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/thin/ring.cuh"

namespace jax_convgrad {

// How windows lie in the image. A window is `kernel z x kernel y` runs of kernel x * channels
// elements that are neighbors in memory.
struct WindowsImage {
  int positions;               // windows, of all images
  int size;                    // elements of a window
  int run;                     // neighbors among them
  Divider by_x, by_y, by_z;    // windows along an axis
  Divider by_run, by_rows;     // elements of a run, runs of a plane
  int64_t image, plane, row;   // elements from an image, or a window along z or y, to the next
  int64_t tap_plane, tap_row;  // from a run of a window to that along z or y

  // The element that a window begins at.
  __device__ int64_t Start(int position) const {
    const int x = by_x.Split(&position);
    const int y = by_y.Split(&position);
    const int z = by_z.Split(&position);
    return position * image + z * plane + y * row + static_cast<int64_t>(x) * run;
  }

  // From there to element `index` of the window.
  __device__ int64_t Offset(int index) const {
    const int element = by_run.Split(&index);
    const int y = by_rows.Split(&index);
    return index * tap_plane + y * tap_row + element;
  }
};

struct WindowsParams {
  const void* x;  // the image's side
  const void* y;  // a row of `channels` for each window
  const void* w;
  void* result;
  WindowsImage image;
  int channels;
  // Of WindowsProduct.
  bool resident;        // all weights of a block's columns stay in shared memory
  int stages;           // of steps in shared memory at once: 2, 3 or 4
  int column_tiles;     // of the result
  int row_tiles;        // of the result
  int block_row_tiles;  // of a block, one below the other
  // Of WindowsWgrad, for which `result` is the partial sums.
  int window_tiles;   // columns of the result, elements of a window
  int channel_tiles;  // rows
  int parts;          // that windows are shared in
  int part_steps;     // of each, the last may have fewer
};

// A block's part of the result, 32 rows by 64 columns for each warp.
template <int kWarpsAbove_, int kWarpsBeside_, int kBlocks_>
struct WindowsTile {
  static constexpr int kWarpRows = 32, kWarpColumns = 64;
  static constexpr int kWarpsBeside = kWarpsBeside_;
  static constexpr int kRows = kWarpsAbove_ * kWarpRows;
  static constexpr int kColumns = kWarpsBeside_ * kWarpColumns;
  static constexpr int kThreads = 32 * kWarpsAbove_ * kWarpsBeside_;
  static constexpr int kBlocks = kBlocks_;  // of a multiprocessor, as registers allow
};

constexpr int kWindowsMaxStages = 4;

// The byte of a 16-byte piece in a matrix of `kPieces` pieces a row. Eight rows one below the other
// lie in different banks.
template <int kPieces>
__device__ inline int Swizzled16(int row, int piece) {
  static_assert(kPieces % 8 == 0, "a row is over all banks");
  return (row * kPieces + (piece ^ (row % 8))) * 16;
}

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

// v[i] of lane t of four neighbors becomes v[t] of lane i.
__device__ inline void TransposeAmongFour(uint32_t (&v)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = FromOtherLane(odd ? v[i] : v[i + 1], 1);
    if (odd) {
      v[i] = other;
    } else {
      v[i + 1] = other;
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = FromOtherLane(high ? v[i] : v[i + 2], 2);
    if (high) {
      v[i] = other;
    } else {
      v[i + 2] = other;
    }
  }
}

constexpr int kWindowsDepth = 64;  // of a step of WindowsProduct

template <typename Tile>
struct WindowsProductShared {
  static constexpr int kRowsBytes = Tile::kRows * kWindowsDepth * 2;
  static constexpr int kWeightsBytes = Tile::kColumns * kWindowsDepth * 2;
  static constexpr int kTableBytes = 2 * Tile::kRows * 8;

  static constexpr int64_t Bytes(int64_t steps, bool resident, int64_t stages) {
    return stages * kRowsBytes + (resident ? steps : stages) * kWeightsBytes + kTableBytes;
  }
};

// fprop, or dgrad. The weights lie output channel, window, input channel, or (kInOut) window, input
// channel, output channel. kPiece elements of a run are copied at once: 8 or 2. Those of channels,
// of which there are a multiple of 8, always by 8.
//
// A block does `block_row_tiles` tiles of one range of columns. A step is 64 of the depth of one
// tile; the steps of all its tiles go through one ring of stages, so that the next tile's rows are
// on their way while a tile is written. The blocks of the same rows are neighbors: the second one
// finds them in the cache.
template <typename T, typename Tile, bool kDgrad, bool kInOut, int kPiece>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    WindowsProduct(const __grid_constant__ WindowsParams p) {
  using Shared = WindowsProductShared<Tile>;
  constexpr bool kDepthLast = kDgrad == kInOut;  // weights of neighboring depths are neighbors
  constexpr int kRowsPiece = kDgrad ? 8 : kPiece;
  constexpr int kWeightsPiece = kInOut ? 8 : kPiece;
  constexpr int kPieces = kWindowsDepth / 8;  // of 16 bytes, in a row of a step

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int depth = kDgrad ? p.channels : p.image.size;
  const int columns = kDgrad ? p.image.size : p.channels;
  const int steps = (depth + kWindowsDepth - 1) / kWindowsDepth;
  const int block = static_cast<int>(blockIdx.x);
  const int first_column = block % p.column_tiles * Tile::kColumns;
  const int first_tile = block / p.column_tiles * p.block_row_tiles;
  const int end_tile = min(first_tile + p.block_row_tiles, p.row_tiles);

  unsigned char* const of_rows = SharedMemory<unsigned char>();
  unsigned char* const of_weights = of_rows + p.stages * Shared::kRowsBytes;
  int64_t* const table = reinterpret_cast<int64_t*>(of_weights + (p.resident ? steps : p.stages) *
                                                                     Shared::kWeightsBytes);

  // For each row of a tile: the element that it begins at, or -1.
  const auto find_rows = [&](int tile) {
    if (thread >= Tile::kRows) return;
    const int position = tile * Tile::kRows + thread;
    int64_t start = -1;
    if (position < p.image.positions) {
      start = kDgrad ? static_cast<int64_t>(position) * p.channels : p.image.Start(position);
    }
    table[tile % 2 * Tile::kRows + thread] = start;
  };
  // Begins to copy a step of a tile, its rows up to the next 16 of depth.
  const auto copy_rows = [&](int tile, int step, unsigned char* to) {
    constexpr int kInRow = kWindowsDepth / kRowsPiece;
    const int within = thread % kInRow * kRowsPiece, k = step * kWindowsDepth + within;
    if (k >= (depth + 15) / 16 * 16) return;
    const T* const from = static_cast<const T*>(kDgrad ? p.y : p.x);
    const int64_t offset = k >= depth ? 0 : kDgrad ? k : p.image.Offset(k);
    constexpr int kAtOnce = Tile::kThreads / kInRow;
#pragma unroll(kRowsPiece == 8 ? Tile::kRows : 2)
    for (int i = 0; i < Tile::kRows; i += kAtOnce) {
      const int row = i + thread / kInRow;
      const int64_t start = table[tile % 2 * Tile::kRows + row];
      const bool inside = k < depth && start >= 0;
      CopyAsync<2 * kRowsPiece>(to + Swizzled16<kPieces>(row, within / 8) + within % 8 * 2,
                                from + (inside ? start + offset : 0), inside);
    }
  };
  const auto copy_weights = [&](int step, unsigned char* to) {
    const T* const from = static_cast<const T*>(p.w);
    constexpr int kAcross = kDepthLast ? kWindowsDepth : Tile::kColumns;
    constexpr int kDown = kDepthLast ? Tile::kColumns : kWindowsDepth;
    constexpr int kInRow = kAcross / kWeightsPiece;
    constexpr int kAtOnce = Tile::kThreads / kInRow;
    static_assert(kDown % kAtOnce == 0, "all threads copy as much");
    const int within = thread % kInRow * kWeightsPiece;
#pragma unroll(kWeightsPiece == 8 ? kDown : 2)
    for (int i = 0; i < kDown; i += kAtOnce) {
      const int row = i + thread / kInRow;
      const int k = step * kWindowsDepth + (kDepthLast ? within : row);
      const int column = first_column + (kDepthLast ? row : within);
      if (k >= (depth + 15) / 16 * 16) continue;
      const bool inside = k < depth && column < columns;
      const int64_t at = kDepthLast ? static_cast<int64_t>(column) * depth + k
                                    : static_cast<int64_t>(k) * columns + column;
      CopyAsync<2 * kWeightsPiece>(to + Swizzled16<kAcross / 8>(row, within / 8) + within % 8 * 2,
                                   from + (inside ? at : 0), inside);
    }
  };

  // The next step to copy, and where it goes.
  int copy_tile = first_tile, copy_step = 0, copy_stage = 0;
  const auto copy_next = [&] {
    if (copy_tile < end_tile) {
      copy_rows(copy_tile, copy_step, of_rows + copy_stage * Shared::kRowsBytes);
      if (!p.resident) copy_weights(copy_step, of_weights + copy_stage * Shared::kWeightsBytes);
      if (++copy_step == steps) {
        copy_step = 0;
        find_rows(++copy_tile);
      }
      if (++copy_stage == p.stages) copy_stage = 0;
    }
    CommitCopies();
  };

  find_rows(first_tile);
  if (p.resident) {
    for (int step = 0; step < steps; ++step) {
      copy_weights(step, of_weights + step * Shared::kWeightsBytes);
    }
  }
  for (int i = 1; i < p.stages; ++i) {
    __syncthreads();  // the table
    copy_next();
  }

  const int row_of_warp = warp / Tile::kWarpsBeside * Tile::kWarpRows;
  const int column_of_warp = warp % Tile::kWarpsBeside * Tile::kWarpColumns;
  int stage = 0;
  for (int tile = first_tile; tile < end_tile; ++tile) {
    WarpSums<T> sums;
    for (int step = 0; step < steps; ++step) {
      WaitForOldest(p.stages);
      copy_next();
      const unsigned char* const rows = of_rows + stage * Shared::kRowsBytes;
      const unsigned char* const weights =
          of_weights + (p.resident ? step : stage) * Shared::kWeightsBytes;
      if (++stage == p.stages) stage = 0;
      const int rest = depth - step * kWindowsDepth;
#pragma unroll
      for (int k = 0; k < kWindowsDepth; k += 16) {
        if (k >= rest) break;
        uint32_t a[2][4], b[4][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          LoadMatrices(
              rows + Swizzled16<kPieces>(row_of_warp + m * 16 + lane % 16, k / 8 + lane / 16),
              a[m]);
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const int column = column_of_warp + n * 16;
          if constexpr (kDepthLast) {
            LoadMatrices(weights + Swizzled16<kPieces>(column + lane / 16 * 8 + lane % 8,
                                                       k / 8 + lane / 8 % 2),
                         b[n]);
          } else {
            LoadTransposedMatrices(
                weights + Swizzled16<Tile::kColumns / 8>(k + lane % 16, column / 8 + lane / 16),
                b[n]);
          }
        }
        sums.Add(a, b);
      }
    }
    // Four lanes have 32 columns of a row, each two of every eight; after they have transposed them
    // each has eight neighbors.
    T* const to = static_cast<T*>(p.result);
#pragma unroll
    for (int half = 0; half < 4; ++half) {
      const int position = tile * Tile::kRows + row_of_warp + half * 8 + lane / 4;
      const bool inside = position < p.image.positions;
      T* row = to;
      if (inside)
        row += kDgrad ? p.image.Start(position) : static_cast<int64_t>(position) * columns;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float (&of)[4] = sums.of[half / 2][part * 4 + i];
          words[i] =
              RoundedPair(static_cast<const T*>(nullptr), of[half % 2 * 2], of[half % 2 * 2 + 1]);
        }
        TransposeAmongFour(words);
        const int column = first_column + column_of_warp + part * 32 + lane % 4 * 8;
        if constexpr (!kDgrad || kPiece == 8) {
          if (inside && column < columns) {
            const int64_t offset = kDgrad ? p.image.Offset(column) : column;
            *reinterpret_cast<uint4*>(row + offset) =
                make_uint4(words[0], words[1], words[2], words[3]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (inside && column + 2 * i < columns) {
              *reinterpret_cast<uint32_t*>(row + p.image.Offset(column + 2 * i)) = words[i];
            }
          }
        }
      }
    }
  }
}

constexpr int kWindowsWgradDepth = 32;  // windows of a step of WindowsWgrad
constexpr int kWindowsWgradStages = 4;

template <typename Tile>
constexpr int kWindowsWgradBytes =
    kWindowsWgradStages * kWindowsWgradDepth * (Tile::kRows + Tile::kColumns) * 2;

// A part of wgrad's sums: rows are channels, columns elements of a window. Partial sums lie part,
// channel, element of a window, in float32.
template <typename T, typename Tile, int kPiece>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    WindowsWgrad(const __grid_constant__ WindowsParams p) {
  constexpr int kDepth = kWindowsWgradDepth, kStages = kWindowsWgradStages;
  constexpr int kRowsBytes = kDepth * Tile::kRows * 2;
  constexpr int kColumnsBytes = kDepth * Tile::kColumns * 2;

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  int block = static_cast<int>(blockIdx.x);
  const int first_column = block % p.window_tiles * Tile::kColumns;
  block /= p.window_tiles;
  const int first_row = block % p.channel_tiles * Tile::kRows;
  const int part = block / p.channel_tiles;
  const int first_step = part * p.part_steps;
  const int all_steps = (p.image.positions + kDepth - 1) / kDepth;
  const int steps = min(p.part_steps, all_steps - first_step);

  unsigned char* const of_rows = SharedMemory<unsigned char>();
  unsigned char* const of_columns = of_rows + kStages * kRowsBytes;

  // What a thread copies is of the same channels, and of the same element, in every step.
  constexpr int kRowsInRow = Tile::kRows / 8, kColumnsInRow = Tile::kColumns / kPiece;
  const int channel = thread % kRowsInRow * 8, element = thread % kColumnsInRow * kPiece;
  const bool channel_inside = first_row + channel < p.channels;
  const bool element_inside = first_column + element < p.image.size;
  const int64_t offset = element_inside ? p.image.Offset(first_column + element) : 0;

  int copy_step = 0;
  const auto copy_next = [&] {
    if (copy_step < steps) {
      const int first = (first_step + copy_step) * kDepth, stage = copy_step % kStages;
      unsigned char* const rows = of_rows + stage * kRowsBytes;
      unsigned char* const columns = of_columns + stage * kColumnsBytes;
#pragma unroll
      for (int i = 0; i < kDepth; i += Tile::kThreads / kRowsInRow) {
        const int k = i + thread / kRowsInRow;
        const bool inside = channel_inside && first + k < p.image.positions;
        const int64_t at = static_cast<int64_t>(first + k) * p.channels + first_row + channel;
        CopyAsync(rows + Swizzled16<Tile::kRows / 8>(k, channel / 8),
                  static_cast<const T*>(p.y) + (inside ? at : 0), inside);
      }
#pragma unroll
      for (int i = 0; i < kDepth; i += Tile::kThreads / kColumnsInRow) {
        const int k = i + thread / kColumnsInRow;
        const bool inside = element_inside && first + k < p.image.positions;
        const int64_t at = inside ? p.image.Start(first + k) + offset : 0;
        CopyAsync<2 * kPiece>(
            columns + Swizzled16<Tile::kColumns / 8>(k, element / 8) + element % 8 * 2,
            static_cast<const T*>(p.x) + at, inside);
      }
      ++copy_step;
    }
    CommitCopies();
  };
  for (int i = 1; i < kStages; ++i) copy_next();

  const int row_of_warp = warp / Tile::kWarpsBeside * Tile::kWarpRows;
  const int column_of_warp = warp % Tile::kWarpsBeside * Tile::kWarpColumns;
  WarpSums<T> sums;
  for (int step = 0; step < steps; ++step) {
    WaitForStage<kStages - 2>();
    copy_next();
    const unsigned char* const rows = of_rows + step % kStages * kRowsBytes;
    const unsigned char* const columns = of_columns + step % kStages * kColumnsBytes;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t a[2][4], b[4][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        LoadTransposedMatrices(
            rows + Swizzled16<Tile::kRows / 8>(k + lane / 16 * 8 + lane % 8,
                                               row_of_warp / 8 + m * 2 + lane / 8 % 2),
            a[m]);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        LoadTransposedMatrices(columns + Swizzled16<Tile::kColumns / 8>(
                                             k + lane % 16, column_of_warp / 8 + n * 2 + lane / 16),
                               b[n]);
      }
      sums.Add(a, b);
    }
  }

  float* const partial =
      static_cast<float*>(p.result) + static_cast<int64_t>(part) * p.channels * p.image.size;
#pragma unroll
  for (int half = 0; half < 4; ++half) {
    const int row = first_row + row_of_warp + half * 8 + lane / 4;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int column = first_column + column_of_warp + n * 8 + lane % 4 * 2;
      const float (&of)[4] = sums.of[half / 2][n];
      if (row < p.channels && column < p.image.size) {
        *reinterpret_cast<float2*>(partial + static_cast<int64_t>(row) * p.image.size + column) =
            make_float2(of[half % 2 * 2], of[half % 2 * 2 + 1]);
      }
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_CUH_
