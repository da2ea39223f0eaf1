// The whole backward pass of a depthwise convolution in one sweep: dx, dw and db. Each element of
// dy that is loaded is multiplied twice, with w for dx and with x for dw, so dy is read from memory
// once instead of three times.
//
// Serves one filter a channel, 1 to 3 spatial axes, any stride, padding and dilation, float32 and
// bfloat16. It is fast for at least four channels, which fill the shortest vector.

#ifndef JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_BACKWARD_H_
#define JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_BACKWARD_H_

#include <array>
#include <cstdint>

#include "ffi/conv.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// The arrays of a call, all of `type`, float32 or bfloat16. x, dy and dx are channels-last.
struct DepthwiseBackwardCall {
  ConvGeometry geometry;  // one with work: !IsAllZero()
  ::xla::ffi::DataType type;
  // Strides of w and dw in elements: output channel, input channel, spatial axes.
  std::array<int64_t, kMaxSpatialAxes + 2> w_strides;
  const void* x;
  const void* w;
  const void* dy;
  void* dx;  // null where a gradient is not wanted
  void* dw;
  void* db;
};

// Sums are float32, see NOTE [Sums of a sweep] in sweep.inc, then the tasks are added. The result
// depends on the number of threads of `pool`, and on nothing else. Throws std::bad_alloc.
void DepthwiseBackward(::xla::ffi::ThreadPool& pool, const DepthwiseBackwardCall& call);

// db alone, of a problem in which nothing is multiplied. `dy` has `rows` rows of `channels`.
void SumOverRows(::xla::ffi::DataType type, const void* dy, int64_t rows, int64_t channels,
                 void* db);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_BACKWARD_H_
