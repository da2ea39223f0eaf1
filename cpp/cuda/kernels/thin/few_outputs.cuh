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

#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/thin/few_outputs_copies.cuh"
#include "cuda/kernels/thin/few_outputs_params.cuh"

namespace jax_convgrad {

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

  FewCopiesOf<T, kDgrad> copies(p, stages, FewBarriersOf<kColumns>(p, weights));
  copies.Begin();

  // By row of taps, step, eight columns, lane: four words of weights.
  {
    const int word = thread % 128, of_lane = word / 4;
    const int first = (word % 4 * 4 + of_lane % 4) * kWordElements<T>;
    const int parts = p.kernel[0] * p.kernel[1] * p.steps * kColumns;
#pragma unroll 4
    for (int part = thread / 128; part < parts; part += kFewThreads / 128) {
      int row = part / kColumns;
      const int channel = p.by_steps.Split(&row) * kFewDepth<T> + first;
      const int column = part % kColumns * 8 + of_lane / 4;
      const bool exists = column < p.columns && channel < p.channels;
      int tap = column;
      const int few = p.by_few.Split(&tap);
      tap += row * p.kernel[2];
      // Channels are even in number.
      const T* const from = static_cast<const T*>(p.w) +
                            (exists ? tap * p.w_tap + channel * p.w_channel + few * p.w_few : 0);
      const uint32_t both = WordOf(from, exists, from + p.w_channel, exists);
      // The sums of columns that do not exist are not read, whatever their weights.
      if (column < p.columns) reinterpret_cast<uint32_t*>(weights)[part * 128 + word] = both;
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
    lane_bytes[k] = FewPlaceInStage(lane % 16, k * 2 + lane / 16);
  }
  int stage = 0;
  for (int tile = first_tile; tile < p.tiles; tile += p.tile_step) {
    const FewPlace at = FewPlaceOf(p, tile);
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
      copies.Wait();
      copies.Next();
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
