#ifndef JAX_CONVGRAD_CPU_HANDLERS_H_
#define JAX_CONVGRAD_CPU_HANDLERS_H_

#include "xla/ffi/api/ffi.h"

// The handlers behind the FFI targets jax_convgrad_conv_{fprop,dgrad,wgrad,backward} and
// jax_convgrad_resample on the CPU.
//
//   | handler   | operands | result | in memory                                                  |
//   |-----------|----------|--------|------------------------------------------------------------|
//   | ConvFprop | x, w     | y      | x, y: channels-last (N, spatial..., C), whatever the order |
//   | ConvDgrad | dy, w    | dx     | of their logical axes; w, dw: row-major in their logical   |
//   | ConvWgrad | x, dy    | dw     | order                                                      |
//
// Operands are float32 or bfloat16, both the same; the result has that type or is float32. Sums are
// float32. Attributes: ConvConfig. ConvWgrad may return before dw is computed.
XLA_FFI_DECLARE_HANDLER_SYMBOL(ConvFprop);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ConvDgrad);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ConvWgrad);

// The whole backward pass of a depthwise convolution, one filter a channel: operands x, w and dy,
// and one result for each gradient that is wanted, in the order dx, dw, db. Attributes: ConvConfig,
// and `wanted`, a sum of 1 for dx, 2 for dw and 4 for db. Results have the operands' type; the rest
// is as above.
XLA_FFI_DECLARE_HANDLER_SYMBOL(ConvBackward);

// Resample: x, then start (int32 [m]) and weights (float32 [m, taps]; float64 for float64) of each
// resampled axis, ascending; one result y. x is float16, bfloat16, float32 or float64, and y too.
// Everything is row-major. Sums are float32, float64 for float64. Attributes: ResampleConfig.
XLA_FFI_DECLARE_HANDLER_SYMBOL(Resample);

#endif  // JAX_CONVGRAD_CPU_HANDLERS_H_
