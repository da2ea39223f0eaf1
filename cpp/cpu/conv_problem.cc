#include "cpu/conv_problem.h"

#include <algorithm>

namespace jax_convgrad {

std::vector<int64_t> ConvProblem::Key() const {
  const ConvGeometry& g = geometry;
  std::vector<int64_t> key{static_cast<int64_t>(kind),
                           g.spatial,
                           g.batch,
                           g.in_channels,
                           g.out_channels,
                           g.groups,
                           static_cast<int64_t>(operand_type),
                           static_cast<int64_t>(result_type),
                           threads};
  for (const auto* values :
       {&g.in, &g.kernel, &g.out, &g.strides, &g.padding_low, &g.padding_high, &g.dilation}) {
    key.insert(key.end(), values->begin(), values->end());
  }
  key.insert(key.end(), w_strides.begin(), w_strides.end());
  return key;
}

double ConvFlops(const ConvGeometry& g) {
  double flops = 2.0 * static_cast<double>(g.batch) * static_cast<double>(g.out_channels) *
                 static_cast<double>(g.in_channels / g.groups);
  for (int axis = 0; axis < g.spatial; ++axis) {
    flops *= static_cast<double>(g.out[axis]) * static_cast<double>(g.kernel[axis]);
  }
  return flops;
}

int64_t UsefulThreads(const ConvProblem& problem, double useful) {
  return static_cast<int64_t>(std::clamp(useful, 1.0, static_cast<double>(problem.threads)));
}

std::array<int64_t, kMaxSpatialAxes + 2> WeightsStrides(const ::xla::ffi::AnyBuffer& w,
                                                        const ConvConfig& config) {
  const ::xla::ffi::Span<const int64_t> dims = w.dimensions();
  std::array<int64_t, kMaxSpatialAxes + 2> logical{}, strides{};
  int64_t stride = 1;
  for (size_t axis = dims.size(); axis-- > 0;) {
    logical[axis] = stride;
    stride *= dims[axis];
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    strides[i] = logical[static_cast<size_t>(config.w_spec[i])];
  }
  return strides;
}

}  // namespace jax_convgrad
