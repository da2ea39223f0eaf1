// Thin convolutions, with at most 16 channels on one side, in float32, by kernels that read all
// arrays as they lie. oneDNN fills such channels up to blocks of 8 or 16, copies arrays to other
// formats and back, or multiplies matrices that it makes of them.

#ifndef JAX_CONVGRAD_CPU_KERNELS_THIN_CONV_H_
#define JAX_CONVGRAD_CPU_KERNELS_THIN_CONV_H_

#include "cpu/conv_problem.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// Whether these kernels are the code for a problem, on this processor. It has passed
// ConvGeometry::Make, is not IsAllZero and not NeedsDirectConv.
bool IsThinConv(const ConvProblem& problem);

// Whether they are the code for every dense float32 problem with this problem's kind, channels,
// kernel and strides, however much or little work it is.
bool IsThinConvAtAnySize(const ConvProblem& problem);

// Computes a problem that IsThinConv; arrays as for ConvPlan::Run. Sums are float32, the same
// bits at every call, whatever the number of threads. `promise` is completed by the thread that
// ends the last task, which may be after the call. y and dx are computed by the caller too, as XLA
// waits for them, with the pool's threads beside it. dw is left to those: nothing waits for it but
// the optimizer, and XLA goes on with dx of the layers before, so that calls too small for several
// threads still keep them busy. Throws std::bad_alloc, and leaves the promise alone then.
void BeginThinConv(::xla::ffi::ThreadPool& pool, const ConvProblem& problem, float* x, float* w,
                   float* y, const ::xla::ffi::Promise& promise);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_THIN_CONV_H_
