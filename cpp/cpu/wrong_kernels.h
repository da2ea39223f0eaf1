// The implementations that oneDNN offers although they compute wrong numbers.

#ifndef JAX_CONVGRAD_CPU_WRONG_KERNELS_H_
#define JAX_CONVGRAD_CPU_WRONG_KERNELS_H_

#include <string>

#include "common/conv.h"

namespace jax_convgrad {

// Whether oneDNN's implementation of that name, "jit_bf16:avx512_core_bf16", must not compute the
// weight gradient.
bool ComputesWrongWgrad(const ConvGeometry& geometry, const std::string& implementation);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_WRONG_KERNELS_H_
