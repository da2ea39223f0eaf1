// What the kernels for windows side by side have in common (the stride is the kernel, without
// padding or dilation): a window of the image is a row of a matrix, since no two windows share an
// element. The image is read or written in place; nothing is copied in front or behind. Here is how
// a block's part of the matrices comes into shared memory, and how a row of the result is written.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_COPIES_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_COPIES_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/warp_product.cuh"

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
  int stages;  // of steps in shared memory at once: 2, 3 or 4
  // Of fprop and dgrad.
  bool resident;        // all weights of a block's columns stay in shared memory
  int column_tiles;     // of the result
  int row_tiles;        // of the result
  int block_row_tiles;  // of a block, one below the other
  // Of wgrad, for which `result` is the partial sums.
  int window_tiles;   // columns of the result, elements of a window
  int channel_tiles;  // rows
  int parts;          // that windows are shared in
  int part_steps;     // of each, the last may have fewer
};

// In shared memory a matrix lies in panels of lines of 128 bytes, 64 elements. Eight lines one
// below the other have a 16-byte piece in different banks.
constexpr int kWindowsLine = 64;

// The byte of a piece of a line.
__device__ inline int SwizzledPiece(int line, int piece) {
  return line * 128 + (piece ^ line % 8) * 16;
}

// The byte of element `across` of row `down` of a matrix with `rows` rows, a panel for every 64
// elements.
__device__ inline int SwizzledElement(int rows, int down, int across) {
  return across / kWindowsLine * (rows * 128) + SwizzledPiece(down, across % kWindowsLine / 8) +
         across % 8 * 2;
}

// How a block's threads share the pieces of a matrix, each of kPiece neighbors.
template <int kDown, int kAcross, int kPiece, int kThreads>
struct WindowsShares {
  static constexpr int kInRow = kAcross / kPiece;
  static constexpr int kCount = kDown * kInRow / kThreads;  // of each thread
  static_assert(kDown * kInRow % kThreads == 0, "all threads copy as much");
  static constexpr bool kSameColumn = kThreads % kInRow == 0;

  static __device__ int Down(int i) {
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (kSameColumn) return thread / kInRow + i * (kThreads / kInRow);
    return (thread + i * kThreads) / kInRow;
  }
  static __device__ int Across(int i) {
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (kSameColumn) return thread % kInRow * kPiece;
    return (thread + i * kThreads) % kInRow * kPiece;
  }
};

constexpr int kWindowsDepth = 64;  // of a step

// Bytes of shared memory: the stages' rows, the weights, which are those of all steps if they are
// resident, and for two tiles where each row begins.
constexpr int64_t WindowsSharedBytes(int64_t rows, int64_t columns, int64_t steps, bool resident,
                                     int64_t stages) {
  return (stages * rows + (resident ? steps : stages) * columns) * kWindowsDepth * 2 + 2 * rows * 8;
}

// The same of wgrad: the stages' rows and columns, and for two steps where each window begins.
constexpr int64_t WindowsWgradBytes(int64_t rows, int64_t columns, int64_t depth, int64_t stages) {
  return stages * (rows + columns) * depth * 2 + 2 * depth * 8;
}

// The operands of fprop, windows times weights, or of dgrad, whose columns are scattered to the
// windows' elements (a pixel shuffle). The weights lie output channel, window, input channel, or
// (kInOut) window, input channel, output channel. kPiece elements of a run are copied at once: 8 or
// 2. Those of channels, of which there are a multiple of 8, always by 8.
//
// A block does `block_row_tiles` tiles of one range of columns. A step is 64 of the depth of one
// tile; the steps of all its tiles go through one ring of stages, so that the next tile's rows are
// on their way while a tile is written. The blocks of the same rows are neighbors: the second one
// finds them in the cache.
template <typename T, typename Tile, bool kDgrad, bool kInOut, int kPiece>
class WindowsCopies {
  static constexpr int kRowsBytes = Tile::kRows * kWindowsDepth * 2;
  static constexpr int kWeightsBytes = Tile::kColumns * kWindowsDepth * 2;
  static constexpr int kRowsPiece = kDgrad ? 8 : kPiece;
  static constexpr int kWeightsPiece = kInOut ? 8 : kPiece;

