#include "cpu/kernels/depthwise/sizes.h"

#include <algorithm>
#include <numeric>

namespace jax_convgrad {

bool IsDepthwise(const ConvGeometry& g) {
  return g.groups > 1 && g.groups == g.in_channels && g.groups == g.out_channels;
}

DepthwiseSizes::DepthwiseSizes(const ConvGeometry& geometry)
    : batch(geometry.batch), channels(geometry.in_channels) {
  for (int axis = 0; axis < 3; ++axis) {
    const int from = axis - (3 - geometry.spatial);
    const bool there = from >= 0;
    in[axis] = there ? geometry.in[from] : 1;
    out[axis] = there ? geometry.out[from] : 1;
    kernel[axis] = there ? geometry.kernel[from] : 1;
    strides[axis] = there ? geometry.strides[from] : 1;
    padding[axis] = there ? geometry.padding_low[from] : 0;
    dilation[axis] = there ? geometry.dilation[from] : 1;
  }
}

WindowRange WindowsInside(const DepthwiseSizes& sizes, int axis, int64_t tap) {
  const int64_t offset = tap * sizes.dilation[axis] - sizes.padding[axis];
  const int64_t stride = sizes.strides[axis];
  const int64_t first = offset >= 0 ? 0 : (-offset - 1) / stride + 1;
  const int64_t room = sizes.in[axis] - 1 - offset;
  const int64_t last = room < 0 ? 0 : std::min(sizes.out[axis], room / stride + 1);
  return {std::min(first, last), last};
}

TapReach ReachOf(const DepthwiseSizes& sizes, int axis, int64_t element) {
  const int64_t stride = sizes.strides[axis], dilation = sizes.dilation[axis];
  const int64_t common = std::gcd(stride, dilation), step = stride / common;
  const int64_t candidates = std::min(step, sizes.kernel[axis]);
  for (int64_t tap = 0; tap < candidates; ++tap) {
    const int64_t distance = element + sizes.padding[axis] - tap * dilation;
    if (distance % stride != 0) continue;
    return {tap, step, (sizes.kernel[axis] - 1 - tap) / step + 1, distance / stride,
            dilation / common};
  }
  return {0, step, 0, 0, 0};
}

TapReach ReachInside(const DepthwiseSizes& sizes, int axis, int64_t element) {
  TapReach reach = ReachOf(sizes, axis, element);
  while (reach.count > 0 && reach.window >= sizes.out[axis]) {
    reach.first += reach.step;
    reach.window -= reach.window_step;
    --reach.count;
  }
  while (reach.count > 0 && reach.window - (reach.count - 1) * reach.window_step < 0) --reach.count;
  return reach;
}

}  // namespace jax_convgrad
