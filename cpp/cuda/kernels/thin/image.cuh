// fprop of a thin image: stems, and the first layers of audio and medical networks.
// (dgrad with a thin y is served too, if y's gradient is the image: image_plan.h.)
//
// Padding each pixel to 16 bytes would waste most of the tensor cores' work. But a window's row is
// kernel x * channels elements that are neighbors in memory, so what is padded is the row: to
// units of 16 bytes, half of the depth of a product. The image's rows are staged as they lie, and a
// lane's operands are read right from there, a word at a time: a pair of 16-bit elements or a
// float. Elements behind a row, or in front where it begins at an odd one, are masked: they belong
// to other windows, and a NaN there is none of this one's.
//
// A tile is multiplied in one step, or in one for each plane that its windows read, whose sums stay
// in registers: of large windows with three axes, shared memory does not hold all planes at once.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/thin/starts.cuh"

namespace jax_convgrad {

// A block has kThreads: few, of several blocks, or all that registers are enough for, which share
// the weights.
constexpr int kImageThreads = 128, kImageManyThreads = 512;
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
  int stored;        // bytes of the result that are written at once, 16 or less
  int line;          // elements of an image's row
  int step;          // elements between windows that are neighbors along x
  int padding_line;  // elements in front of a row
  int run;           // elements of a window's row
  int lead;          // elements in front of it that are masked, 0 or 1
  int run_units;     // of a window's row
  // A window's steps: rows of each, units of each, made even, and units of all.
  int steps, step_rows, step_units, units;
  Divider by_run_units, by_kernel_y, by_step_units, by_units;
  // Where a weight lies: taps in a window's order, each of the image's channels, by output
  // channels.
  int w_first, w_tap, w_few, w_channel;
  bool channels_together;  // closer in memory than taps
  int kernel_x;
  Divider by_few;
  // A tile: `tile_y` rows of `tile_x` windows of one plane. A warp takes 32 of them at a time, one
  // row after the other.
  int tile_x, tile_y;
  Divider by_tile_x;
  int tiles, tile_step;  // in all, between those of a block
  int stages;            // 2, or 1: the next tile is then copied when this one is done
  int column_tiles;      // of output channels
  Divider by_tiles_x, by_tiles_y, by_out_z;
  // What is staged of the image for a step of a tile: the planes that it reads, and their rows.
  int planes, plane_rows, row_words, row_pieces;
  int copy_bits;  // 2 to the power of these are the threads that copy a row
  int64_t plane;  // elements between planes that are staged
};

// Shared memory: the weights in the order that products read them, one or two stages of the image,
// and for each two units and each of four lanes the words of the window and their masks, for each
// unit and lane where the weights of that word's elements lie, where each window of a tile is, and
// 16 bytes of each warp.
constexpr int64_t ImageStageBytes(int64_t rows, int64_t row_words) {
  return (rows * row_words + 4) * 4;
}
constexpr int64_t ImageWeightsBytes(int64_t units) {
  return units * kImageUnitWords * kImageColumns * 4;
}
constexpr int64_t ImageTableBytes(int64_t units, int64_t windows, int64_t threads) {
  return units * 4 * 16 + (windows + threads / 32) * 16;
}

// Products of 8 columns of which a lane's columns are neighbors, 16 bytes of the result.
template <typename T>
constexpr int kImageStored = kPieceElements<T> / 2;

// A column of a warp's products of 8 columns each.
struct ImageColumn {
  int product, place;
};

// The column of a block's output channel.
template <typename T>
__device__ inline ImageColumn ImageColumnOf(int channel) {
  constexpr int kStored = kImageStored<T>;
  const int of_store = channel % (2 * kStored);
  return {channel / (8 * kStored) * kStored + of_store / 2,
          channel % (8 * kStored) / (2 * kStored) * 2 + of_store % 2};
}

// A window of a tile, from the tile's first one.
struct alignas(16) ImageWindow {
  int element;  // of what is staged
  int pixel;    // of the result
  int x, y;
};

// What a warp needs to write its windows of a tile: the tile's first pixel of the result, and how
// much of the plane is right of it and below. Registers are scarce until then.
struct alignas(16) ImageKept {
  int64_t pixel;
  int columns, rows;
};

// Where a lane's windows begin, of which it has every eighth of 32: a word, and the bits before it.
struct ImageStart {
  const unsigned char* word;
  uint32_t shift;
};
using ImageStarts = ImageStart[2][2];