 public:
  // Whether weights of neighboring depths are neighbors: then lines of the weights are columns, and
  // else depths, with panels of columns.
  static constexpr bool kDepthLast = kDgrad == kInOut;

  __device__ explicit WindowsCopies(const WindowsParams& p)
      : p_(p),
        end_tile_(min(first_tile() + p.block_row_tiles, p.row_tiles)),
        shared_(SharedMemory<unsigned char>()),
        tile_(first_tile()) {}

  __device__ int depth() const { return kDgrad ? p_.channels : p_.image.size; }
  __device__ int columns() const { return kDgrad ? p_.image.size : p_.channels; }
  // Of a tile.
  __device__ int steps() const { return (depth() + kWindowsDepth - 1) / kWindowsDepth; }
  __device__ int first_column() const {
    return static_cast<int>(blockIdx.x) % p_.column_tiles * Tile::kColumns;
  }
  __device__ int first_tile() const {
    return static_cast<int>(blockIdx.x) / p_.column_tiles * p_.block_row_tiles;
  }
  __device__ int end_tile() const { return end_tile_; }

  __device__ const unsigned char* Rows(int stage) const { return shared_ + stage * kRowsBytes; }
  __device__ const unsigned char* Weights(int step, int stage) const {
    return shared_ + WeightsAt(p_.resident ? step : stage);
  }

  // Begins to copy the first steps.
  __device__ void Start(int ahead) {
    FindRows();
    if (p_.resident) {
      for (int step = 0; step < steps(); ++step) CopyWeights(step, shared_ + WeightsAt(step));
    }
    for (int i = 0; i < ahead; ++i) {
      __syncthreads();  // the table
      Next();
    }
  }

  // Begins to copy the next step, if there is one, and commits it as one group.
  __device__ void Next() {
    if (tile_ < end_tile_) {
      CopyRows(shared_ + stage_ * kRowsBytes);
      if (!p_.resident) CopyWeights(step_, shared_ + WeightsAt(stage_));
      if (++step_ == steps()) {
        step_ = 0;
        ++tile_;
        FindRows();
      }
      if (++stage_ == p_.stages) stage_ = 0;
    }
    CommitCopies();
  }

 private:
  __device__ int WeightsAt(int place) const {
    return p_.stages * kRowsBytes + place * kWeightsBytes;
  }
  // For each row of two tiles: the element that it begins at, or -1.
  __device__ int64_t* Table(int tile) const {
    return reinterpret_cast<int64_t*>(shared_ + WeightsAt(p_.resident ? steps() : p_.stages)) +
           tile % 2 * Tile::kRows;
  }

  // Rows and columns are copied up to here: what is behind the depth is zero.
  __device__ int CopiedDepth() const {
    return (depth() + Tile::kDepthUnit - 1) / Tile::kDepthUnit * Tile::kDepthUnit;
  }

