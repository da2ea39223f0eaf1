#include "cuda/kernels/plan.h"

#include <cuda_runtime_api.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/common/device_attribute.h"
#include "cuda/kernels/depthwise/plan.h"
#include "cuda/kernels/dilated/plan.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/reordered.h"
#include "cuda/kernels/thin/plan.h"
#include "cuda/status.h"

namespace jax_convgrad {
namespace {

// A plan of this project's kernels, DepthwisePlan, DilatedPlan, ThinPlan or ImplicitGemmPlan, as a
// plan that a search can choose.
template <typename Kernels, typename Arrays>
class NativePlan : public ConvPlan {
 public:
  NativePlan(const ConvProblem& problem, std::string engine, std::unique_ptr<const Kernels> kernels)
      : problem_(problem), engine_(std::move(engine)), kernels_(std::move(kernels)) {}

  const std::string& engine() const override { return engine_; }
  int64_t workspace_bytes() const override { return kernels_->workspace_bytes(); }
  bool owns_kernels() const override { return false; }
  bool needs_handle() const override { return false; }

  ffi::Error Run(cudnnHandle_t, cudaStream_t stream, const ConvBuffers& buffers) const override {
    const cudaError_t status =
        kernels_->Run(Arrays{buffers.x, buffers.w, buffers.y, buffers.workspace}, stream);
    if (status == cudaSuccess) return ffi::Error::Success();
    (void)cudaGetLastError();  // which the next call would report again
    return CudaError(ConvName(problem_.kind),
                     Text("running engine ", engine_, ", ", problem_.ToString()), status);
  }

