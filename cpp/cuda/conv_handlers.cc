// The convolution handlers: checks, what needs no library, and errors as values. See handlers.h.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cuda/cudnn/cache.h"
#include "cuda/cudnn/handle.h"
#include "cuda/cudnn/plan.h"
#include "cuda/handlers.h"
#include "cuda/status.h"
#include "ffi/conv.h"
#include "ffi/error.h"
#include "ffi/guard.h"

namespace jax_convgrad {

// Attributes of a call on CUDA.
struct CudaConvConfig {
  ConvConfig conv;
  bool allow_tf32;
  bool deterministic;
  std::string_view search;
  int64_t generation;
};

}  // namespace jax_convgrad

// The attributes are flat; the members of ConvConfig come first.
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    ::jax_convgrad::CudaConvConfig,
    ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("strides"),
    ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("padding_low"),
    ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("padding_high"),
    ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("dilation"),
    ::xla::ffi::StructMember<int64_t>("groups"),
    ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("x_spec"),
    ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("w_spec"),
    ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("y_spec"),
    ::xla::ffi::StructMember<bool>("allow_tf32"), ::xla::ffi::StructMember<bool>("deterministic"),
    ::xla::ffi::StructMember<std::string_view>("search"),
    ::xla::ffi::StructMember<int64_t>("generation"));

