// How large a piece of a convolution may be that oneDNN computes at once.

#ifndef JAX_CONVGRAD_CPU_ONEDNN_CONV_LIMITS_H_
#define JAX_CONVGRAD_CPU_ONEDNN_CONV_LIMITS_H_

#include <cstdint>

#include "cpu/conv_problem.h"

namespace jax_convgrad {

// The most pixels of a piece, of x for dgrad and else of y: as many as keep the code that oneDNN
// generates small, and the digits of a weight gradient.
int64_t MaxPixels(const ConvProblem& problem);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_ONEDNN_CONV_LIMITS_H_