  __device__ void FindRows() {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= Tile::kRows) return;
    const int position = tile_ * Tile::kRows + thread;
    int64_t start = -1;
    if (position < p_.image.positions) {
      start = kDgrad ? static_cast<int64_t>(position) * p_.channels : p_.image.Start(position);
    }
    Table(tile_)[thread] = start;
  }

  __device__ void CopyRows(unsigned char* to) const {
    using Shares = WindowsShares<Tile::kRows, kWindowsDepth, kRowsPiece, Tile::kThreads>;
    static_assert(Shares::kSameColumn, "a thread's copies are of the same depths");
    const int within = Shares::Across(0), k = step_ * kWindowsDepth + within;
    if (k >= CopiedDepth()) return;
    const T* const from = static_cast<const T*>(kDgrad ? p_.y : p_.x);
    const int64_t* const starts = Table(tile_);
    const int64_t offset = k >= depth() ? 0 : kDgrad ? k : p_.image.Offset(k);
#pragma unroll(kRowsPiece == 8 ? Shares::kCount : 2)
    for (int i = 0; i < Shares::kCount; ++i) {
      const int row = Shares::Down(i);
      const int64_t start = starts[row];
      const bool inside = k < depth() && start >= 0;
      CopyAsync<2 * kRowsPiece>(to + SwizzledPiece(row, within / 8) + within % 8 * 2,
                                from + (inside ? start + offset : 0), inside);
    }
  }

  __device__ void CopyWeights(int step, unsigned char* to) const {
    const T* const from = static_cast<const T*>(p_.w);
    constexpr int kAcross = kDepthLast ? kWindowsDepth : Tile::kColumns;
    constexpr int kDown = kDepthLast ? Tile::kColumns : kWindowsDepth;
    using Shares = WindowsShares<kDown, kAcross, kWeightsPiece, Tile::kThreads>;
#pragma unroll(kWeightsPiece == 8 ? Shares::kCount : 2)
    for (int i = 0; i < Shares::kCount; ++i) {
      const int row = Shares::Down(i), within = Shares::Across(i);
      const int k = step * kWindowsDepth + (kDepthLast ? within : row);
      const int column = first_column() + (kDepthLast ? row : within);
      if (k >= CopiedDepth()) continue;
      const bool inside = k < depth() && column < columns();
      const int64_t at = kDepthLast ? static_cast<int64_t>(column) * depth() + k
                                    : static_cast<int64_t>(k) * columns() + column;
      CopyAsync<2 * kWeightsPiece>(to + SwizzledElement(kDown, row, within),
                                   from + (inside ? at : 0), inside);
    }
  }

  const WindowsParams& p_;
  const int end_tile_;
  unsigned char* const shared_;
  // The next step to copy, and where it goes.
  int tile_, step_ = 0, stage_ = 0;
};

// The operands of wgrad: channels of windows, the rows of its result, and elements of windows, its
// columns. A step is Tile::kDepth windows; what is behind the last window is zero.
template <typename T, typename Tile, int kPiece>
class WindowsWgradCopies {
  static constexpr int kDepth = Tile::kDepth;
  static constexpr int kRowsBytes = kDepth * Tile::kRows * 2;
  static constexpr int kColumnsBytes = kDepth * Tile::kColumns * 2;
  using RowsShares = WindowsShares<kDepth, Tile::kRows, 8, Tile::kThreads>;
  using ColumnsShares = WindowsShares<kDepth, Tile::kColumns, kPiece, Tile::kThreads>;
  static_assert(RowsShares::kSameColumn && ColumnsShares::kSameColumn,
                "what a thread copies is of the same channels, and of the same element");

 public:
  __device__ explicit WindowsWgradCopies(const WindowsParams& p)
      : p_(p), of_rows_(SharedMemory<unsigned char>()) {
    of_columns_ = of_rows_ + p.stages * kRowsBytes;
    table_ = reinterpret_cast<int64_t*>(of_columns_ + p.stages * kColumnsBytes);
    int block = static_cast<int>(blockIdx.x);
    first_column_ = block % p.window_tiles * Tile::kColumns;
    block /= p.window_tiles;
    first_row_ = block % p.channel_tiles * Tile::kRows;
    part_ = block / p.channel_tiles;
    first_window_ = part_ * p.part_steps * kDepth;
    const int all_steps = (p.image.positions + kDepth - 1) / kDepth;
    steps_ = min(p.part_steps, all_steps - part_ * p.part_steps);
    const int element = first_column_ + ColumnsShares::Across(0);
    element_inside_ = element < p.image.size;
    offset_ = element_inside_ ? p.image.Offset(element) : 0;
  }

  __device__ int steps() const { return steps_; }
  __device__ int part() const { return part_; }
  __device__ int first_row() const { return first_row_; }
  __device__ int first_column() const { return first_column_; }

  __device__ const unsigned char* Rows(int stage) const { return of_rows_ + stage * kRowsBytes; }
  __device__ const unsigned char* Columns(int stage) const {
    return of_columns_ + stage * kColumnsBytes;
  }

  // Begins to copy the first steps.
  __device__ void Start(int ahead) {
    FindWindows();
    for (int i = 0; i < ahead; ++i) {
      __syncthreads();  // the table
      Next();
    }
  }