namespace jax_convgrad {
namespace {

using Workspace = ffi::BufferR1<ffi::DataType::U8>;

// A checked call.
struct Call {
  ConvProblem problem;
  ChoiceRules rules;
  ConvBuffers buffers;
  void* result = nullptr;
  size_t result_bytes = 0;
  bool empty = false;  // some array has no elements: the result is a sum over nothing
};

// The largest power of two, up to 16, that all addresses are multiples of.
int64_t CommonAlignment(const ConvBuffers& buffers) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(buffers.x) |
                         reinterpret_cast<uintptr_t>(buffers.w) |
                         reinterpret_cast<uintptr_t>(buffers.y) | uintptr_t{16};
  return static_cast<int64_t>(bits & (~bits + 1));
}

ffi::ErrorOr<Call> Check(ConvKind kind, int32_t device, const CudaConvConfig& config,
                         const ffi::AnyBuffer& x, const ffi::AnyBuffer& w, const ffi::AnyBuffer& y,
                         const Workspace& workspace) {
  const ffi::ErrorOr<ConvGeometry> geometry = ConvGeometry::Make(kind, config.conv, x, w, y);
  if (geometry.has_error()) return ffi::Unexpected(geometry.error());
  const ffi::Error type_error = CheckConvTypes(
      kind, x, w, y,
      {ffi::DataType::F16, ffi::DataType::BF16, ffi::DataType::F32, ffi::DataType::F64});
  if (type_error.failure()) return ffi::Unexpected(type_error);

  const ffi::AnyBuffer& operand = kind == ConvKind::kDgrad ? y : x;
  const ffi::AnyBuffer& result = kind == ConvKind::kFprop ? y : kind == ConvKind::kDgrad ? x : w;
  if (ffi::ByteWidth(result.element_type()) < ffi::ByteWidth(operand.element_type())) {
    return ffi::Unexpected(InvalidArgument(ConvName(kind), ": the result has dtype ",
                                           result.element_type(), ", narrower than the operands' ",
                                           operand.element_type()));
  }

  const std::optional<SearchMode> mode = SearchModeNamed(config.search);
  if (!mode) {
    return ffi::Unexpected(InvalidArgument(ConvName(kind), ": search is \"", config.search,
                                           "\", expected default, heuristic or exhaustive"));
  }

  Call call;
  call.rules = {*mode, config.generation};
  call.result = result.untyped_data();
  call.result_bytes = result.size_bytes();
  call.empty = x.element_count() == 0 || w.element_count() == 0 || y.element_count() == 0;
  const uintptr_t start = reinterpret_cast<uintptr_t>(workspace.untyped_data());
  call.buffers = {x.untyped_data(), w.untyped_data(), y.untyped_data(),
                  reinterpret_cast<void*>((start + kWorkspaceAlignment - 1) / kWorkspaceAlignment *
                                          kWorkspaceAlignment)};

  ConvProblem& problem = call.problem;
  problem.kind = kind;
  problem.geometry = Widened(*geometry);
  problem.operand_type = operand.element_type();
  problem.result_type = result.element_type();
  // Says nothing for other types, so it must not make two problems of one.
  problem.allow_tf32 = config.allow_tf32 || operand.element_type() != ffi::DataType::F32;
  problem.deterministic = config.deterministic;
  problem.workspace_limit =
      std::max<int64_t>(0, static_cast<int64_t>(workspace.size_bytes()) - kWorkspaceAlignment);
  problem.alignment = CommonAlignment(call.buffers);
  problem.device = device;
  return call;
}

// What has been checked of a call, for the text of an error.
std::string ProblemText(const ConvProblem& problem) {
  return problem.geometry.spatial > 0 ? problem.ToString() : std::string();
}

ffi::Error Initialize(ConvKind kind, cudaStream_t stream, int32_t device,
                      const CudaConvConfig& config, const ffi::AnyBuffer& x,
                      const ffi::AnyBuffer& w, const ffi::AnyBuffer& y,
                      const Workspace& workspace) {
  ConvProblem problem;
  const auto body = [&] {
    const ffi::ErrorOr<Call> call = Check(kind, device, config, x, w, y, workspace);
    if (call.has_error()) return ffi::Error(call.error());
    problem = call->problem;
    if (call->empty) return ffi::Error::Success();
    const auto chosen = FindOrMakePlan(call->problem, call->rules, call->buffers, stream);
    return chosen.has_error() ? ffi::Error(chosen.error()) : ffi::Error::Success();
  };
  return Guarded(ConvName(kind), body, [&] { return ProblemText(problem); });
}

// The plan that Initialize made. Made again if it has left the cache since, unless the stream is
// being captured: nothing may be built then.
ffi::ErrorOr<std::shared_ptr<const ChosenPlan>> PlanOf(const Call& call, cudaStream_t stream) {
  if (std::shared_ptr<const ChosenPlan> chosen = FindPlan(call.problem, call.rules)) return chosen;
  const char* op = ConvName(call.problem.kind);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const cudaError_t status = cudaStreamIsCapturing(stream, &capture);
  if (status != cudaSuccess) {
    return ffi::Unexpected(WithSizes(CudaError(op, "cudaStreamIsCapturing", status),
                                     [&] { return call.problem.ToString(); }));
  }
  if (capture != cudaStreamCaptureStatusNone) {
    return ffi::Unexpected(ffi::Error(
        ffi::ErrorCode::kFailedPrecondition,
        Text(op, ": its plan left the cache before a capture (", call.problem.ToString(), ")")));
  }
  return FindOrMakePlan(call.problem, call.rules, call.buffers, stream);
}

ffi::Error Execute(ConvKind kind, cudaStream_t stream, int32_t device, const CudaConvConfig& config,
                   const ffi::AnyBuffer& x, const ffi::AnyBuffer& w, const ffi::AnyBuffer& y,
                   const Workspace& workspace) {
  ConvProblem problem;
  const auto sizes = [&] { return ProblemText(problem); };
  const auto body = [&] {
    const ffi::ErrorOr<Call> call = Check(kind, device, config, x, w, y, workspace);
    if (call.has_error()) return ffi::Error(call.error());
    problem = call->problem;
    if (call->empty) {
      if (call->result_bytes == 0) return ffi::Error::Success();
      return WithSizes(CudaError(ConvName(kind), "clearing the result",
                                 cudaMemsetAsync(call->result, 0, call->result_bytes, stream)),
                       sizes);
    }
    const auto chosen = PlanOf(*call, stream);
    if (chosen.has_error()) return ffi::Error(chosen.error());
    ffi::ErrorOr<DnnHandle> handle = DnnHandle::Borrow(ConvName(kind), device, stream);
    if (handle.has_error()) return WithSizes(handle.error(), sizes);
    ffi::Error run = (*chosen)->plan->Run(*handle, call->buffers);
    ffi::Error finish = handle->Finish(ConvName(kind));
    return run.failure() ? run : WithSizes(finish, sizes);
  };
  return Guarded(ConvName(kind), body, sizes);
}

using Stage = ffi::Error (*)(ConvKind, cudaStream_t, int32_t, const CudaConvConfig&,
                             const ffi::AnyBuffer&, const ffi::AnyBuffer&, const ffi::AnyBuffer&,
                             const Workspace&);

template <Stage stage>
ffi::Error Fprop(cudaStream_t stream, int32_t device, CudaConvConfig config, ffi::AnyBuffer x,
                 ffi::AnyBuffer w, ffi::Result<ffi::AnyBuffer> y,
                 ffi::Result<Workspace> workspace) {
  return stage(ConvKind::kFprop, stream, device, config, x, w, *y, *workspace);
}

// The shape of dx does not follow from dy and w (several inputs give the same output size when the
// stride is above 1), so it is read from the result.
template <Stage stage>
ffi::Error Dgrad(cudaStream_t stream, int32_t device, CudaConvConfig config, ffi::AnyBuffer dy,
                 ffi::AnyBuffer w, ffi::Result<ffi::AnyBuffer> dx,
                 ffi::Result<Workspace> workspace) {
  return stage(ConvKind::kDgrad, stream, device, config, *dx, w, dy, *workspace);
}

template <Stage stage>
ffi::Error Wgrad(cudaStream_t stream, int32_t device, CudaConvConfig config, ffi::AnyBuffer x,
                 ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> dw,
                 ffi::Result<Workspace> workspace) {
  return stage(ConvKind::kWgrad, stream, device, config, x, *dw, dy, *workspace);
}

// The two operands, the result and the workspace, after what every call carries.
template <ffi::ExecutionStage stage>
auto ConvBinding() {
  return ffi::Ffi::Bind<stage>()
      .template Ctx<ffi::PlatformStream<cudaStream_t>>()
      .template Ctx<ffi::DeviceOrdinal>()
      .template Attrs<CudaConvConfig>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<Workspace>();
}

constexpr auto kInitialize = ffi::ExecutionStage::kInitialize;
constexpr auto kExecute = ffi::ExecutionStage::kExecute;

}  // namespace
}  // namespace jax_convgrad

XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvFpropInitialize, jax_convgrad::Fprop<jax_convgrad::Initialize>,
                              jax_convgrad::ConvBinding<jax_convgrad::kInitialize>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvFprop, jax_convgrad::Fprop<jax_convgrad::Execute>,
                              jax_convgrad::ConvBinding<jax_convgrad::kExecute>(),
                              {::xla::ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvDgradInitialize, jax_convgrad::Dgrad<jax_convgrad::Initialize>,
                              jax_convgrad::ConvBinding<jax_convgrad::kInitialize>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvDgrad, jax_convgrad::Dgrad<jax_convgrad::Execute>,
                              jax_convgrad::ConvBinding<jax_convgrad::kExecute>(),
                              {::xla::ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvWgradInitialize, jax_convgrad::Wgrad<jax_convgrad::Initialize>,
                              jax_convgrad::ConvBinding<jax_convgrad::kInitialize>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvWgrad, jax_convgrad::Wgrad<jax_convgrad::Execute>,
                              jax_convgrad::ConvBinding<jax_convgrad::kExecute>(),
                              {::xla::ffi::Traits::kCmdBufferCompatible});
