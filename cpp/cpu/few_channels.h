// Convolutions of few channels in float32, by kernels that read all arrays as they lie. oneDNN's
// code for them fills up blocks of 8 or 16 channels with zeros, copies arrays to such blocks and
// back, or lowers to matrix products: 20 to 50 us a call before anything is computed.

#ifndef JAX_CONVGRAD_CPU_FEW_CHANNELS_H_
#define JAX_CONVGRAD_CPU_FEW_CHANNELS_H_

#include "cpu/conv_plan.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// Whether these kernels are the code for a problem, on this processor. It has passed
// ConvGeometry::Make, is not IsAllZero and not NeedsDirectConv.
bool HasFewChannels(const ConvProblem& problem);

// Computes a problem that HasFewChannels; arrays as for ConvPlan::Run. Sums are float32, the same
// bits at every call, whatever the number of threads. Throws std::bad_alloc.
void FewChannelsConv(::xla::ffi::ThreadPool& pool, const ConvProblem& problem, float* x, float* w,
                     float* y);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_FEW_CHANNELS_H_
