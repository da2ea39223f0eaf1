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
constexpr int kFewDepth = 32;  // of the source in a step
constexpr int kFewPieces = kFewDepth / 8;

// dgrad along an axis: the taps that read anything for a position of the result, and what they
// read. With strides and dilation divided by their common factor: every stride-th tap, and a
// position less by the dilation each time.
struct FewAxis {
  int common = 1;  // factor of stride and dilation
  int stride = 1, dilation = 1;
  int inverse = 1;  // of the dilation, modulo the stride
  // Added to a position of the result, padding included, so that nothing below is negative.
  int shift = 0, shift_strides = 0;
  Divider by_common, by_stride;
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
  int depths;                       // of 16 channels
  int steps;                        // of kFewDepth
  int stages;                       // of steps in shared memory at once: 2, 3 or 4
  int tile_x;                       // pixels of the source, a multiple of 32
  int tile_y;                       // rows of the result
  int result_x;                     // pixels of the result that a tile has
  int source_rows, source_planes;   // that a tile reads
  int tiles, tile_step;             // in all, between those of a block
  Divider by_tile_x, by_source_rows, by_units_x, by_depths;
  Divider by_few, by_result_x;
  Divider by_tiles_x, by_tiles_y, by_planes;
  FewAxis axes[3];
};

__device__ inline int FewStageBytes(const FewParams& p) {
  return p.source_planes * p.source_rows * p.tile_x * kFewDepth * 2;
}

