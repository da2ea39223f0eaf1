// fprop and dgrad with a thin result: the last layers of decoders and generators,
// mask, image and audio heads, and a stem's dgrad.
//
// A product whose columns are its channels would waste most of a tensor core and read each
// element of the source once for every tap. Here the columns are channels of the result times taps
// along x, and what is multiplied is the source's pixels: the source is read once for each row of
// taps. Each pixel's products belong to several neighbors in the result, which are then added
// along x, in the order of the taps.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/thin/few_outputs_copies.cuh"
#include "cuda/kernels/thin/few_outputs_params.cuh"

namespace jax_convgrad {

template <typename Number>
__device__ inline void Exchange(Number* one, Number* other) {
  const Number kept = *one;
  *one = *other;
  *other = kept;
}

// Adds up the products of `count` elements of the result. They are `jump` floats apart, and
// `result_jump` elements.
template <typename T, bool kDgrad, int kPitch>
__device__ inline void AddProducts(const FewParams& p, int first_tap, const float* products,
                                   int jump, T* result, int64_t result_jump, int count) {
  const int tap_jump = TapStep<kDgrad>(p, 2) * p.few + SourceStep<kDgrad>(p, 2) * kPitch;
  for (; count > 0; count -= kFewAdded) {
    float sums[kFewAdded] = {};
    const float* from = products;
    for (int tap = first_tap; tap < p.kernel[2]; tap += TapStep<kDgrad>(p, 2), from += tap_jump) {
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

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

// Multiplies kDepths of the pixels of kUnits, `from` on and what is `other` bytes behind, with the
// weights of a row of taps, and so on for all rows of taps from `first_tap` on. What lies between
// two is `row` bytes, and `weights_row`. `last` is what a lane adds for the last eight columns.
template <typename T, bool kDgrad, int kColumns, int kUnits, int kDepths>
__device__ inline void MultiplyRows(const FewParams& p, int first_tap, const unsigned char* from,
                                    int other, int row, const uint2* weights, int weights_row,
                                    int last, const int (&lane_bytes)[kFewDepths],
                                    float (*sums)[2][kColumns][4]) {
  for (int tap = first_tap; tap < p.kernel[1]; tap += TapStep<kDgrad>(p, 1)) {
#pragma unroll
    for (int k = 0; k < kDepths; ++k) {
      uint32_t a[kUnits][2][4];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const unsigned char* const of_unit = u == 0 ? from : from + other;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          LoadMatrices(of_unit + lane_bytes[k] + m * 16 * kFewPixelBytes, a[u][m]);
#pragma unroll
          for (uint32_t& word : a[u][m]) word = MultipliedWord<T>(word);
        }
      }
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const uint2 words = weights[(n * kFewDepths + k) * 32 + (n == kColumns - 1 ? last : 0)];
#pragma unroll
        for (int i = 0; i < kUnits * 2; ++i) {
          MultiplyAdd(static_cast<const T*>(nullptr), a[i / 2][i % 2], words.x, words.y,
                      sums[i / 2][i % 2][n]);
        }
      }
    }
    from += row;
    weights += weights_row;
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
  uint2* const weights = reinterpret_cast<uint2*>(products + p.tile_y * p.tile_x * kPitch);

  FewCopiesOf<T, kDgrad> copies(p, stages, FewBarriersOf<kColumns>(p, weights));
  copies.Begin();

  // By row of taps, step, eight columns, 32 bytes of channels, lane: two words of weights.
  {
    const int word = thread % 128, of_lane = word / 2 % 32;
    const int parts = p.kernel[0] * p.kernel[1] * p.steps * kColumns;
    const int first = ((word / 64 * 2 + word % 2) * 4 + of_lane % 4) * kWordElements<T>;
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
      // Read in any case, so that no read waits for a condition.
      const uint32_t both = WordOf(from, from + p.w_channel) & (exists ? 0xffffffffu : 0);
      // What columns that do not exist would have is not theirs: FewBarriersOf.
      if (column < p.columns) reinterpret_cast<uint32_t*>(weights)[part * 128 + word] = both;
    }
  }

  // The units of a warp.
  int unit_row[kFewUnits], unit_pixel[kFewUnits];
#pragma unroll
  for (int u = 0; u < kFewUnits; ++u) {
    unit_row[u] = warp + u * kFewWarps;
    unit_pixel[u] = p.by_units_x.Split(&unit_row[u]) * 32;
  }
  // What a lane reads of 16 pixels, and of weights: instead of the columns that do not exist, whose
  // sums nobody reads, the first of the last eight.
  const int last = (kColumns - 1) * 8 + lane / 4 < p.columns ? 0 : lane % 4 - lane;
  int lane_bytes[kFewDepths];
#pragma unroll
  for (int k = 0; k < kFewDepths; ++k) {
    lane_bytes[k] = FewPlaceInStage(lane % 16, k * 2 + lane / 16);
  }
  int stage = 0;
  for (int tile = first_tile; tile < p.tiles; tile += p.tile_step) {
    const FewPlace at = FewPlaceOf(p, tile);
    FewTaps of_z = TapsOf<kDgrad>(p, 0, at.z);
    const bool reads = of_z.tap < p.kernel[0];
    const int first_y = FirstRead<kDgrad>(p, 1, at.y);
    // Of the units: the first row of taps, and what this reads. Rows behind the tile or the result
    // have no taps, and what a row without any would read is far off.
    int first_tap[kFewUnits], unit_bytes[kFewUnits];
#pragma unroll
    for (int u = 0; u < kFewUnits; ++u) {
      const FewTaps of_y = TapsOf<kDgrad>(p, 1, at.y + unit_row[u]);
      const bool exists = reads && unit_row[u] < p.tile_y &&
                          at.y + unit_row[u] < p.result_size[1] && of_y.tap < p.kernel[1];
      first_tap[u] = exists ? of_y.tap : p.kernel[1];
      unit_bytes[u] =
          (exists ? of_y.source - first_y : 0) * row_bytes + unit_pixel[u] * kFewPixelBytes;
    }
    // Whether they take the same weights, at the same time then.
    const bool together = first_tap[0] == first_tap[1];
    float sums[kFewUnits][2][kColumns][4] = {};
    const int tap_words = p.steps * kColumns * kFewPart;
    // A plane for each tap along z; one that nothing reads, if there is none.
    do {
      const uint2* of_plane = weights + lane + (reads ? of_z.tap : 0) * p.kernel[1] * tap_words;
      for (int step = 0; step < p.steps; ++step, of_plane += kColumns * kFewPart) {
        copies.Wait();
        copies.Next();
        const unsigned char* const staged = stages + stage * stage_bytes;
        if (++stage == p.stages) stage = 0;
        const auto multiply = [&](auto units, auto depths, int u) {
          MultiplyRows<T, kDgrad, kColumns, decltype(units)::value, decltype(depths)::value>(
              p, first_tap[u], staged + unit_bytes[u], unit_bytes[1] - unit_bytes[0],
              SourceStep<kDgrad>(p, 1) * row_bytes, of_plane + first_tap[u] * tap_words,
              TapStep<kDgrad>(p, 1) * tap_words, last, lane_bytes, sums + u);
        };
        const auto multiply_units = [&](auto depths) {
          if (together) {
            multiply(Constant<kFewUnits>(), depths, 0);
          } else {
#pragma unroll
            for (int u = 0; u < kFewUnits; ++u) multiply(Constant<1>(), depths, u);
          }
        };
        if (p.last_depths == kFewDepths || step + 1 < p.steps) {
          multiply_units(Constant<kFewDepths>());
        } else {
          multiply_units(Constant<kFewDepths / 2>());
        }
      }
      NextTap<kDgrad>(p, 0, &of_z);
    } while (of_z.tap < p.kernel[0]);

    // The products of a tile that others still add were behind a barrier of the steps above.
#pragma unroll
    for (int u = 0; u < kFewUnits; ++u) {
      if (unit_row[u] >= p.tile_y) continue;
      // A row of the tile is a whole number of units: their products follow one another.
      float* const to = products + ((warp + u * kFewWarps) * 32 + lane / 4) * kPitch + lane % 4 * 2;
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
      AddProducts<T, kDgrad, kPitch>(p, of_x.tap, from, jump, to, result_jump, count);
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_CUH_
