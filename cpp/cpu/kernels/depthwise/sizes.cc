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

MeetingTaps MeetingTapsOf(const DepthwiseSizes& sizes, bool forward, int axis, int64_t element) {
  if (forward) {
    const int64_t at = element * sizes.strides[axis] - sizes.padding[axis];
    return {0, 1, sizes.kernel[axis], at, sizes.dilation[axis]};
  }
  const TapReach reach = ReachOf(sizes, axis, element);
  if (reach.count == 0) return {0, 1, 0, 0, 1};
  const int64_t steps = reach.count - 1;
  return {reach.first + steps * reach.step, -reach.step, reach.count,
          reach.window - steps * reach.window_step, reach.window_step};
}

MeetingTaps MeetingTapsInside(const DepthwiseSizes& sizes, bool forward, int axis,
                              int64_t element) {
  MeetingTaps taps = MeetingTapsOf(sizes, forward, axis, element);
  const int64_t size = forward ? sizes.in[axis] : sizes.out[axis];
  if (taps.at < 0) {
    const int64_t outside = std::min(taps.count, (-taps.at - 1) / taps.at_step + 1);
    taps.first += outside * taps.step;
    taps.at += outside * taps.at_step;
    taps.count -= outside;
  }
  const int64_t room = size - 1 - taps.at;
  taps.count = room < 0 ? 0 : std::min(taps.count, room / taps.at_step + 1);
  return taps;
}

}  // namespace jax_convgrad
