// Convolutions that are mostly padding, or larger than oneDNN can count. Windows may be much
// further apart than x is long, as with a stride of 2**30: oneDNN walks through the padding between
// them, or needs a copy of x that contains it. The plain loops here touch only the elements that
// are read, and need almost no memory.

#ifndef JAX_CONVGRAD_CPU_KERNELS_DIRECT_H_
#define JAX_CONVGRAD_CPU_KERNELS_DIRECT_H_

#include "cpu/conv_problem.h"
#include "ffi/conv.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// Whether this code computes the problem, instead of oneDNN.
bool NeedsDirectConv(const ConvGeometry& geometry);

// Computes any problem that has passed ConvGeometry::Make and is not IsAllZero. Arrays as for
// ConvPlan::Run, of float32 or bfloat16. Sums are float64, each made by one thread in one order.
// Throws std::bad_alloc.
void DirectConv(::xla::ffi::ThreadPool& pool, const ConvProblem& problem, const void* x,
                const void* w, const void* y, void* result);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_DIRECT_H_
