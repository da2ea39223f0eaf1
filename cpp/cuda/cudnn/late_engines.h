// Engines that are worth timing although cuDNN's heuristics put them near the end of their list.

#ifndef JAX_CONVGRAD_CUDA_CUDNN_LATE_ENGINES_H_
#define JAX_CONVGRAD_CUDA_CUDNN_LATE_ENGINES_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ffi/conv.h"

namespace jax_convgrad {

// The one of these engines to time beside the first `front`, named in the order of cuDNN's
// heuristics: by measurement for a version of cuDNN that was measured (91900 is 9.19.0), else by a
// rule. It may be among the first; none if there is no such engine.
std::optional<size_t> FindLateEngine(ConvKind kind, size_t version,
                                     const std::vector<std::string>& engines, size_t front);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CUDNN_LATE_ENGINES_H_