 private:
  const ConvProblem problem_;
  const std::string engine_;
  const std::unique_ptr<const Kernels> kernels_;
};

// All kernels have the three kinds under the same names.
template <typename Kind>
Kind KindOf(ConvKind kind) {
  switch (kind) {
    case ConvKind::kFprop:
      return Kind::kFprop;
    case ConvKind::kDgrad:
      return Kind::kDgrad;
    case ConvKind::kWgrad:
      return Kind::kWgrad;
  }
  return Kind::kFprop;
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

// The axes that exist are the last of z, y, x.
std::array<int64_t, 3> Last(const ConvGeometry::PerAxis& values, int spatial, int64_t neutral) {
  std::array<int64_t, 3> last{neutral, neutral, neutral};
  for (int axis = 0; axis < spatial; ++axis) {
    last[static_cast<size_t>(kMaxSpatialAxes - spatial + axis)] = values[static_cast<size_t>(axis)];
  }
  return last;
}

// The sizes that all kernels' problems have under the same names, and what they may use.
template <typename KernelProblem>
void SetSizes(const ConvProblem& problem, KernelProblem* kernels) {
  const ConvGeometry& g = problem.geometry;
  kernels->batch = g.batch;
  kernels->in = Last(g.in, g.spatial, 1);
  kernels->kernel = Last(g.kernel, g.spatial, 1);
  kernels->out = Last(g.out, g.spatial, 1);
  kernels->padding_low = Last(g.padding_low, g.spatial, 0);
  kernels->dilation = Last(g.dilation, g.spatial, 1);
  kernels->alignment = problem.alignment;
  kernels->workspace_limit = problem.workspace_limit;
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
  depthwise.kind = KindOf<DepthwiseKind>(problem.kind);
  depthwise.type = TypeOf(problem.operand_type);
  SetSizes(problem, &depthwise);
  depthwise.channels = g.groups;
  depthwise.strides = Last(g.strides, g.spatial, 1);
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
  const auto numbers =
      DeviceAttributes<3>(ConvName(problem.kind), problem.device,
                          {cudaDevAttrMultiProcessorCount, cudaDevAttrComputeCapabilityMajor,
                           cudaDevAttrComputeCapabilityMinor});
  if (numbers.has_error()) return ffi::Unexpected(numbers.error());
  // The kernels use instructions that only Hopper has.
  if ((*numbers)[1] != 9 || (*numbers)[2] != 0) return Plan();
  DilatedProblem dilated_problem;
  dilated_problem.wgrad = problem.kind == ConvKind::kWgrad;
  SetSizes(problem, &dilated_problem);
  dilated_problem.in_channels = g.in_channels;
  dilated_problem.out_channels = g.out_channels;
  dilated_problem.multiprocessors = (*numbers)[0];
  std::unique_ptr<const DilatedPlan> kernels = DilatedPlan::Make(dilated_problem);
  if (kernels == nullptr) return Plan();
  return Plan(std::make_shared<NativePlan<DilatedPlan, DilatedArrays>>(problem, "native_dilated",
                                                                       std::move(kernels)));
}

// Whether the kernel for dilated gradients is likely to be faster than cuDNN's engines: its tiles
// are of 128 positions or output channels and 256 input channels.
bool FillsDilatedTiles(const ConvGeometry& g) {
  int64_t positions = g.batch;
  for (const int64_t size : g.in) positions *= size;
  return g.in_channels >= 192 && g.out_channels >= 96 && positions >= 1024;
}

// What the plans of thin and implicit GEMM kernels are made for.
struct Device {
  int64_t multiprocessors, shared_bytes, block_shared_bytes;
  bool has_warpgroups;
};

ffi::ErrorOr<Device> DeviceOf(const ConvProblem& problem) {
  const auto numbers = DeviceAttributes<5>(
      ConvName(problem.kind), problem.device,
      {cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
       cudaDevAttrMaxSharedMemoryPerBlockOptin, cudaDevAttrComputeCapabilityMajor,
       cudaDevAttrComputeCapabilityMinor});
  if (numbers.has_error()) return ffi::Unexpected(numbers.error());
  const auto& n = *numbers;
  return Device{n[0], n[1], n[2], n[3] == 9 && n[4] == 0};
}

// The sizes of a problem that may have strides, and the order of its weights.
template <typename Weights, typename KernelProblem>
void SetSizesAndWeights(const ConvProblem& problem, KernelProblem* kernels) {
  const ConvGeometry& g = problem.geometry;
  SetSizes(problem, kernels);
  kernels->in_channels = g.in_channels;
  kernels->out_channels = g.out_channels;
  kernels->strides = Last(g.strides, g.spatial, 1);
  kernels->weights = problem.weights == WeightsOrder::kXIO ? Weights::kInOut : Weights::kOutIn;
}

// Appends a family's plans, in their order.
template <typename Kernels, typename Arrays>
void Append(const ConvProblem& problem, const std::string& family,
            std::vector<std::unique_ptr<const Kernels>> all, std::vector<Plan>* list) {
  for (std::unique_ptr<const Kernels>& kernels : all) {
    std::string engine = family + kernels->name();
    list->push_back(std::make_shared<NativePlan<Kernels, Arrays>>(problem, std::move(engine),
                                                                  std::move(kernels)));
  }
}

// Sets the type of elements of thin or implicit GEMM kernels. Returns false if they have none for
// the problem: it has groups, widens, or forbids TF32.
template <typename Type>
bool SetType(const ConvProblem& problem, Type* type) {
  if (problem.geometry.groups != 1 || problem.operand_type != problem.result_type) return false;
  switch (problem.operand_type) {
    case ffi::DataType::F16:
      *type = Type::kF16;
      return true;
    case ffi::DataType::BF16:
      *type = Type::kBF16;
      return true;
    case ffi::DataType::F32:
      *type = Type::kTf32;
      return problem.allow_tf32;
    default:
      return false;
  }
}

// Those of thin kernels.
ffi::Error AppendThin(const ConvProblem& problem, NativePlans* plans) {
  ThinProblem thin;
  if (!SetType(problem, &thin.type)) return ffi::Error::Success();
  const ffi::ErrorOr<Device> device = DeviceOf(problem);
  if (device.has_error()) return device.error();
  thin.kind = KindOf<ThinKind>(problem.kind);
  SetSizesAndWeights<ThinWeights>(problem, &thin);
  thin.device = {device->multiprocessors, device->shared_bytes, device->block_shared_bytes,
                 device->has_warpgroups};
  Append<ThinPlan, ThinArrays>(problem, "native_thin_", ThinPlan::Candidates(thin),
                               ThinPlan::IsFast(thin) ? &plans->before : &plans->behind);
  return ffi::Error::Success();
}

// Those of implicit GEMM kernels.
ffi::Error AppendImplicitGemm(const ConvProblem& problem, NativePlans* plans) {
  ImplicitGemmProblem gemm;
  if (!SetType(problem, &gemm.type)) return ffi::Error::Success();
  const ffi::ErrorOr<Device> device = DeviceOf(problem);
  if (device.has_error()) return device.error();
  gemm.kind = KindOf<GemmKind>(problem.kind);
  SetSizesAndWeights<GemmWeights>(problem, &gemm);
  gemm.device = {device->multiprocessors, device->shared_bytes, device->block_shared_bytes,
                 device->has_warpgroups};
  Append<ImplicitGemmPlan, ImplicitGemmArrays>(
      problem, "native_implicit_gemm_", ImplicitGemmPlan::Candidates(gemm),
      ImplicitGemmPlan::IsFast(gemm) ? &plans->before : &plans->behind);
  return ffi::Error::Success();
}

}  // namespace

ffi::ErrorOr<NativePlans> MakeNativePlans(const ConvProblem& problem) {
  NativePlans plans;
  for (const auto append : {AppendImplicitGemm, AppendThin}) {
    const ffi::Error error = append(problem, &plans);
    if (error.failure()) return ffi::Unexpected(error);
  }
  const bool dense = problem.geometry.groups == 1;
  const ConvProblem read = WithWeightsAsOXI(problem);
  ffi::ErrorOr<Plan> other = dense ? MakeDilated(read) : MakeDepthwise(read);
  if (other.has_error()) return ffi::Unexpected(other.error());
  if (*other != nullptr) {
    const bool fast = !dense || FillsDilatedTiles(problem.geometry);
    (fast ? plans.before : plans.behind).push_back(Reordered(problem, *std::move(other)));
  }
  return plans;
}

}  // namespace jax_convgrad
