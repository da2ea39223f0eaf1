// fprop of a thin image: stems, and the first layers of audio and medical networks.
// (dgrad with a thin y is served too, if y's gradient is the image: image_plan.h.)
//
// Padding each pixel to 16 bytes would waste most of the tensor cores' work. But a window's row is
// kernel x * channels elements that are neighbors in memory, so what is padded is the row: to
// units of 16 bytes, half of the depth of a product. The image's rows are staged as they lie, and a
// lane's operands are read right from there, a word at a time: a pair of 16-bit elements or a
// float. Elements behind a row, or in front where it begins at an odd one, are masked: they belong
// to other windows, and a NaN there is none of this one's.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/thin/starts.cuh"

namespace jax_convgrad {

// A block has kThreads. Many share its weights, which may leave no room for a second block.
constexpr int kImageThreads = 128, kImageManyThreads = 384;
constexpr int kImageColumns = 64;  // output channels of a block
// Of a multiprocessor, as registers allow.
template <int kThreads>
constexpr int kImageBlocks = kImageManyThreads / kThreads;
constexpr int kImageUnitWords = 4;

// Elements of a unit.
template <typename T>
constexpr int kImageUnit = kImageUnitWords * kWordElements<T>;

struct ImageParams {
  const void* x;
  const void* w;
  void* y;
  int in[3], out[3], strides[3], padding[3], dilation[3];
  int out_channels;
  int line;          // elements of an image's row
  int step;          // elements between windows that are neighbors along x
  int padding_line;  // elements in front of a row
  int run;           // elements of a window's row
  int lead;          // elements in front of it that are masked, 0 or 1
  int window_rows;   // of a window
  int run_units;     // of a window's row
  int units;         // of a window, made even
  Divider by_run_units, by_kernel_y;
  // Where a weight lies: taps in a window's order, each of the image's channels, by output
  // channels.
  int64_t w_first, w_tap, w_few, w_channel;
  int kernel_x;
  Divider by_few;
  // A tile: `tile_y` rows of `tile_x` windows of one plane. Products take 16 of them, one row after
  // the other.
  int tile_x, tile_y;
  Divider by_tile_x;
  int tiles, tile_step;  // in all, between those of a block
  int stages;            // 2, or 1: the next tile is then copied when this one is done
  int column_tiles;      // of output channels
  Divider by_tiles_x, by_tiles_y, by_out_z;
  // What is staged of the image for a tile: the planes that a window reads, and their rows.
  int planes, plane_rows, row_words, row_pieces;
  int copy_lanes;  // threads that copy a row
  int64_t plane;   // elements between planes that are staged
};

// Shared memory: one or two stages of the image, the weights in the order that lanes read them, and
// for each two units and each of four lanes the words of the window and their masks, for each unit
// and lane where the weights of that word's elements lie, and where each window of a tile is.
constexpr int64_t ImageStageBytes(int64_t rows, int64_t row_words) {
  return (rows * row_words + 4) * 4;
}
constexpr int64_t ImageWeightsBytes(int64_t units) {
  return units * kImageUnitWords * kImageColumns * 4;
}
constexpr int64_t ImageTableBytes(int64_t units, int64_t windows) {
  return units * 4 * 16 + windows * 16;
}

// Products of 8 columns of which a lane's columns are neighbors, 16 bytes of the result.
template <typename T>
constexpr int kImageStored = kPieceElements<T> / 2;

// The output channel of column `column` of a warp's n-th product of 8, of 8.
template <typename T>
__device__ inline int ImageChannel(int n, int column) {
  constexpr int kStored = kImageStored<T>;
  return n / kStored * (8 * kStored) + column / 2 * (2 * kStored) + n % kStored * 2 + column % 2;
}

// What a lane reads of two units. The first in bytes; one more says that its row of the image is an
// odd number of rows behind the window's first one.
struct alignas(16) ImageWords {
  uint32_t first, first_mask;
  uint32_t second, second_mask;
};

// A window of a tile, from the tile's first one.
struct alignas(16) ImageWindow {
  int element;  // of what is staged
  int pixel;    // of the result
  int x, y;
};

// Where a lane's windows begin, of which it has every eighth of 32: a word, and the bits before it.
// With Starts::kOddRows this depends on the row that is read: the second is for those an odd number
// of rows behind a window's first one.
struct ImageStart {
  const unsigned char* word;
  uint32_t shift;
};
template <Starts kStarts>
using ImageStarts = ImageStart[kStarts == Starts::kOddRows ? 2 : 1][2][2];

// A lane's operands of two units: a word of both, of each of its windows.
template <typename T, Starts kStarts>
__device__ inline void LoadImage(const ImageStarts<kStarts>& starts, const ImageWords& words,
                                 uint32_t (&a)[2][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int m = i / 4, half = i / 2 % 2, below = i % 2;
    uint32_t at = half ? words.second : words.first;
    ImageStart start = starts[0][m][below];
    if constexpr (kStarts == Starts::kOddRows) {
      if (at & 1) start = starts[1][m][below];
      at &= ~1u;
    }
    const uint32_t* const pair = reinterpret_cast<const uint32_t*>(start.word + at);
    uint32_t value = pair[0];
    if constexpr (kStarts != Starts::kWords) value = __funnelshift_r(value, pair[1], start.shift);
    a[m][half * 2 + below] =
        MultipliedWord<T>(value & (half ? words.second_mask : words.first_mask));
  }
}

// Multiplies 32 windows with kProducts times 8 columns.
template <typename T, Starts kStarts, int kProducts>
__device__ inline void MultiplyImage(const ImageStarts<kStarts>& starts, const ImageWords* table,
                                     int units, const uint4* weights, float (&sums)[2][8][4]) {
  uint32_t a[2][4];
  LoadImage<T, kStarts>(starts, *table, a);
#pragma unroll 2
  for (int unit = 2; unit <= units; unit += 2) {
    // Of the next two units, so that nothing waits; behind the last, of the last again.
    if (unit < units) table += 4;
    uint32_t next[2][4];
    LoadImage<T, kStarts>(starts, *table, next);
#pragma unroll
    for (int n = 0; n < kProducts; n += 2) {
      const uint4 b = weights[n * 16];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        MultiplyAdd(static_cast<const T*>(nullptr), a[m], b.x, b.y, sums[m][n]);
        MultiplyAdd(static_cast<const T*>(nullptr), a[m], b.z, b.w, sums[m][n + 1]);
      }
    }
    weights += 128;
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = next[i / 4][i % 4];
  }
}

