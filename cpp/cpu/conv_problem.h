// A convolution problem as the CPU sees it, and how much work it is.

#ifndef JAX_CONVGRAD_CPU_CONV_PROBLEM_H_
#define JAX_CONVGRAD_CPU_CONV_PROBLEM_H_

#include <array>
#include <cstdint>
#include <vector>

#include "ffi/conv.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// Everything that decides how a convolution is run.
struct ConvProblem {
  ConvKind kind;
  ConvGeometry geometry;
  ::xla::ffi::DataType operand_type;
  ::xla::ffi::DataType result_type;
  // Strides of w or dw in elements: output channel, input channel, spatial axes.
  std::array<int64_t, kMaxSpatialAxes + 2> w_strides;
  int64_t threads;

  // All fields as numbers: equal exactly for equal problems.
  std::vector<int64_t> Key() const;
};

// Row-major strides of w's logical shape, in the order of w_spec.
std::array<int64_t, kMaxSpatialAxes + 2> WeightsStrides(const ::xla::ffi::AnyBuffer& w,
                                                        const ConvConfig& config);

// Multiplications and additions, those with the padding included.
double ConvFlops(const ConvGeometry& geometry);

// A thread is worth waking for this much work, which takes some 20 us.
inline constexpr double kMinThreadFlops = 2e6;

// The number of the problem's threads for an amount of work that could keep `useful` busy, at least
// 1.
int64_t UsefulThreads(const ConvProblem& problem, double useful);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_CONV_PROBLEM_H_
