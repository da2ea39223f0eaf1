// Two neighboring columns of y that one thread makes from one window of sums, with weights that it
// keeps: what kPairs and kColumns have in common. Sums are added without testing for zero weights;
// results that are not numbers are computed once more at the end.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_PAIR_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_PAIR_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename T, int kTaps>
struct Pair {
  using Sum = typename SumOf<T>::Type;

  int to;        // the first of its elements, counted in the block's columns of a line of y
  int columns;   // that it has: 0 to 2
  bool numbers;  // whether all that was written are numbers
  Sum weights[2][kTaps];

  // Finds the window of the columns `first` and behind it: where it begins, in columns of x from
  // `origin` on, of which there are `room`. A window that begins at `max_from` is the last one.
  CONVGRAD_DEVICE int Enter(Line<T>& line, int first, int origin, int max_from, int room) {
    const ResampleAxis& width = line.form.width;
    const int columns_here = line.ColumnsHere(), taps = static_cast<int>(width.taps);
    numbers = true;
    int starts[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int column = first + k < columns_here ? first + k : columns_here - 1;
      starts[k] = ClampedStart(width, line.first_column + column) - origin;
    }
    const int low = (starts[0] < starts[1] ? starts[0] : starts[1]) & ~(kSumPack<Sum> - 1);
    const int from = low < 0 ? 0 : low < max_from ? low : max_from;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int shift = starts[k] - from;
      if (shift < 0 || shift + taps > kTaps || starts[k] + taps > room) line.misfit = true;
      const int64_t column = line.first_column + Min(first + k, columns_here - 1);
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
        const int tap = t - shift;
        weights[k][t] = tap >= 0 && tap < taps ? WeightAt<Sum>(width, column, tap) : Sum(0);
      }
    }
    return from;
  }

  CONVGRAD_DEVICE void Combine(const Sum* window, Sum (&results)[2]) const {
    Sum parts[2][2] = {};  // so that not all threads wait for each other
#pragma unroll
    for (int first = 0; first < kTaps; first += kSumPack<Sum>) {
      const auto some = Load<Sum, kSumPack<Sum>>(window + first);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int i = 0; i < kSumPack<Sum>; ++i) {
          parts[k][i % 2] += weights[k][first + i] * some.at[i];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) results[k] = parts[k][0] + parts[k][1];
  }

  // After the walk: results that are NaN once more, without the zero weights.
  CONVGRAD_DEVICE void WriteNumbers(const Line<T>& line) const {
    if (numbers) return;
    const int inner = static_cast<int>(line.form.inner);
    T* const y = line.y - line.rows * line.task.y_walk + to;
#pragma unroll 1
    for (int at = 0; at < line.rows; ++at) {
#pragma unroll 1
      for (int k = 0; k < columns; ++k) {
        T& result = y[at * line.task.y_walk + k * inner];
        if (ToSum(result) == ToSum(result)) continue;
        FromSum(Directly<T>(line.form, line.x, 0, line.first_row + at,
                            line.first_column + to / inner + k, to % inner),
                result);
      }
    }
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_PAIR_CUH_