// A lane's operands of two units: a word of both, of each of its windows. `words` has its byte
// behind a window's begin and its mask, of the first unit and of the second.
template <typename T, Starts kStarts>
__device__ inline void LoadImage(const ImageStarts& starts, const uint4& words,
                                 uint32_t (&a)[2][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int m = i / 4, half = i / 2 % 2, below = i % 2;
    const ImageStart& start = starts[m][below];
    const uint32_t* const pair =
        reinterpret_cast<const uint32_t*>(start.word + (half ? words.z : words.x));
    uint32_t value = pair[0];
    if constexpr (kStarts == Starts::kElements) {
      value = __funnelshift_r(value, pair[1], start.shift);
    }
    a[m][half * 2 + below] = MultipliedWord<T>(value & (half ? words.w : words.y));
  }
}

// What multiplies windows with weights: each warp, 32 windows at once.
template <typename T, Starts kStarts>
struct ImageWarpProducts {
  static constexpr int kWarps = 1;  // that multiply together
  // Whether Multiply overwrites the sums in a window's first step; else they are zeros before.
  static constexpr bool kOverwrites = false;

  // After the weights are written.
  static __device__ void ShowWeights() {}

  // The word at which a unit's word lies of the weights of column `column` of a product, of 8.
  static __device__ int PlaceOf(int unit, int word, int product, int column) {
    return (unit / 2 * 4 + product / 2) * 128 + column * 16 + word * 4 + product % 2 * 2 + unit % 2;
  }

  // Adds the products of a lane's windows with kProducts times 8 columns, of `units` units from
  // `unit` on.
  template <int kProducts>
  static __device__ void Multiply(const ImageStarts& starts, const uint4* table,
                                  const uint32_t* weights, int unit, int units,
                                  float (&sums)[2][8][4], bool /*is_first_step*/) {
    const uint4* of_lane = reinterpret_cast<const uint4*>(weights) + unit * 64 + threadIdx.x % 32;
#pragma unroll 1
    for (int i = 0; i < units; i += 2) {
      uint32_t a[2][4];
      LoadImage<T, kStarts>(starts, *table, a);
#pragma unroll
      for (int n = 0; n < kProducts; n += 2) {
        const uint4 b = of_lane[n * 16];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          MultiplyAdd(static_cast<const T*>(nullptr), a[m], b.x, b.y, sums[m][n]);
          MultiplyAdd(static_cast<const T*>(nullptr), a[m], b.z, b.w, sums[m][n + 1]);
        }
      }
      table += 4;
      of_lane += 128;
    }
  }
};

// The neighboring channels that a lane has of a window: of each product, from `first` on, two sums
// of the window's half.
template <typename T>
__device__ inline void RoundImage(const float (&sums)[8][4], int first, int half,
                                  uint32_t (&words)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 2) {
      const float* const of = sums[first + i] + half * 2;
      words[i] = RoundedPair(static_cast<const T*>(nullptr), of[0], of[1]);
    } else {
      words[i] = BitsOf<uint32_t>(sums[first + i / 2][half * 2 + i % 2]);
    }
  }
}

// Writes the first `channels` of them, or all if the result has more, `bytes` bytes at once, which
// divide the bytes of a pixel and are less than 16.
template <typename T>
__device__ inline void StorePart(const uint32_t (&words)[4], T* to, int channels, int bytes) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int left = channels - i * kWordElements<T>;
    T* const at = to + i * kWordElements<T>;
    if (left <= 0) break;
    if (bytes == 8) {
      if (i % 2 == 0) *reinterpret_cast<uint2*>(at) = make_uint2(words[i], words[i + 1]);
    } else if (bytes == 4) {
      *reinterpret_cast<uint32_t*>(at) = words[i];
    } else if constexpr (sizeof(T) == 2) {
      at[0] = BitsOf<T>(static_cast<uint16_t>(words[i]));
      if (left > 1) at[1] = BitsOf<T>(static_cast<uint16_t>(words[i] >> 16));
    }
  }
}