  // Begins to copy the next step, if there is one, and commits it as one group.
  __device__ void Next() {
    if (step_ < steps_) {
      const int first = first_window_ + step_ * kDepth;
      unsigned char* const rows = of_rows_ + stage_ * kRowsBytes;
      unsigned char* const columns = of_columns_ + stage_ * kColumnsBytes;
      const int channel = RowsShares::Across(0), element = ColumnsShares::Across(0);
      const bool channel_inside = first_row_ + channel < p_.channels;
#pragma unroll
      for (int i = 0; i < RowsShares::kCount; ++i) {
        const int k = RowsShares::Down(i);
        const bool inside = channel_inside && first + k < p_.image.positions;
        const int64_t at = static_cast<int64_t>(first + k) * p_.channels + first_row_ + channel;
        CopyAsync(rows + SwizzledElement(kDepth, k, channel),
                  static_cast<const T*>(p_.y) + (inside ? at : 0), inside);
      }
#pragma unroll(kPiece == 8 ? ColumnsShares::kCount : 4)
      for (int i = 0; i < ColumnsShares::kCount; ++i) {
        const int k = ColumnsShares::Down(i);
        const int64_t start = table_[step_ % 2 * kDepth + k];
        const bool inside = element_inside_ && start >= 0;
        CopyAsync<2 * kPiece>(columns + SwizzledElement(kDepth, k, element),
                              static_cast<const T*>(p_.x) + (inside ? start + offset_ : 0), inside);
      }
      ++step_;
      FindWindows();
      if (++stage_ == p_.stages) stage_ = 0;
    }
    CommitCopies();
  }

 private:
  // For each window of the step: the element that it begins at, or -1.
  __device__ void FindWindows() {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= kDepth) return;
    const int position = first_window_ + step_ * kDepth + thread;
    table_[step_ % 2 * kDepth + thread] =
        position < p_.image.positions ? p_.image.Start(position) : -1;
  }

  const WindowsParams& p_;
  unsigned char* const of_rows_;
  unsigned char* of_columns_;
  int64_t* table_;
  int first_row_, first_column_, part_, first_window_, steps_;
  bool element_inside_;
  int64_t offset_;  // from a window's begin to what the thread copies
  // The next step to copy, and where it goes.
  int step_ = 0, stage_ = 0;
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

// The row of the result that window `position` is; null behind the last.
template <typename T, bool kDgrad>
__device__ inline T* WindowsRow(const WindowsParams& p, int position) {
  if (position >= p.image.positions) return nullptr;
  return static_cast<T*>(p.result) +
         (kDgrad ? p.image.Start(position) : static_cast<int64_t>(position) * p.channels);
}

// Writes 32 columns, from `first` on, of a row, unless it is null. Of every eight of them a lane
// has two neighbors, 2 * (lane % 4) and the next, as a word: once four lanes have transposed these,
// each has eight neighbors. Called by all lanes.
template <typename T, bool kDgrad, int kPiece>
__device__ inline void StoreWindowsRow(const WindowsParams& p, T* row, int first,
                                       uint32_t (&words)[4]) {
  TransposeAmongFour(words);
  const int columns = kDgrad ? p.image.size : p.channels;
  const int column = first + static_cast<int>(threadIdx.x) % 4 * 8;
  if constexpr (!kDgrad || kPiece == 8) {
    if (row != nullptr && column < columns) {
      *reinterpret_cast<uint4*>(row + (kDgrad ? p.image.Offset(column) : column)) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (row != nullptr && column + 2 * i < columns) {
        *reinterpret_cast<uint32_t*>(row + p.image.Offset(column + 2 * i)) = words[i];
      }
    }
  }
}

// Writes two neighbors, elements of a window, of a channel's partial sums of a part.
__device__ inline void StorePartialSums(const WindowsParams& p, int part, int channel, int element,
                                        float first, float second) {
  if (channel >= p.channels || element >= p.image.size) return;
  float* const partial = static_cast<float*>(p.result) +
                         (static_cast<int64_t>(part) * p.channels + channel) * p.image.size;
  *reinterpret_cast<float2*>(partial + element) = make_float2(first, second);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_COPIES_CUH_
