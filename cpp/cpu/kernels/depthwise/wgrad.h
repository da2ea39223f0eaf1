// The weight gradient of a depthwise convolution where oneDNN has no depthwise code: kernels wider
// than 3, dilation, one and three spatial axes. oneDNN runs these as grouped convolutions, 10 to 50
// times slower.

#ifndef JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_WGRAD_H_
#define JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_WGRAD_H_

#include "ffi/conv.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// x and dy of `type`, float32 or bfloat16, channels-last. dw is float32 in the order (spatial axes
// of the kernel, channel). Sums are float32, each row of dy apart.
void DepthwiseWgrad(const ConvGeometry& geometry, ::xla::ffi::DataType type, const void* x,
                    const void* dy, float* dw);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_WGRAD_H_
