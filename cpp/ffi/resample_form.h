// A checked resample as the kernels see it: plain sizes and strides, no XLA.

#ifndef JAX_CONVGRAD_FFI_RESAMPLE_FORM_H_
#define JAX_CONVGRAD_FFI_RESAMPLE_FORM_H_

#include <cstdint>

namespace jax_convgrad {

inline constexpr int kMaxResampledAxes = 3;

// One axis and its table: y[i] = sum_t weights[i][t] * x[start[i] + t]. An axis without a table is
// only carried along, and has in == out.
struct ResampleAxis {
  bool resampled = false;
  int64_t in = 1;
  int64_t out = 1;
  int64_t taps = 0;
  const int32_t* start = nullptr;
  const void* weights = nullptr;  // [out, taps], float; double if x is double
};

// x[b0, b1, b2, p, q, r, c] with a resampled axis in at least one of the places p, q and r, and
// every run of axes between them collapsed. The last run, c, is contiguous, and so are r and c
// together. Sizes of places that are not used are 1.
//
//   axes  where they are          b               p       q            r        c
//   1     many elements inside    outer           -       resampled    -        inner
//   1     few elements inside     -               -       outer        resampled  inner
//   2                             outer, between  -       resampled    resampled  inner
//   3                             outer, between, between  resampled  resampled  resampled  inner
//
// Strides count elements.
struct ResampleForm {
  // The work to do: none, because y has no elements; zeros, because the bands have no taps; or the
  // bands. Only for bands are the other fields set.
  enum class Work { kNone, kZeros, kBands };

  Work work = Work::kNone;
  int64_t batch[3] = {1, 1, 1};
  int64_t x_batch[3] = {}, y_batch[3] = {};  // strides
  ResampleAxis depth, height, width;         // p, q, r
  int64_t x_plane = 0, y_plane = 0;          // strides of p
  int64_t x_row = 0, y_row = 0;              // strides of q
  int64_t inner = 1;

  int64_t batches() const { return batch[0] * batch[1] * batch[2]; }
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_FFI_RESAMPLE_FORM_H_
