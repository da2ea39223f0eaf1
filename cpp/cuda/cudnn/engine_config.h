// An engine of cuDNN with its settings (an "engine configuration"), as cuDNN describes it.

#ifndef JAX_CONVGRAD_CUDA_CUDNN_ENGINE_CONFIG_H_
#define JAX_CONVGRAD_CUDA_CUDNN_ENGINE_CONFIG_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "cuda/cudnn/backend_descriptor.h"
#include "ffi/error.h"

namespace jax_convgrad {

struct EngineConfig {
  // "eng71_k2=3_k5=0": the engine's number, then type and value of each setting in cuDNN's order.
  // Saved plans and the errata identify engines by it; cudnn-frontend's tags are the same.
  std::string name;
  // As numbers: a library may know more notes than the enumerations of its headers had.
  std::vector<int> numerical_notes, behavior_notes;
  int64_t workspace_bytes = -1;  // -1 if cuDNN does not say before the plan is built

  bool Has(cudnnBackendNumericalNote_t note) const;
  bool Has(cudnnBackendBehaviorNote_t note) const;

  // `config` is a finalized CUDNN_BACKEND_ENGINECFG_DESCRIPTOR.
  static ffi::ErrorOr<EngineConfig> Read(const DnnBackend& backend,
                                         const BackendDescriptor& config);
};

// The configurations of engines that one mode of cuDNN's heuristics proposes for a finalized
// operation graph, best guess first.
ffi::ErrorOr<std::vector<BackendDescriptor>> QueryHeuristics(const DnnBackend& backend,
                                                             const BackendDescriptor& graph,
                                                             cudnnBackendHeurMode_t mode);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CUDNN_ENGINE_CONFIG_H_