// kPiece elements are copied at once, of 16 or 4 bytes. Of rows with an odd number of 16-bit
// elements every second one begins between two words: these go through registers.
template <typename T, int kPiece, Starts kStarts, int kThreads, typename Products>
__global__ void __launch_bounds__(kThreads, kImageBlocks<kThreads>)
    ImageProduct(const __grid_constant__ ImageParams p) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int block = static_cast<int>(blockIdx.x);
  const int first_channel = block % p.column_tiles * kImageColumns;
  const int first_tile = block / p.column_tiles;
  const int stage_words = p.planes * p.plane_rows * p.row_words + 4;

  uint32_t* const weights = SharedMemory<uint32_t>();
  uint32_t* const stages = weights + p.units * (kImageUnitWords * kImageColumns);
  uint2* const table = reinterpret_cast<uint2*>(stages + p.stages * stage_words);
  int2* const places = reinterpret_cast<int2*>(table + p.units * 4);
  ImageWindow* const windows = reinterpret_cast<ImageWindow*>(places + p.units * 4);
  const int tile_windows = p.tile_x * p.tile_y;
  ImageKept* const kept = reinterpret_cast<ImageKept*>(windows + tile_windows) + warp;

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

  // Copies a row of what is staged, from element `first` of the image's row on.
  const int copy_lanes = 1 << p.copy_bits, first_piece = thread & (copy_lanes - 1);
  const auto copy_row = [&](uint32_t* to, const T* from, int first, bool exists) {
    if constexpr (kPiece == 2 && sizeof(T) == 2) {
      if (p.line % 2 != 0) {
        const int line = exists ? p.line : 0;
        CopyOddRow(to, from - first, first, line, first_piece, copy_lanes, p.row_pieces);
        return;
      }
    }
    for (int piece = first_piece; piece < p.row_pieces; piece += copy_lanes) {
      CopyAsync<kPiece* static_cast<int>(sizeof(T))>(
          to + piece * (kPiece / kWordElements<T>), from + piece * kPiece,
          exists & Inside(first + piece * kPiece, p.line));
    }
  };

  const auto copy = [&](int tile, int step, uint32_t* to) {
    const Place at = place_of(tile);
    const int first = first_staged(first_element(at));
    // Of several steps, each has one plane.
    const int first_z = at.z * p.strides[0] - p.padding[0] + step * p.dilation[0];
    const int first_y = at.y * p.strides[1] - p.padding[1];
    // The row that the tile's first window reads first, counted through all images.
    const int64_t line = (static_cast<int64_t>(at.image) * p.in[0] + first_z) * p.in[1] + first_y;
    const int row_step = kThreads >> p.copy_bits, first_row = thread >> p.copy_bits;
    const T* plane_from = static_cast<const T*>(p.x) + (line + first_row) * p.line + first;
    for (int plane = 0; plane < p.planes; ++plane, plane_from += p.plane) {
      const bool plane_exists = Inside(first_z + plane * p.dilation[0], p.in[0]);
      const T* from = plane_from;
      uint32_t* staged = to + (plane * p.plane_rows + first_row) * p.row_words;
      for (int row = first_row; row < p.plane_rows; row += row_step) {
        const bool line_exists = plane_exists & Inside(first_y + row, p.in[1]);
        copy_row(staged, from, first, line_exists);
        from += static_cast<int64_t>(row_step) * p.line;
        staged += row_step * p.row_words;
      }
    }
  };

  copy(first_tile, 0, stages);
  CommitCopies();

  for (int i = thread; i < p.units * 4; i += kThreads) {
    int step = i / 4;
    int row = p.by_step_units.Split(&step);
    const int word = p.by_run_units.Split(&row) * kImageUnitWords + i % 4;
    const int element = word * kWordElements<T> - p.lead;
    const bool exists = row < p.step_rows, low = exists && Inside(element, p.run);
    const bool high = kWordElements<T> == 1 ? low : exists && Inside(element + 1, p.run);
    int z = row;
    const int y = p.by_kernel_y.Split(&z);
    const int line = z * p.plane_rows + y * p.dilation[1];
    // As LoadImage reads it: two units' words of a lane are neighbors.
    table[i / 8 * 8 + i % 4 * 2 + i / 4 % 2] =
        make_uint2(low || high ? static_cast<uint32_t>(line * p.row_words + word) * 4 : 0,
                   (low ? 0xffffu : 0) | (high ? 0xffff0000u : 0));
    const auto place_of_weight = [&](int of_row) {
      int tap = of_row;
      const int few = p.by_few.Split(&tap);
      tap += (step * p.step_rows + row) * p.kernel_x;
      return p.w_first + tap * p.w_tap + few * p.w_few;
    };
    // Of elements that are masked, any weight.
    places[i] =
        make_int2(low ? place_of_weight(element) : 0, high ? place_of_weight(element + 1) : 0);
  }
  for (int i = thread; i < tile_windows; i += kThreads) {
    int y = i;
    const int x = p.by_tile_x.Split(&y);
    windows[i] = {y * p.strides[1] * p.row_words * kWordElements<T> + x * p.step, y * p.out[2] + x,
                  x, y};
  }
  __syncthreads();

  const T* const w = static_cast<const T*>(p.w);
  // A thread takes the weights of a unit and a channel. Neighbors have channels, or units, that are
  // neighbors in memory.
  for (int i = thread; i < p.units * kImageColumns; i += kThreads) {
    int channel = i % kImageColumns, unit = i / kImageColumns;
    if (!p.channels_together) {
      channel = i;
      unit = p.by_units.Split(&channel);
    }
    const bool exists = first_channel + channel < p.out_channels;
    const int of_channel = exists ? (first_channel + channel) * p.w_channel : 0;
    uint32_t words[kImageUnitWords];
#pragma unroll
    for (int word = 0; word < kImageUnitWords; ++word) {
      const int2 at = places[unit * kImageUnitWords + word];
      const uint32_t mask = exists ? table[unit / 2 * 8 + word * 2 + unit % 2].y : 0;
      words[word] = WordOf(w + (of_channel + at.x), w + (of_channel + at.y)) & mask;
    }
    const ImageColumn column = ImageColumnOf<T>(channel);
#pragma unroll
    for (int word = 0; word < kImageUnitWords; ++word) {
      weights[Products::PlaceOf(unit, word, column.product, column.place)] = words[word];
    }
  }

  Products::ShowWeights();
  const int g = lane / 4, t = lane % 4;
  const uint4* const table_of_lane = reinterpret_cast<const uint4*>(table) + t;
  // Multiplies all tiles with `products` times 8 columns.
  const auto multiply = [&](auto products) {
    constexpr int kProducts = decltype(products)::value;
    int stage = 0, step = 0;
    float sums[2][8][4] = {};
    for (int tile = first_tile; tile < p.tiles;) {
      const uint32_t* const staged = stages + stage * stage_words;
      const int this_step = step;
      const bool is_last_step = this_step + 1 == p.steps;
      step = is_last_step ? 0 : this_step + 1;
      const int next_tile = is_last_step ? tile + p.tile_step : tile;
      if (p.stages == 2) {
        stage ^= 1;
        if (next_tile < p.tiles) copy(next_tile, step, stages + stage * stage_words);
        CommitCopies();
        WaitForCopies<1>();
      } else {
        WaitForCopies<0>();
      }
      __syncthreads();
      const Place at = place_of(tile);
      const int element = first_element(at);
      const int offset = element - first_staged(element) - p.lead;
      const int first_unit = this_step * p.step_units;
      const uint4* const of_step = table_of_lane + first_unit * 2;

      if (is_last_step && lane == 0) {
        const int64_t line = (static_cast<int64_t>(at.image) * p.out[0] + at.z) * p.out[1] + at.y;
        *kept = {line * p.out[2] + at.x, p.out[2] - at.x, p.out[1] - at.y};
      }
      __syncwarp();
      // Of several steps, a warp has 32 windows at most: their sums wait for the next one.
      constexpr int kWarps = Products::kWarps;
      for (int together = warp / kWarps * (kWarps * 32); together < tile_windows;
           together += kThreads) {
        const int first = together + warp % kWarps * 32;
        ImageStarts starts;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int begin = offset + windows[min(first + i * 8 + g, tile_windows - 1)].element;
          starts[i / 2][i % 2] = {reinterpret_cast<const unsigned char*>(staged) +
                                      (begin >> (kWordElements<T> - 1)) * 4,
                                  static_cast<uint32_t>(begin & 1) * 16};
        }
        Products::template Multiply<kProducts>(starts, of_step, weights, first_unit, p.step_units,
                                               sums, this_step == 0);
        if (!is_last_step) break;
        const ImageKept tile_at = *kept;
        T* const tile_to = static_cast<T*>(p.y) + tile_at.pixel * p.out_channels + first_channel +
                           t * kPieceElements<T>;
        const auto store = [&](auto whole) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int window = first + i * 8 + g;
            const ImageWindow place = windows[min(window, tile_windows - 1)];
            const bool exists =
                (window < tile_windows) & (place.y < tile_at.rows) & (place.x < tile_at.columns);
            T* const to = tile_to + static_cast<int64_t>(place.pixel) * p.out_channels;
#pragma unroll
            for (int n = 0; n < kProducts; n += kImageStored<T>) {
              const int channels = p.out_channels - first_channel - n * 8 - t * kPieceElements<T>;
              if (!exists || channels <= 0) continue;
              uint32_t words[4];
              RoundImage<T>(sums[i / 2], n, i % 2, words);
              if constexpr (decltype(whole)::value) {
                *reinterpret_cast<uint4*>(to + n * 8) =
                    make_uint4(words[0], words[1], words[2], words[3]);
              } else {
                StorePart(words, to + n * 8, channels, p.stored);
              }
            }
          }
        };
        if (p.stored == 16) {
          store(std::true_type());
        } else {
          store(std::false_type());
        }
        if constexpr (!Products::kOverwrites) {
#pragma unroll
          for (int i = 0; i < 64; ++i) sums[i / 32][i / 4 % 8][i % 4] = 0;
        }
      }
      __syncthreads();  // the next copy overwrites what was read
      if (p.stages == 1 && next_tile < p.tiles) {
        copy(next_tile, step, stages);
        CommitCopies();
      }
      tile = next_tile;
    }
  };
  if (p.out_channels - first_channel > kImageColumns / 2) {
    multiply(std::integral_constant<int, 8>());
  } else {
    multiply(std::integral_constant<int, 4>());
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_CUH_
