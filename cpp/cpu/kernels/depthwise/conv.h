// The forward pass and the input gradient of a depthwise convolution where oneDNN has no depthwise
// code: one and three spatial axes, and input gradients with dilation. oneDNN runs these as grouped
// convolutions, 5 to 100 times slower.

#ifndef JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_CONV_H_
#define JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_CONV_H_

#include "cpu/conv_problem.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// Whether this kernel is the code for a problem. It has passed ConvGeometry::Make, and is not
// IsAllZero.
bool IsDepthwiseConv(const ConvProblem& problem);

// Computes a problem that IsDepthwiseConv: y of x, or dx of dy, both channels-last. Sums are
// float32, each made by one thread in one order. Throws std::bad_alloc.
void DepthwiseConv(::xla::ffi::ThreadPool& pool, const ConvProblem& problem, const void* operand,
                   const void* w, void* result);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_CONV_H_
