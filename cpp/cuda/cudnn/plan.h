// The engines that cuDNN offers for a convolution problem, and plans that run them.

#ifndef JAX_CONVGRAD_CUDA_CUDNN_PLAN_H_
#define JAX_CONVGRAD_CUDA_CUDNN_PLAN_H_

#include <cudnn_graph.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cuda/conv_plan.h"
#include "ffi/error.h"

namespace jax_convgrad {

// The engines that cuDNN's heuristics propose for a problem with weights in kOXI, best guess first,
// without those that the problem's demands on precision and determinism forbid and those that
// errata.h excludes.
class ConvCandidates {
 public:
  static ffi::ErrorOr<ConvCandidates> Query(const ConvProblem& problem, cudnnHandle_t handle);

  ConvCandidates(ConvCandidates&&) noexcept;
  ConvCandidates& operator=(ConvCandidates&&) noexcept;
  ~ConvCandidates();

  size_t size() const;
  // The engine's number and its settings, "eng3_k2=1_k3=0".
  const std::string& engine(size_t index) const;
  // -1 if cuDNN does not say before the plan is built.
  int64_t workspace_bytes(size_t index) const;
  // Whether it works on transformed arrays (Winograd, Fourier), which costs accuracy.
  bool transforms(size_t index) const;
  ffi::ErrorOr<std::shared_ptr<const ConvPlan>> Build(size_t index) const;

 private:
  struct Impl;
  explicit ConvCandidates(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CUDNN_PLAN_H_
