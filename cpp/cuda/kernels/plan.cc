#include "cuda/kernels/plan.h"

#include <cuda_runtime_api.h>

#include <array>
#include <string>
#include <utility>

#include "cuda/kernels/common/device_attribute.h"
#include "cuda/kernels/depthwise/plan.h"
#include "cuda/kernels/dilated/plan.h"
#include "cuda/status.h"

namespace jax_convgrad {
namespace {

// A plan of this project's kernels, DepthwisePlan or DilatedPlan, as one that a search may choose.
template <typename Kernels, typename Arrays>
class NativePlan : public ConvPlan {
 public:
  NativePlan(const ConvProblem& problem, const char* engine, std::unique_ptr<const Kernels> kernels)
      : problem_(problem), engine_(engine), kernels_(std::move(kernels)) {}

  const std::string& engine() const override { return engine_; }
  int64_t workspace_bytes() const override { return kernels_->workspace_bytes(); }
  bool owns_kernels() const override { return false; }
  bool needs_handle() const override { return false; }

  ffi::Error Run(cudnnHandle_t, cudaStream_t stream, const ConvBuffers& buffers) const override {
    const cudaError_t status =
        kernels_->Run(Arrays{buffers.x, buffers.w, buffers.y, buffers.workspace}, stream);
    if (status == cudaSuccess) return ffi::Error::Success();
    return CudaError(ConvName(problem_.kind),
                     Text("running engine ", engine_, ", ", problem_.ToString()), status);
  }

 private:
  const ConvProblem problem_;
  const std::string engine_;
  const std::unique_ptr<const Kernels> kernels_;
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
std::array<int64_t, 3> Last(const ConvGeometry::PerAxis& values, int spatial, int64_t neutral) {
  std::array<int64_t, 3> last{neutral, neutral, neutral};
  for (int axis = 0; axis < spatial; ++axis) {
    last[static_cast<size_t>(kMaxSpatialAxes - spatial + axis)] = values[static_cast<size_t>(axis)];
  }
  return last;
}

using Plan = std::shared_ptr<const ConvPlan>;

ffi::ErrorOr<Plan> MakeDepthwise(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  if (g.groups < 2 || g.in_channels != g.groups || g.out_channels != g.groups) return Plan();
  if (problem.operand_type != problem.result_type) return Plan();
  const ffi::ErrorOr<int> multiprocessors =
      DeviceAttribute(ConvName(problem.kind), problem.device, cudaDevAttrMultiProcessorCount);
  if (multiprocessors.has_error()) return ffi::Unexpected(multiprocessors.error());
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
  depthwise.multiprocessors = *multiprocessors;
  std::unique_ptr<const DepthwisePlan> kernels = DepthwisePlan::Make(depthwise);
  if (kernels == nullptr) return Plan();
  return Plan(std::make_shared<NativePlan<DepthwisePlan, DepthwiseArrays>>(
      problem, "native_depthwise", std::move(kernels)));
}

ffi::ErrorOr<Plan> MakeDilated(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  if (problem.kind == ConvKind::kFprop || g.groups != 1 || !problem.allow_tf32 ||
      problem.operand_type != ffi::DataType::F32 || problem.result_type != ffi::DataType::F32) {
    return Plan();
  }
  bool dilated = false;
  for (size_t axis = 0; axis < static_cast<size_t>(g.spatial); ++axis) {
    if (g.strides[axis] != 1) return Plan();
    dilated = dilated || g.dilation[axis] != 1;
  }
  if (!dilated) return Plan();
  int numbers[3] = {};
  const cudaDeviceAttr attributes[] = {cudaDevAttrMultiProcessorCount,
                                       cudaDevAttrComputeCapabilityMajor,
                                       cudaDevAttrComputeCapabilityMinor};
  for (size_t i = 0; i < 3; ++i) {
    const ffi::ErrorOr<int> number =
        DeviceAttribute(ConvName(problem.kind), problem.device, attributes[i]);
    if (number.has_error()) return ffi::Unexpected(number.error());
    numbers[i] = *number;
  }
  // The instructions that the kernels are made of are Hopper's alone.
  if (numbers[1] != 9 || numbers[2] != 0) return Plan();
  DilatedProblem dilated_problem;
  dilated_problem.wgrad = problem.kind == ConvKind::kWgrad;
  dilated_problem.batch = g.batch;
  dilated_problem.in_channels = g.in_channels;
  dilated_problem.out_channels = g.out_channels;
  dilated_problem.in = Last(g.in, g.spatial, 1);
  dilated_problem.kernel = Last(g.kernel, g.spatial, 1);
  dilated_problem.out = Last(g.out, g.spatial, 1);
  dilated_problem.padding_low = Last(g.padding_low, g.spatial, 0);
  dilated_problem.dilation = Last(g.dilation, g.spatial, 1);
  dilated_problem.alignment = problem.alignment;
  dilated_problem.workspace_limit = problem.workspace_limit;
  dilated_problem.multiprocessors = numbers[0];
  std::unique_ptr<const DilatedPlan> kernels = DilatedPlan::Make(dilated_problem);
  if (kernels == nullptr) return Plan();
  return Plan(std::make_shared<NativePlan<DilatedPlan, DilatedArrays>>(problem, "native_dilated",
                                                                       std::move(kernels)));
}

}  // namespace

ffi::ErrorOr<std::shared_ptr<const ConvPlan>> MakeNativePlan(const ConvProblem& problem) {
  return problem.geometry.groups == 1 ? MakeDilated(problem) : MakeDepthwise(problem);
}

bool NativeIsFast(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  if (g.groups != 1) return true;
  // Tiles are of 128 positions or output channels and 256 input channels.
  int64_t positions = g.batch;
  for (const int64_t size : g.in) positions *= size;
  return g.in_channels >= 192 && g.out_channels >= 96 && positions >= 1024;
}

}  // namespace jax_convgrad