// Writes the neighboring channels that a lane has of a window: of each product, from `first` on,
// two sums of the window's half.
template <typename T>
__device__ inline void StoreImage(const float (&sums)[8][4], int first, int half, T* to) {
  if constexpr (sizeof(T) == 2) {
    uint32_t words[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float* const of = sums[first + n] + half * 2;
      words[n] = RoundedPair(static_cast<const T*>(nullptr), of[0], of[1]);
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    const float *const of = sums[first] + half * 2, *const next = sums[first + 1] + half * 2;
    *reinterpret_cast<float4*>(to) = make_float4(of[0], of[1], next[0], next[1]);
  }
}

// kPiece elements are copied at once, of 16 or 4 bytes.
template <typename T, int kPiece, Starts kStarts, int kThreads>
__global__ void __launch_bounds__(kThreads, kImageBlocks<kThreads>)
    ImageProduct(const __grid_constant__ ImageParams p) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int block = static_cast<int>(blockIdx.x);
  const int first_channel = block % p.column_tiles * kImageColumns;
  const int first_tile = block / p.column_tiles;
  const int stage_words = p.planes * p.plane_rows * p.row_words + 4;

  uint32_t* const stages = SharedMemory<uint32_t>();
  uint32_t* const weights = stages + p.stages * stage_words;
  uint2* const table =
      reinterpret_cast<uint2*>(weights + p.units * (kImageUnitWords * kImageColumns));
  int2* const places = reinterpret_cast<int2*>(table + p.units * 4);
  ImageWindow* const windows = reinterpret_cast<ImageWindow*>(places + p.units * 4);
  const int tile_windows = p.tile_x * p.tile_y;
  // Whether more than half of the columns are output channels.
  const bool both_halves = p.out_channels - first_channel > kImageColumns / 2;

  struct Place {
    int image, z, y, x;  // of a tile's first window
  };
  const auto place_of = [&](int tile) {
    Place place;
    place.x = p.by_tiles_x.Split(&tile) * p.tile_x;
    place.y = p.by_tiles_y.Split(&tile) * p.tile_y;
    place.z = p.by_out_z.Split(&tile);
    place.image = tile;
    return place;
  };
  // The element of the image's row at which the tile's first window begins, and at which what is
  // staged does.
  const auto first_element = [&](const Place& at) { return at.x * p.step - p.padding_line; };
  const auto first_staged = [](int element) { return element & ~(kPiece - 1); };

  // The row of x, counted through all images, that the tile's first window reads first.
  const auto first_line_of = [&](const Place& at) {
    return (static_cast<int64_t>(at.image) * p.in[0] + at.z * p.strides[0] - p.padding[0]) *
               p.in[1] +
           at.y * p.strides[1] - p.padding[1];
  };

  const auto copy = [&](int tile, uint32_t* to) {
    const Place at = place_of(tile);
    const int first = first_staged(first_element(at));
    const int first_z = at.z * p.strides[0] - p.padding[0];
    const int first_y = at.y * p.strides[1] - p.padding[1];
    const int64_t line = first_line_of(at);
    const T* const tile_from = static_cast<const T*>(p.x) + line * p.line + first;
    const int row_step = kThreads / p.copy_lanes, first_row = thread / p.copy_lanes;
    const int plane_lines = p.dilation[0] * p.in[1];
    const T* plane_from = tile_from + static_cast<int64_t>(first_row) * p.line;
    for (int plane = 0; plane < p.planes; ++plane, plane_from += p.plane) {
      const bool plane_exists = Inside(first_z + plane * p.dilation[0], p.in[0]);
      const T* from = plane_from;
      uint32_t* staged = to + (plane * p.plane_rows + first_row) * p.row_words;
      for (int row = first_row; row < p.plane_rows; row += row_step) {
        const bool line_exists = plane_exists & Inside(first_y + row, p.in[1]);
        const int in_front =
            kStarts == Starts::kOddRows ? ElementsInFront(line + plane * plane_lines + row) : 0;
        for (int piece = thread % p.copy_lanes; piece < p.row_pieces; piece += p.copy_lanes) {
          if constexpr (kStarts == Starts::kOddRows) {
            const int element = first + piece * 2 - in_front;
            CopyWord(staged + piece, from + piece * 2 - in_front,
                     line_exists & Inside(element, p.line),
                     line_exists & Inside(element + 1, p.line));
            continue;
          }
          CopyAsync<kPiece* static_cast<int>(sizeof(T))>(
              staged + piece * (kPiece / kWordElements<T>), from + piece * kPiece,
              line_exists & Inside(first + piece * kPiece, p.line));
        }
        from += static_cast<int64_t>(row_step) * p.line;
        staged += row_step * p.row_words;
      }
    }
  };

  copy(first_tile, stages);
  CommitCopies();

  for (int i = thread; i < p.units * 4; i += kThreads) {
    int row = i / 4;
    const int word = p.by_run_units.Split(&row) * kImageUnitWords + i % 4;
    const int element = word * kWordElements<T> - p.lead;
    const bool exists = row < p.window_rows, low = exists && Inside(element, p.run);
    const bool high = kWordElements<T> == 1 ? low : exists && Inside(element + 1, p.run);
    int z = row;
    const int y = p.by_kernel_y.Split(&z);
    const int line = z * p.plane_rows + y * p.dilation[1];
    const uint32_t behind =
        kStarts == Starts::kOddRows
            ? static_cast<uint32_t>(z * p.dilation[0] * p.in[1] + y * p.dilation[1]) & 1
            : 0;
    // As ImageWords: two units' words of a lane are neighbors.
    table[i / 8 * 8 + i % 4 * 2 + i / 4 % 2] =
        make_uint2(low || high ? static_cast<uint32_t>(line * p.row_words + word) * 4 + behind : 0,
                   (low ? 0xffffu : 0) | (high ? 0xffff0000u : 0));
    const auto place_of_weight = [&](int of_row) {
      int tap = of_row;
      const int few = p.by_few.Split(&tap);
      tap += row * p.kernel_x;
      return static_cast<int>(p.w_first + tap * p.w_tap + few * p.w_few);
    };
    places[i] =
        make_int2(low ? place_of_weight(element) : -1, high ? place_of_weight(element + 1) : -1);
  }
  for (int i = thread; i < tile_windows; i += kThreads) {
    int y = i;
    const int x = p.by_tile_x.Split(&y);
    windows[i] = {y * p.strides[1] * p.row_words * kWordElements<T> + x * p.step, y * p.out[2] + x,
                  x, y};
  }
  __syncthreads();

  // The weights for each word of two units, by 128 threads: of these, thread / 16 is the column of
  // 8 products of 8, thread / 4 % 4 the word of a unit.
  {
    const int part = thread % 4, word = thread / 4 % 4;
    const T* from[4];
    bool exists[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int channel = first_channel + ImageChannel<T>(n * 2 + part / 2, thread / 16 % 8);
      exists[n] = channel < p.out_channels;
      from[n] = static_cast<const T*>(p.w) + (exists[n] ? channel * p.w_channel : 0);
    }
#pragma unroll 4
    for (int unit = thread / 128 * 2; unit < p.units; unit += kThreads / 64) {
      const int2 at = places[(unit + part % 2) * 4 + word];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        weights[(unit * 2 + n) * 128 + thread % 128] =
            WordOf(from[n] + max(at.x, 0), exists[n] && at.x >= 0, from[n] + max(at.y, 0),
                   exists[n] && at.y >= 0);
      }
    }
  }

  const int g = lane / 4, t = lane % 4;
  const ImageWords* const table_of_lane = reinterpret_cast<const ImageWords*>(table) + t;
  const uint4* const weights_of_lane = reinterpret_cast<const uint4*>(weights) + lane;
  int stage = 0;
  for (int tile = first_tile; tile < p.tiles; tile += p.tile_step) {
    const uint32_t* const staged = stages + stage * stage_words;
    const bool is_last = tile + p.tile_step >= p.tiles;
    if (p.stages == 2) {
      stage ^= 1;
      if (!is_last) copy(tile + p.tile_step, stages + stage * stage_words);
      CommitCopies();
      WaitForCopies<1>();
    } else {
      WaitForCopies<0>();
    }
    __syncthreads();
    const Place at = place_of(tile);
    const int element = first_element(at);
    const int offset = element - first_staged(element) - p.lead;
    const int64_t first_line = first_line_of(at);

    const int64_t line = (static_cast<int64_t>(at.image) * p.out[0] + at.z) * p.out[1] + at.y;
    T* const tile_to = static_cast<T*>(p.y) + (line * p.out[2] + at.x) * p.out_channels +
                       first_channel + t * kPieceElements<T>;
    for (int first = warp * 32; first < tile_windows; first += kThreads) {
      ImageStarts<kStarts> starts;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const ImageWindow& window = windows[min(first + i * 8 + g, tile_windows - 1)];
        const int start = offset + window.element;
        int in_front = 0;
        if constexpr (kStarts == Starts::kOddRows) {
          in_front = ElementsInFront(first_line + window.y * p.strides[1]);
        }
#pragma unroll
        for (ImageStart(&of_rows)[2][2] : starts) {
          const int begin = start + in_front;
          of_rows[i / 2][i % 2] = {reinterpret_cast<const unsigned char*>(staged) +
                                       (begin >> (kWordElements<T> - 1)) * 4,
                                   static_cast<uint32_t>(begin & 1) * 16};
          in_front ^= 1;
        }
      }
      float sums[2][8][4] = {};
      if (both_halves) {
        MultiplyImage<T, kStarts, 8>(starts, table_of_lane, p.units, weights_of_lane, sums);
      } else {
        MultiplyImage<T, kStarts, 4>(starts, table_of_lane, p.units, weights_of_lane, sums);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int window = first + i * 8 + g;
        const ImageWindow place = windows[min(window, tile_windows - 1)];
        const bool exists =
            (window < tile_windows) & (at.y + place.y < p.out[1]) & (at.x + place.x < p.out[2]);
        T* const to = tile_to + static_cast<int64_t>(place.pixel) * p.out_channels;
#pragma unroll
        for (int n = 0; n < 8; n += kImageStored<T>) {
          if (n >= 4 && !both_halves) break;
          if (exists && first_channel + n * 8 + t * kPieceElements<T> < p.out_channels) {
            StoreImage(sums[i / 2], n, i % 2, to + n * 8);
          }
        }
      }
    }
    __syncthreads();  // the next copy overwrites what was read
    if (p.stages == 1 && !is_last) {
      copy(tile + p.tile_step, stages);
      CommitCopies();
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_CUH_
