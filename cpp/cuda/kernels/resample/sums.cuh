// The sums of those rows of y that a row of x adds to, where rows shrink: the oldest is written
// when the last row that it reads has been added.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SUMS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SUMS_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Mode, int kRows>
struct Sums {
  using Sum = typename Mode::Sum;
  static constexpr int kVector = Mode::kVector;

  Sum rows[kRows][kVector];
  int done = 0;  // rows of y

  CONVGRAD_DEVICE void Clear() {
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) rows[k][i] = 0;
    }
  }

  CONVGRAD_DEVICE void Add(const Sum (&weights)[kRows], const Sum (&sums)[kVector]) {
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      if (!Mode::kPlain && weights[k] == Sum(0)) continue;
#pragma unroll
      for (int i = 0; i < kVector; ++i) rows[k][i] += weights[k] * sums[i];
    }
  }

  // Writes the oldest.
  CONVGRAD_DEVICE void Finish(Mode& mode) {
    Sum oldest[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      oldest[i] = rows[0][i];
#pragma unroll
      for (int k = 0; k + 1 < kRows; ++k) rows[k][i] = rows[k + 1][i];
      rows[kRows - 1][i] = 0;
    }
    ++done;
    mode.Write(oldest);
  }

  // Writes as many of the oldest.
  CONVGRAD_DEVICE void Finish(Mode& mode, int count) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) Finish(mode);
  }

  CONVGRAD_DEVICE void FinishAll(Mode& mode) {
#pragma unroll 1
    while (done < mode.line.rows) Finish(mode);
  }
};

// Row by row, if there is no schedule: because the bands' starts do not ascend, or more rows of y
// than kRows are in progress at a time.
template <typename Mode>
CONVGRAD_DEVICE void WriteUnscheduled(Mode& mode) {
  if constexpr (!Mode::kGathers) {
    mode.WriteDirectly();
  } else {
    using Sum = typename Mode::Sum;
#pragma unroll 1
    for (int row = 0; row < mode.line.rows; ++row) {
      const Reads<Sum> reads(mode.line.task.walk, mode.line.first_row + row);
      Sum sums[Mode::kVector];
#pragma unroll
      for (int i = 0; i < Mode::kVector; ++i) sums[i] = 0;
#pragma unroll 1
      for (int tap = 0; tap < reads.taps; ++tap) {
        const Sum weight = reads.Weight(tap);
        if (weight == Sum(0)) continue;
        Sum some[Mode::kVector];
        mode.Fetch(0, mode.line.RowOf(reads.start + tap));
        mode.Combine(0, reads.start + tap, some);
#pragma unroll
        for (int i = 0; i < Mode::kVector; ++i) sums[i] += weight * some[i];
      }
      mode.Write(sums);
    }
  }
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SUMS_CUH_
