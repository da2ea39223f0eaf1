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

}  // namespace jax_convgrad
