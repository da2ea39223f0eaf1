// The ring of rows of x that rows of y are combined from, where rows grow: each row of x is
// combined along the other axes once, and kept in registers as long as rows of y read it.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_RING_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_RING_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Mode, int kRows>
struct Ring {
  using T = typename Mode::T;
  using Sum = typename Mode::Sum;
  static constexpr int kVector = Mode::kVector;

  Sum* const row_weights;  // [chunk, kRows]
  int* const row_starts;   // in x, the last twice
  Sum rows[kRows][kVector];

  CONVGRAD_DEVICE Ring(const ResampleTiling& tiling, char* shared)
      : row_weights(reinterpret_cast<Sum*>(shared + tiling.weights_at)),
        row_starts(reinterpret_cast<int*>(row_weights + tiling.chunk * kRows)) {}

  // Where each row of y begins in x, and its weights. The last start is repeated once, so that
  // threads can look ahead.
  CONVGRAD_DEVICE void MakeTables(const Line<T>& line, int thread) const {
    const ResampleAxis& walk = line.task.walk;
#pragma unroll 1
    for (int i = thread; i < line.rows * kRows; i += line.tiling.threads) {
      const int row = i / kRows, tap = i % kRows;
      int start = static_cast<int>(line.first_row) + row;
      if (walk.resampled) {
        row_weights[i] = tap < walk.taps ? WeightAt<Sum>(walk, line.first_row + row, tap) : Sum(0);
        start = ClampedStart(walk, line.first_row + row);
      } else {
        row_weights[i] = tap == 0 ? 1 : 0;
      }
      if (tap != 0) continue;
      row_starts[row] = start;
      if (row + 1 == line.rows) row_starts[line.rows] = start;
    }
    __syncthreads();
  }

  CONVGRAD_DEVICE void LoadWeights(int at, Sum (&weights)[kRows]) const {
    constexpr int kPack = kRows % kSumPack<Sum> == 0 ? kSumPack<Sum> : kRows % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int k = 0; k < kRows; k += kPack) {
      const auto some = Load<Sum, kPack>(row_weights + at * kRows + k);
#pragma unroll
      for (int i = 0; i < kPack; ++i) weights[k + i] = some.at[i];
    }
  }

  // Makes room for a row, and returns it.
  CONVGRAD_DEVICE Sum (&Push()) [kVector] {
#pragma unroll
    for (int k = 0; k + 1 < kRows; ++k) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) rows[k][i] = rows[k + 1][i];
    }
    return rows[kRows - 1];
  }

  // A row of y with these weights.
  CONVGRAD_DEVICE void Blend(const Sum (&weights)[kRows], Sum (&sums)[kVector]) const {
    if constexpr (kRows == 2) {
      if (weights[0] != Sum(0) && weights[1] != Sum(0)) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          sums[i] = weights[0] * rows[0][i] + weights[1] * rows[1][i];
        }
        return;
      }
    }
    // Of many weights few are zero, and few of their sums are not finite. These are computed once
    // more.
    if constexpr (kRows >= 4) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) sums[i] = 0;
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) sums[i] += weights[k] * rows[k][i];
      }
      bool number = true;
#pragma unroll
      for (int i = 0; i < kVector; ++i) number = number && sums[i] == sums[i];
      if (number) return;
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[i] = 0;
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      if (weights[k] == Sum(0)) continue;
#pragma unroll
      for (int i = 0; i < kVector; ++i) sums[i] += weights[k] * rows[k][i];
    }
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_RING_CUH_
