// The implementations that oneDNN offers although they compute wrong numbers.

#ifndef JAX_CONVGRAD_CPU_ONEDNN_ERRATA_H_
#define JAX_CONVGRAD_CPU_ONEDNN_ERRATA_H_

#include <string>

#include "ffi/conv.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// Whether oneDNN's implementation of that name, "jit_bf16:avx512_core_bf16", must not compute the
// problem, whose padding may have been written out (cpu/onednn/staging.h) so that it has none.
bool ComputesWrong(ConvKind kind, const ConvGeometry& geometry, ::xla::ffi::DataType operand_type,
                   const std::string& implementation);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_ONEDNN_ERRATA_H_
