#ifndef JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_SIZES_H_
#define JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_SIZES_H_

#include <cstdint>

#include "ffi/conv.h"

namespace jax_convgrad {

// One input and one output channel per group.
bool IsDepthwise(const ConvGeometry& geometry);

// The sizes with three spatial axes, the last of them where rows lie in memory.
struct DepthwiseSizes {
  explicit DepthwiseSizes(const ConvGeometry& geometry);

  int64_t rows_of_x() const { return batch * in[0] * in[1]; }
  int64_t rows_of_dy() const { return batch * out[0] * out[1]; }
  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }

  int64_t batch, channels;
  int64_t in[3], out[3], kernel[3], strides[3], padding[3], dilation[3];
};

// The taps that make one element of y along an axis, or of dx, in the order in which they meet the
// operand: tap first + t * step meets element at + t * at_step of it, for t from 0 to count.
// `at_step` is positive. Elements outside of the operand may be among them.
struct MeetingTaps {
  int64_t first, step, count, at, at_step;
};

MeetingTaps MeetingTapsOf(const DepthwiseSizes& sizes, bool forward, int axis, int64_t element);

// The same without the taps that meet no element of the operand.
MeetingTaps MeetingTapsInside(const DepthwiseSizes& sizes, bool forward, int axis, int64_t element);

// The windows along one axis for which `tap` lies inside x: `last` is exclusive, and never more
// than there are, also of a tap that lies inside for none.
struct WindowRange {
  int64_t first, last;
};

WindowRange WindowsInside(const DepthwiseSizes& sizes, int axis, int64_t tap);

// The taps of one axis that reach an element of x, first to last, `step` apart: tap first + t *
// step meets element `window` - t * window_step of dy. Elements outside of dy may be among them.
struct TapReach {
  int64_t first, step, count, window, window_step;
};

TapReach ReachOf(const DepthwiseSizes& sizes, int axis, int64_t element);

// The same without the taps that meet no element of dy.
TapReach ReachInside(const DepthwiseSizes& sizes, int axis, int64_t element);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_SIZES_H_
