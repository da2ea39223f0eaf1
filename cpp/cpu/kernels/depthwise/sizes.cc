#include "cpu/kernels/depthwise/sizes.h"

#include <algorithm>
#include <numeric>
#include <utility>

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
    // That of one tap means nothing, and may be anything.
    dilation[axis] = there && kernel[axis] > 1 ? geometry.dilation[from] : 1;
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

// The number whose product with `number` is one more than a multiple of `modulus`, by Euclid's
// algorithm. The two share no factor.
static int64_t InverseOf(int64_t number, int64_t modulus) {
  int64_t rest = modulus, next_rest = number % modulus, inverse = 0, next_inverse = 1;
  while (next_rest != 0) {
    const int64_t quotient = rest / next_rest;
    rest = std::exchange(next_rest, rest - quotient * next_rest);
    inverse = std::exchange(next_inverse, inverse - quotient * next_inverse);
  }
  return inverse < 0 ? inverse + modulus : inverse;
}

TapReach ReachOf(const DepthwiseSizes& sizes, int axis, int64_t element) {
  __extension__ using Wide = __int128;
  const int64_t stride = sizes.strides[axis], dilation = sizes.dilation[axis];
  const int64_t common = std::gcd(stride, dilation), step = stride / common;
  const int64_t place = element + sizes.padding[axis];
  // The taps whose distance from it is a multiple of the stride: place = tap * dilation there.
  if (place % common != 0) return {0, step, 0, 0, 0};
  const int64_t inverse = InverseOf(dilation / common, step);
  const auto tap = static_cast<int64_t>(Wide{place / common % step} * inverse % step);
  if (tap >= sizes.kernel[axis]) return {0, step, 0, 0, 0};
  return {tap, step, (sizes.kernel[axis] - 1 - tap) / step + 1, (place - tap * dilation) / stride,
          dilation / common};
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
