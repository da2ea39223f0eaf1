#ifndef JAX_CONVGRAD_CUDA_HANDLERS_H_
#define JAX_CONVGRAD_CUDA_HANDLERS_H_

#include "xla/ffi/api/ffi.h"

// The handlers behind the FFI targets jax_convgrad_conv_{fprop,dgrad,wgrad} on CUDA.
//
//   ConvFprop: x, w -> y, workspace
//   ConvDgrad: dy, w -> dx, workspace
//   ConvWgrad: x, dy -> dw, workspace
//
// In memory x, y and their gradients are channels-last (N, spatial..., C), whatever the order of
// their logical axes. The attribute `weights` names the order of w and dw in memory: "OXI" is (O,
// spatial..., C/g), "XIO" is (spatial..., C/g, O). The thin kernels read both. For the other
// engines weights in XIO are reordered, which takes a copy of them in the workspace.
//
// Operands are float16, bfloat16, float32 or float64, both the same; the result has that type, or
// float32 for 16-bit operands where cuDNN can. Sums are float32, float64 for float64. The workspace
// is a vector of u8; engines that need more than it holds, less kWorkspaceAlignment bytes that
// bring its start to a multiple of that, are not used. Attributes: ConvConfig, weights (string),
// allow_tf32 and deterministic (bool), search (string; search.h has its values) and generation
// (int64; see ChoiceRules in cache.h).
//
// Each has two stages. *Initialize runs before every execution and before any capture, and makes
// the plan where there is none; the handler itself only launches kernels, so XLA may capture it.
XLA_FFI_DECLARE_HANDLER_SYMBOL(ConvFpropInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ConvFprop);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ConvDgradInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ConvDgrad);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ConvWgradInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ConvWgrad);

// Behind jax_convgrad_resample: x, then start (int32 [m]) and weights (float32 [m, taps]; float64
// for float64) of each resampled axis, ascending; one result y. x is float16, bfloat16, float32 or
// float64, and y too. Everything is row-major. Sums are float32, float64 for float64. It launches
// one kernel and needs no workspace. Attributes: ResampleConfig.
XLA_FFI_DECLARE_HANDLER_SYMBOL(Resample);

namespace jax_convgrad {

inline constexpr int kWorkspaceAlignment = 256;

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_HANDLERS_H_
