// Convolutions of few channels in float32, by kernels that read all arrays as they lie. oneDNN
// fills such channels up to blocks of 8 or 16, copies arrays to other formats and back, or
// multiplies matrices that it makes of them.

#ifndef JAX_CONVGRAD_CPU_FEW_CHANNELS_H_
#define JAX_CONVGRAD_CPU_FEW_CHANNELS_H_

#include "cpu/conv_plan.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// Whether these kernels are the code for a problem, on this processor. It has passed
// ConvGeometry::Make, is not IsAllZero and not NeedsDirectConv.
bool HasFewChannels(const ConvProblem& problem);

// Compute a problem that HasFewChannels; arrays as for ConvPlan::Run. Sums are float32, the same
// bits at every call, whatever the number of threads. Throw std::bad_alloc.
//
// y or dx:
void FewChannelsConv(::xla::ffi::ThreadPool& pool, const ConvProblem& problem, float* x, float* w,
                     float* y);
// dw, by tasks of the pool that complete `promise`, some after the call. Nothing waits for dw but
// the optimizer: XLA goes on with dx of the layers before, so that calls too small for several
// threads still keep them busy.
void BeginFewChannelsWgrad(::xla::ffi::ThreadPool& pool, const ConvProblem& problem, const float* x,
                           const float* dy, float* dw, const ::xla::ffi::Promise& promise);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_FEW_CHANNELS_H_
