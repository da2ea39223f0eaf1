// Plain loops for convolutions that are mostly padding, or larger than a library can count
// (NeedsDirectConv in onednn/conv_limits.h). They touch only the elements that are read, and need
// almost no memory.

#ifndef JAX_CONVGRAD_CPU_KERNELS_DIRECT_H_
#define JAX_CONVGRAD_CPU_KERNELS_DIRECT_H_

#include "cpu/conv_problem.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// Computes any problem that has passed ConvGeometry::Make and is not IsAllZero. Arrays as for
// ConvPlan::Run, of float32 or bfloat16. Sums are float64, each made by one thread in one order.
// Throws std::bad_alloc.
void DirectConv(::xla::ffi::ThreadPool& pool, const ConvProblem& problem, const void* x,
                const void* w, const void* y, void* result);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_DIRECT_H_
