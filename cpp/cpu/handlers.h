#ifndef JAX_CONVGRAD_CPU_HANDLERS_H_
#define JAX_CONVGRAD_CPU_HANDLERS_H_

#include "xla/ffi/api/ffi.h"

// The handlers behind the FFI targets jax_convgrad_conv_{fprop,dgrad,wgrad} on the CPU.
//
//   | handler   | operands | result | in memory                                                  |
//   |-----------|----------|--------|------------------------------------------------------------|
//   | ConvFprop | x, w     | y      | x, y: channels-last (N, spatial..., C), whatever the order |
//   | ConvDgrad | dy, w    | dx     | of their logical axes; w, dw: row-major in their logical   |
//   | ConvWgrad | x, dy    | dw     | order                                                      |
//
// Operands are float32 or bfloat16, both the same; the result has that type or is float32. Sums are
// float32. Attributes: ConvConfig.
XLA_FFI_DECLARE_HANDLER_SYMBOL(ConvFprop);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ConvDgrad);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ConvWgrad);

#endif  // JAX_CONVGRAD_CPU_HANDLERS_H_