// The first position of the source that result `at` reads along an axis, inside or not.
template <bool kDgrad>
__device__ inline int FirstRead(const FewParams& p, int axis, int at) {
  if constexpr (!kDgrad) return at * p.strides[axis] - p.padding[axis];
  const int last_tap = (p.kernel[axis] - 1) * p.dilation[axis];
  const int from = at + p.padding[axis] - last_tap, stride = p.strides[axis];
  return from >= 0 ? (from + stride - 1) / stride : -(-from / stride);  // rounded up
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

// kColumns products of 8 columns each. Steps go through all tiles of a block, as in WindowsProduct.
template <typename T, bool kDgrad, int kColumns>
__global__ void __launch_bounds__(kFewThreads, kFewBlocks<kColumns>)
    FewOutputs(const __grid_constant__ FewParams p) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int first_tile = static_cast<int>(blockIdx.x);
  const int stage_bytes = FewStageBytes(p);
  const int rows_of_taps = p.kernel[0] * p.kernel[1];

  unsigned char* const stages = SharedMemory<unsigned char>();
  float* const products = reinterpret_cast<float*>(stages + p.stages * stage_bytes);
  uint32_t* const weights =
      reinterpret_cast<uint32_t*>(products + p.tile_y * p.tile_x * kColumns * 8);

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
  // The byte of 8 channels of a pixel of a stage: eight neighbours' lie in different banks.
  const auto place_in_stage = [](int pixel, int piece) {
    return (pixel * kFewPieces + (piece ^ (pixel / 2 % kFewPieces))) * 16;
  };

  int copy_tile = first_tile, copy_step = 0, copy_stage = 0;
  const auto copy_next = [&] {
    if (copy_tile < p.tiles) {
      const Place at = place_of(copy_tile);
      unsigned char* const to = stages + copy_stage * stage_bytes;
      const int first_z = FirstRead<kDgrad>(p, 0, at.z), first_y = FirstRead<kDgrad>(p, 1, at.y);
      const int first_x = FirstRead<kDgrad>(p, 2, at.x);
      const int piece = thread % kFewPieces;
      const int channel = copy_step * kFewDepth + piece * 8;
      const int pixels = p.source_planes * p.source_rows * p.tile_x;
      for (int i = thread / kFewPieces; i < pixels; i += kFewThreads / kFewPieces) {
        int rest = i;
        const int x = first_x + p.by_tile_x.Split(&rest);
        const int y = first_y + p.by_source_rows.Split(&rest);
        const int z = first_z + rest;
        const bool inside = channel < p.channels && Inside(x, p.source_size[2]) &&
                            Inside(y, p.source_size[1]) && Inside(z, p.source_size[0]);
        const int64_t pixel =
            ((static_cast<int64_t>(at.image) * p.source_size[0] + z) * p.source_size[1] + y) *
                p.source_size[2] +
            x;
        CopyAsync(to + place_in_stage(i, piece),
                  static_cast<const T*>(p.source) + (inside ? pixel * p.channels + channel : 0),
                  inside);
      }
      if (++copy_step == p.steps) {
        copy_step = 0;
        copy_tile += p.tile_step;
      }
      if (++copy_stage == p.stages) copy_stage = 0;
    }
    CommitCopies();
  };
  for (int i = 1; i < p.stages; ++i) copy_next();

  // By row of taps, depth, eight columns, lane: two words of two weights.
  {
    const int word = thread % 64, of_lane = word / 2, first = word % 2 * 8 + of_lane % 4 * 2;
    const int parts = rows_of_taps * p.depths * kColumns;
#pragma unroll 4
    for (int part = thread / 64; part < parts; part += kFewThreads / 64) {
      int row = part / kColumns;
      const int channel = p.by_depths.Split(&row) * 16 + first;
      int tap = part % kColumns * 8 + of_lane / 4;  // the column
      const bool exists = tap < p.columns && channel < p.channels;
      const int few = p.by_few.Split(&tap);
      tap += row * p.kernel[2];
      // Channels are even in number.
      const T* const from = static_cast<const T*>(p.w) +
                            (exists ? tap * p.w_tap + channel * p.w_channel + few * p.w_few : 0);
      const uint32_t low = exists ? BitsOf<uint16_t>(from[0]) : 0;
      const uint32_t high = exists ? BitsOf<uint16_t>(from[p.w_channel]) : 0;
      weights[part * 64 + word] = low | high << 16;
    }
  }

  // Where a product lies. A warp writes two columns of 8 pixels each at once.
  const auto place_of_product = [&](int row, int column, int pixel) {
    return (row * kColumns * 8 + column) * p.tile_x + (pixel ^ (column / 2 % 4 * 8));
  };

  int stage = 0;
  for (int tile = first_tile; tile < p.tiles; tile += p.tile_step) {
    const Place at = place_of(tile);
    const int first_z = FirstRead<kDgrad>(p, 0, at.z), first_y = FirstRead<kDgrad>(p, 1, at.y);
    float sums[kFewUnits][2][kColumns][4] = {};
    for (int step = 0; step < p.steps; ++step) {
      WaitForOldest(p.stages);
      copy_next();
      const unsigned char* const staged = stages + stage * stage_bytes;
      if (++stage == p.stages) stage = 0;
#pragma unroll
      for (int u = 0; u < kFewUnits; ++u) {
        int row = warp + u * (kFewThreads / 32);
        const int pixel = p.by_units_x.Split(&row) * 32;
        if (row >= p.tile_y || at.y + row >= p.result_size[1]) continue;
        const FewTaps of_z = TapsOf<kDgrad>(p, 0, at.z);
        const FewTaps of_y = TapsOf<kDgrad>(p, 1, at.y + row);
        int plane = of_z.source - first_z;
        for (int tap_z = of_z.tap; tap_z < p.kernel[0];
             tap_z += of_z.tap_step, plane += of_z.source_step) {
          int line = of_y.source - first_y;
          for (int tap_y = of_y.tap; tap_y < p.kernel[1];
               tap_y += of_y.tap_step, line += of_y.source_step) {
            const int first = (plane * p.source_rows + line) * p.tile_x + pixel;
            const int taps = tap_z * p.kernel[1] + tap_y;
#pragma unroll
            for (int k = 0; k < kFewDepth / 16; ++k) {
              const int depth = step * (kFewDepth / 16) + k;
              if (depth >= p.depths) break;
              uint32_t a[2][4];
#pragma unroll
              for (int m = 0; m < 2; ++m) {
                LoadMatrices(staged + place_in_stage(first + m * 16 + lane % 16, k * 2 + lane / 16),
                             a[m]);
              }
              const uint2* const b = reinterpret_cast<const uint2*>(weights) +
                                     (taps * p.depths + depth) * kColumns * 32 + lane;
#pragma unroll
              for (int n = 0; n < kColumns; ++n) {
                const uint2 words = b[n * 32];
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                  MultiplyAdd(static_cast<const T*>(nullptr), a[m], words.x, words.y,
                              sums[u][m][n]);
                }
              }
            }
          }
        }
      }
    }

    // The products of a tile that others still add were behind a barrier of the steps above.
#pragma unroll
    for (int u = 0; u < kFewUnits; ++u) {
      int row = warp + u * (kFewThreads / 32);
      const int pixel = p.by_units_x.Split(&row) * 32 + lane / 4;
      if (row >= p.tile_y) continue;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int column = n * 8 + lane % 4 * 2 + i % 2;
            products[place_of_product(row, column, pixel + m * 16 + i / 2 * 8)] = sums[u][m][n][i];
          }
        }
      }
    }
    __syncthreads();
    const int first_x = FirstRead<kDgrad>(p, 2, at.x);
    const int elements = p.tile_y * p.result_x * p.few;
    for (int i = thread; i < elements; i += kFewThreads) {
      int row = i;
      const int channel = p.by_few.Split(&row);
      const int x = at.x + p.by_result_x.Split(&row);
      if (x >= p.result_size[2] || at.y + row >= p.result_size[1]) continue;
      const FewTaps of_x = TapsOf<kDgrad>(p, 2, x);
      float sum = 0;
      int pixel = of_x.source - first_x;
      for (int tap = of_x.tap; tap < p.kernel[2]; tap += of_x.tap_step, pixel += of_x.source_step) {
        sum += products[place_of_product(row, tap * p.few + channel, pixel)];
      }
      const int64_t result =
          ((static_cast<int64_t>(at.image) * p.result_size[0] + at.z) * p.result_size[1] + at.y +
           row) *
              p.result_size[2] +
          x;
      Narrow(sum, static_cast<T*>(p.result) + result * p.few + channel);
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_CUH_
