#include "cuda/native_plan.h"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "cuda/depthwise.h"
#include "cuda/status.h"

namespace jax_convgrad {
namespace {

class NativePlan : public ConvPlan {
 public:
  NativePlan(const ConvProblem& problem, std::unique_ptr<const DepthwisePlan> plan)
      : problem_(problem), plan_(std::move(plan)) {}

  const std::string& engine() const override { return engine_; }
  int64_t workspace_bytes() const override { return plan_->workspace_bytes(); }
  bool owns_kernels() const override { return false; }

  ffi::Error Run(const DnnHandle& handle, const ConvBuffers& buffers) const override {
    const cudaError_t status =
        plan_->Run({buffers.x, buffers.w, buffers.y, buffers.workspace}, handle.stream());
    if (status == cudaSuccess) return ffi::Error::Success();
    return CudaError(ConvName(problem_.kind),
                     Text("running engine ", engine_, ", ", problem_.ToString()), status);
  }

 private:
  const ConvProblem problem_;
  const std::unique_ptr<const DepthwisePlan> plan_;
  const std::string engine_ = "native_depthwise";
};

DepthwiseKind KindOf(ConvKind kind) {
  switch (kind) {
    case ConvKind::kFprop:
      return DepthwiseKind::kFprop;
    case ConvKind::kDgrad:
      return DepthwiseKind::kDgrad;
    case ConvKind::kWgrad:
      return DepthwiseKind::kWgrad;
  }
  return DepthwiseKind::kFprop;
}

DepthwiseType TypeOf(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F16:
      return DepthwiseType::kF16;
    case ffi::DataType::BF16:
      return DepthwiseType::kBF16;
    case ffi::DataType::F64:
      return DepthwiseType::kF64;
    default:
      return DepthwiseType::kF32;
  }
}

// The axes that are there are the last of z, y, x.
DepthwiseProblem::PerAxis Last(const ConvGeometry::PerAxis& values, int spatial, int64_t neutral) {
  DepthwiseProblem::PerAxis last{neutral, neutral, neutral};
  for (int axis = 0; axis < spatial; ++axis) {
    last[static_cast<size_t>(kMaxSpatialAxes - spatial + axis)] = values[static_cast<size_t>(axis)];
  }
  return last;
}

}  // namespace

ffi::ErrorOr<std::shared_ptr<const ConvPlan>> MakeNativePlan(const ConvProblem& problem) {
  const std::shared_ptr<const ConvPlan> none;
  const ConvGeometry& g = problem.geometry;
  if (g.groups < 2 || g.in_channels != g.groups || g.out_channels != g.groups) return none;
  if (problem.operand_type != problem.result_type) return none;
  int multiprocessors = 0;
  const cudaError_t status =
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, problem.device);
  if (status != cudaSuccess) {
    return ffi::Unexpected(
        CudaError(ConvName(problem.kind), "asking for the number of multiprocessors", status));
  }
  DepthwiseProblem depthwise;
  depthwise.kind = KindOf(problem.kind);
  depthwise.type = TypeOf(problem.operand_type);
  depthwise.batch = g.batch;
  depthwise.channels = g.groups;
  depthwise.in = Last(g.in, g.spatial, 1);
  depthwise.kernel = Last(g.kernel, g.spatial, 1);
  depthwise.out = Last(g.out, g.spatial, 1);
  depthwise.strides = Last(g.strides, g.spatial, 1);
  depthwise.padding_low = Last(g.padding_low, g.spatial, 0);
  depthwise.dilation = Last(g.dilation, g.spatial, 1);
  depthwise.alignment = problem.alignment;
  depthwise.workspace_limit = problem.workspace_limit;
  depthwise.multiprocessors = multiprocessors;
  std::unique_ptr<const DepthwisePlan> plan = DepthwisePlan::Make(depthwise);
  if (plan == nullptr) return none;
  return std::shared_ptr<const ConvPlan>(std::make_shared<NativePlan>(problem, std::move(plan)));
}

}  // namespace jax_convgrad
