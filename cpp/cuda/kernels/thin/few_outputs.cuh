// fprop and dgrad with few channels in the result: the last layers of decoders and generators,
// mask, image and audio heads, and a stem's dgrad.
//
// A product whose columns are the few channels would waste most of a tensor core and read each
// element of the source once for every tap. Here the columns are channels of the result times taps
// along x, and what is multiplied is the source's pixels: the source is read once for each row of
// taps. Each pixel's products belong to several neighbours in the result, which are then added
// along x, in the order of the taps.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/thin/ring.cuh"

namespace jax_convgrad {

constexpr int kFewThreads = 256;
// Of a multiprocessor, as registers allow.
template <int kColumns>
constexpr int kFewBlocks = kColumns < 4 ? 2 : 1;
constexpr int kFewUnits = 2;  // of a warp: 32 pixels of the source, for one row of the result
constexpr int kFewTileUnits = kFewUnits * kFewThreads / 32;
constexpr int kFewPieces = 4;  // of 16 bytes, of a pixel in a step
constexpr int kFewPixelBytes = kFewPieces * 16;
constexpr int kFewCopied = kFewThreads / kFewPieces;  // pixels, at once
constexpr int kFewAdded = 4;                          // elements that a thread adds at once

// Channels of the source in a step.
template <typename T>
constexpr int kFewDepth = kFewPieces * kPieceElements<T>;

// Floats between the products of two neighbouring pixels. An odd number of eights: four pixels then
// begin in different banks.
template <int kColumns>
constexpr int kFewPitch = 8 * (kColumns | 1);

// dgrad along an axis: the taps that read anything for a position of the result, and what they
// read. With strides and dilation divided by their common factor: every stride-th tap, and a
// position less by the dilation each time.
struct FewAxis {
  int common = 1;  // factor of stride and dilation
  int stride = 1, dilation = 1;
  int inverse = 1;  // of the dilation, modulo the stride
  // Added to a position of the result, padding included, so that nothing below is negative.
  int shift = 0, shift_strides = 0;
  // The same for the first position that is read, which is rounded up to whole strides.
  int first_shift = 0, first_strides = 0;
  Divider by_common, by_stride, by_whole_stride;
};

struct FewParams {
  const void* source;
  const void* w;
  void* result;
  int source_size[3], result_size[3];
  int kernel[3], strides[3], padding[3], dilation[3];
  int channels;                     // of the source
  int few;                          // of the result
  int columns;                      // few * kernel x
  int64_t w_tap, w_channel, w_few;  // elements between weights
  int steps;                        // of kFewDepth
  int stages;                       // of steps in shared memory at once: 2, 3 or 4
  int tile_x;                       // pixels of the source, a multiple of 32
  int tile_y;                       // rows of the result
  int result_x;                     // pixels of the result that a tile has
  int source_rows, source_planes;   // that a tile reads
  // A thread copies every `across`-th pixel of every `copy_rows`-th row.
  int across, copy_rows;
  int64_t source_jump, source_plane;  // elements between such rows, and between planes
  int tiles, tile_step;               // in all, between those of a block
  // Threads that add up the elements of a row of a tile, and how many rows are added at once. Where
  // the threads are fewer than the elements, their number is a multiple of FewPeriod, so that a
  // thread's elements have the same taps: they read what is `add_pixels` of the source apart.
  int add_lanes, add_rows, add_pixels;
  bool add_along_x;  // several elements of a row at once, not of a column
  Divider by_units_x, by_steps, by_add_lanes, by_add_rows, by_few;
  Divider by_tiles_x, by_tiles_y, by_planes;
  FewAxis axes[3];
};

__device__ inline int FewStageBytes(const FewParams& p) {
  return p.source_planes * p.source_rows * p.tile_x * kFewPixelBytes;
}

// The first position of the source that result `at` reads along an axis, inside or not.
template <bool kDgrad>
__device__ inline int FirstRead(const FewParams& p, int axis, int at) {
  if constexpr (!kDgrad) return at * p.strides[axis] - p.padding[axis];
  const FewAxis& a = p.axes[axis];
  return a.by_whole_stride.Quotient(at + a.first_shift) - a.first_strides;
}

// The taps that read for result `at`: `tap`, the one `tap_step` behind it, and so on. They read
// `source`, what is `source_step` behind it, and so on, inside the source or not.
struct FewTaps {
  int tap, tap_step;
  int source, source_step;
};

template <bool kDgrad>
__device__ inline FewTaps TapsOf(const FewParams& p, int axis, int at) {
  if constexpr (!kDgrad) {
    return {0, 1, at * p.strides[axis] - p.padding[axis], p.dilation[axis]};
  }
  const FewAxis& a = p.axes[axis];
  int shifted = at + a.shift;
  if (a.common != 1 && a.by_common.Split(&shifted) != 0) return {p.kernel[axis], 1, 0, 0};
  int source = shifted;
  int tap = a.by_stride.Split(&source);
  if (a.dilation != 1) {
    int product = tap * a.inverse;
    tap = a.by_stride.Split(&product);
    source = a.by_stride.Quotient(shifted - tap * a.dilation);
  }
  return {tap, a.stride, source - a.shift_strides, -a.dilation};
}

template <typename Number>
__device__ inline void Exchange(Number* one, Number* other) {
  const Number kept = *one;
  *one = *other;
  *other = kept;
}

// Adds up the products of `count` elements of the result. They are `jump` floats apart, and
// `result_jump` elements.
template <typename T, int kPitch>
__device__ inline void AddProducts(const FewTaps& taps, int kernel, int few, const float* products,
                                   int jump, T* result, int64_t result_jump, int count) {
  const int tap_jump = taps.tap_step * few + taps.source_step * kPitch;
  for (; count > 0; count -= kFewAdded) {
    float sums[kFewAdded] = {};
    const float* from = products;
    for (int tap = taps.tap; tap < kernel; tap += taps.tap_step, from += tap_jump) {
#pragma unroll
      for (int i = 0; i < kFewAdded; ++i) {
        if (i < count) sums[i] += from[i * jump];
      }
    }
#pragma unroll
    for (int i = 0; i < kFewAdded; ++i) {
      if (i < count) Narrow(sums[i], result + i * result_jump);
    }
    products += kFewAdded * jump;
    result += kFewAdded * result_jump;
  }
}

// kColumns products of 8 columns each. Steps go through all tiles of a block, as in WindowsProduct.
template <typename T, bool kDgrad, int kColumns>
__global__ void __launch_bounds__(kFewThreads, kFewBlocks<kColumns>)
    FewOutputs(const __grid_constant__ FewParams p) {
  constexpr int kPitch = kFewPitch<kColumns>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int first_tile = static_cast<int>(blockIdx.x);
  const int stage_bytes = FewStageBytes(p), row_bytes = p.tile_x * kFewPixelBytes;

  unsigned char* const stages = SharedMemory<unsigned char>();
  float* const products = reinterpret_cast<float*>(stages + p.stages * stage_bytes);
  uint4* const weights = reinterpret_cast<uint4*>(products + p.tile_y * p.tile_x * kPitch);

  struct Place {
    int image, z, y, x;  // of a tile's first pixel of the result
  };
  const auto place_of = [&](int tile) {
    Place place;
    place.x = p.by_tiles_x.Split(&tile) * p.result_x;
    place.y = p.by_tiles_y.Split(&tile) * p.tile_y;
    place.z = p.by_planes.Split(&tile);
    place.image = tile;
    return place;
  };
  // The byte of 8 channels of a pixel of a stage: eight neighbours' lie in different banks. That of
  // the pixel 8 further is 8 * kFewPixelBytes further.
  const auto place_in_stage = [](int pixel, int piece) {
    return (pixel * kFewPieces + (piece ^ (pixel / 2 % kFewPieces))) * 16;
  };

  const int copy_x = thread / kFewPieces & (p.across - 1);  // a power of two
  const int copy_row = thread / kFewPieces >= p.across;     // there are one or two
  const int copy_piece = thread % kFewPieces;
  const int copy_to = place_in_stage(copy_row * p.tile_x + copy_x, copy_piece);
  int copy_tile = first_tile, copy_step = 0, copy_stage = 0;
  int from_z = 0, from_y = 0, from_x = 0;  // of the tile that is copied
  const T* copy_from = nullptr;
  const auto copy_next = [&] {
    if (copy_tile < p.tiles) {
      if (copy_step == 0) {
        const Place at = place_of(copy_tile);
        from_z = FirstRead<kDgrad>(p, 0, at.z);
        from_y = FirstRead<kDgrad>(p, 1, at.y);
        from_x = FirstRead<kDgrad>(p, 2, at.x) + copy_x;
        const int64_t row =
            (static_cast<int64_t>(at.image) * p.source_size[0] + from_z) * p.source_size[1] +
            from_y + copy_row;
        copy_from = static_cast<const T*>(p.source) +
                    (row * p.source_size[2] + from_x) * p.channels + copy_piece * kPieceElements<T>;
      }
      const bool channels_exist =
          copy_step * kFewDepth<T> + copy_piece * kPieceElements<T> < p.channels;
      unsigned char* of_plane = stages + copy_stage * stage_bytes + copy_to;
      const T* from_plane = copy_from;
      for (int plane = 0; plane < p.source_planes; ++plane) {
        const bool plane_exists = channels_exist && Inside(from_z + plane, p.source_size[0]);
        for (int x = 0; x < p.tile_x; x += p.across) {
          const bool exists = plane_exists && Inside(from_x + x, p.source_size[2]);
          const T* from = from_plane + x * p.channels;
          unsigned char* to = of_plane + x * kFewPixelBytes;
#pragma unroll 4
          for (int line = copy_row; line < p.source_rows; line += p.copy_rows) {
            CopyAsync(to, from, exists && Inside(from_y + line, p.source_size[1]));
            from += p.source_jump;
            to += p.copy_rows * row_bytes;
          }
        }
        from_plane += p.source_plane;
        of_plane += p.source_rows * row_bytes;
      }
      copy_from += kFewDepth<T>;
      if (++copy_step == p.steps) {
        copy_step = 0;
        copy_tile += p.tile_step;
      }
      if (++copy_stage == p.stages) copy_stage = 0;
    }
    CommitCopies();
  };
  for (int i = 1; i < p.stages; ++i) copy_next();

  // By row of taps, step, eight columns, lane: four words of weights.
  {
    const int word = thread % 128, of_lane = word / 4;
    const int first = (word % 4 * 4 + of_lane % 4) * kWordElements<T>;
    const int parts = p.kernel[0] * p.kernel[1] * p.steps * kColumns;
#pragma unroll 4
    for (int part = thread / 128; part < parts; part += kFewThreads / 128) {
      int row = part / kColumns;
      const int channel = p.by_steps.Split(&row) * kFewDepth<T> + first;
      int tap = part % kColumns * 8 + of_lane / 4;  // the column
      const bool exists = tap < p.columns && channel < p.channels;
      const int few = p.by_few.Split(&tap);
      tap += row * p.kernel[2];
      // Channels are even in number.
      const T* const from = static_cast<const T*>(p.w) +
                            (exists ? tap * p.w_tap + channel * p.w_channel + few * p.w_few : 0);
      reinterpret_cast<uint32_t*>(weights)[part * 128 + word] =
          WordOf(exists ? from : nullptr, exists ? from + p.w_channel : nullptr);
    }
  }

  // The units of a warp, and what a lane reads of 16 pixels.
  int unit_row[kFewUnits], unit_pixel[kFewUnits];
#pragma unroll
  for (int u = 0; u < kFewUnits; ++u) {
    unit_row[u] = warp + u * (kFewThreads / 32);
    unit_pixel[u] = p.by_units_x.Split(&unit_row[u]) * 32;
  }
  int lane_bytes[kFewPieces / 2];
#pragma unroll
  for (int k = 0; k < kFewPieces / 2; ++k) {
    lane_bytes[k] = place_in_stage(lane % 16, k * 2 + lane / 16);
  }
  int stage = 0;
  for (int tile = first_tile; tile < p.tiles; tile += p.tile_step) {
    const Place at = place_of(tile);
    const FewTaps of_z = TapsOf<kDgrad>(p, 0, at.z);
    const int first_plane =
        of_z.tap < p.kernel[0] ? of_z.source - FirstRead<kDgrad>(p, 0, at.z) : 0;
    const int first_y = FirstRead<kDgrad>(p, 1, at.y);
    FewTaps of_y[kFewUnits];
#pragma unroll
    for (int u = 0; u < kFewUnits; ++u) {
      of_y[u] = TapsOf<kDgrad>(p, 1, at.y + unit_row[u]);
      of_y[u].source -= first_y;
      // Rows behind the tile or the result have no taps. What a row without any would read is far
      // off.
      if (unit_row[u] >= p.tile_y || at.y + unit_row[u] >= p.result_size[1]) {
        of_y[u].tap = p.kernel[1];
      }
      if (of_y[u].tap >= p.kernel[1]) of_y[u].source = 0;
    }
    float sums[kFewUnits][2][kColumns][4] = {};
    for (int step = 0; step < p.steps; ++step) {
      WaitForOldest(p.stages);
      copy_next();
      const unsigned char* const staged = stages + stage * stage_bytes;
      if (++stage == p.stages) stage = 0;
#pragma unroll
      for (int u = 0; u < kFewUnits; ++u) {
        const unsigned char* const of_unit = staged + unit_pixel[u] * kFewPixelBytes;
        int plane = first_plane;
        for (int tap_z = of_z.tap; tap_z < p.kernel[0];
             tap_z += of_z.tap_step, plane += of_z.source_step) {
          const unsigned char* from =
              of_unit + (plane * p.source_rows + of_y[u].source) * row_bytes;
          const uint4* b = weights + lane +
                           ((tap_z * p.kernel[1] + of_y[u].tap) * p.steps + step) * kColumns * 32;
          for (int tap_y = of_y[u].tap; tap_y < p.kernel[1]; tap_y += of_y[u].tap_step) {
            uint32_t a[kFewPieces / 2][2][4];
#pragma unroll
            for (int k = 0; k < kFewPieces / 2; ++k) {
#pragma unroll
              for (int m = 0; m < 2; ++m) {
                LoadMatrices(from + lane_bytes[k] + m * 16 * kFewPixelBytes, a[k][m]);
#pragma unroll
                for (uint32_t& word : a[k][m]) word = MultipliedWord<T>(word);
              }
            }
#pragma unroll
            for (int n = 0; n < kColumns; ++n) {
              const uint4 words = b[n * 32];
#pragma unroll
              for (int m = 0; m < 2; ++m) {
                MultiplyAdd(static_cast<const T*>(nullptr), a[0][m], words.x, words.y,
                            sums[u][m][n]);
              }
#pragma unroll
              for (int m = 0; m < 2; ++m) {
                MultiplyAdd(static_cast<const T*>(nullptr), a[1][m], words.z, words.w,
                            sums[u][m][n]);
              }
            }
            from += of_y[u].source_step * row_bytes;
            b += of_y[u].tap_step * p.steps * kColumns * 32;
          }
        }
      }
    }

    // The products of a tile that others still add were behind a barrier of the steps above.
#pragma unroll
    for (int u = 0; u < kFewUnits; ++u) {
      if (unit_row[u] >= p.tile_y) continue;
      float* const to =
          products + (unit_row[u] * p.tile_x + unit_pixel[u] + lane / 4) * kPitch + lane % 4 * 2;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float* const pair = sums[u][m][n] + half * 2;
            *reinterpret_cast<float2*>(to + (m * 16 + half * 8) * kPitch + n * 8) = {pair[0],
                                                                                     pair[1]};
          }
        }
      }
    }
    __syncthreads();
    int add_row = thread;
    const int add_lane = p.by_add_lanes.Split(&add_row);
    int add_x = add_lane;
    const int add_channel = p.by_few.Split(&add_x);
    const int elements = min(p.result_x, p.result_size[2] - at.x) * p.few;
    const int rows = min(p.tile_y, p.result_size[1] - at.y);
    if (add_row >= min(p.add_rows, rows) || add_lane >= elements) continue;
    const FewTaps of_x = TapsOf<kDgrad>(p, 2, at.x + add_x);
    const int pixel = of_x.source - FirstRead<kDgrad>(p, 2, at.x);
    const float* from =
        products + (add_row * p.tile_x + pixel) * kPitch + of_x.tap * p.few + add_channel;
    const int64_t line =
        (static_cast<int64_t>(at.image) * p.result_size[0] + at.z) * p.result_size[1] + at.y +
        add_row;
    T* to = static_cast<T*>(p.result) + (line * p.result_size[2] + at.x) * p.few + add_lane;
    // Several at once: down a column of the tile, or along a row if that has few rows.
    int count = p.by_add_rows.Quotient(rows - add_row - 1) + 1;
    int jump = p.add_rows * p.tile_x * kPitch;
    int64_t result_jump = int64_t{p.add_rows} * p.result_size[2] * p.few;
    int repeats = p.by_add_lanes.Quotient(elements - add_lane - 1) + 1;
    int next = p.add_pixels * kPitch;
    int64_t result_next = p.add_lanes;
    if (p.add_along_x) {
      Exchange(&count, &repeats);
      Exchange(&jump, &next);
      Exchange(&result_jump, &result_next);
    }
    for (; repeats > 0; --repeats, from += next, to += result_next) {
      AddProducts<T, kPitch>(of_x, p.kernel[2], p.few, from, jump, to, result_jump, count);
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_CUH_
