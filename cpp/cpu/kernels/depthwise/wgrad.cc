#include "cpu/kernels/depthwise/wgrad.h"

#include "cpu/kernels/depthwise/kernels.h"

namespace jax_convgrad {
namespace {

template <typename T>
void Run(const ConvGeometry& geometry, const void* x, const void* dy, float* dw) {
  const DepthwiseSizes sizes(geometry);
  FindDepthwiseKernels<T>(sizes.channels)
      .wgrad({sizes, static_cast<const T*>(x), static_cast<const T*>(dy), dw});
}

}  // namespace

void DepthwiseWgrad(const ConvGeometry& geometry, ::xla::ffi::DataType type, const void* x,
                    const void* dy, float* dw) {
  if (type == ::xla::ffi::DataType::BF16) {
    Run<BFloat16>(geometry, x, dy, dw);
  } else {
    Run<float>(geometry, x, dy, dw);
  }
}

}  // namespace jax_convgrad
