// The convolution handlers: checks, calls that need no library, and errors as values. See
// handlers.h.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cuda/conv_plan.h"
#include "cuda/cudnn/cache.h"
#include "cuda/cudnn/handle.h"
#include "cuda/handlers.h"
#include "cuda/status.h"
#include "ffi/conv.h"
#include "ffi/error.h"
#include "ffi/guard.h"

namespace jax_convgrad {

// Attributes of a call on CUDA.
struct CudaConvConfig {
  ConvConfig conv;
  std::string_view weights;
  bool allow_tf32;
  bool deterministic;
  std::string_view search;
  int64_t generation;
};

}  // namespace jax_convgrad

// The attributes are flat.
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(::jax_convgrad::CudaConvConfig, JAX_CONVGRAD_CONV_ATTRIBUTES,
                                      ::xla::ffi::StructMember<std::string_view>("weights"),
                                      ::xla::ffi::StructMember<bool>("allow_tf32"),
                                      ::xla::ffi::StructMember<bool>("deterministic"),
                                      ::xla::ffi::StructMember<std::string_view>("search"),
                                      ::xla::ffi::StructMember<int64_t>("generation"));

namespace jax_convgrad {
namespace {

using Workspace = ffi::BufferR1<ffi::DataType::U8>;

// More than any one program has layers.
constexpr size_t kMaxCheckedCalls = 4096;

// The largest power of two, up to 16, that all addresses are multiples of.
int64_t CommonAlignment(const ConvBuffers& buffers) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(buffers.x) |
                         reinterpret_cast<uintptr_t>(buffers.w) |
                         reinterpret_cast<uintptr_t>(buffers.y) | uintptr_t{16};
  return static_cast<int64_t>(bits & (~bits + 1));
}

// The arguments of a call, unchecked.
struct RawCall {
  ConvKind kind;
  int32_t device;
  const CudaConvConfig& config;
  const ffi::AnyBuffer &x, &w, &y;
  const Workspace& workspace;

  const ffi::AnyBuffer& operand() const { return kind == ConvKind::kDgrad ? y : x; }
  const ffi::AnyBuffer& result() const {
    return kind == ConvKind::kFprop ? y : kind == ConvKind::kDgrad ? x : w;
  }

  ConvBuffers Buffers() const {
    const uintptr_t start = reinterpret_cast<uintptr_t>(workspace.untyped_data());
    constexpr uintptr_t kAlignment = kWorkspaceAlignment;
    return {x.untyped_data(), w.untyped_data(), y.untyped_data(),
            reinterpret_cast<void*>((start + kAlignment - 1) / kAlignment * kAlignment)};
  }
};

// A checked call: everything except the addresses of its arrays and what follows from them.
struct CheckedCall {
  PlanKey plan;  // except the alignment
  size_t result_bytes = 0;
  bool empty = false;  // some array has no elements: the result is a sum over nothing

  PlanKey PlanFor(const ConvBuffers& buffers) const {
    PlanKey key = plan;
    key.problem.alignment = CommonAlignment(buffers);
    return key;
  }
};

ffi::ErrorOr<CheckedCall> Check(const RawCall& raw, SearchMode mode, WeightsOrder weights) {
  const ConvKind kind = raw.kind;
  const ffi::ErrorOr<ConvGeometry> geometry =
      ConvGeometry::Make(kind, raw.config.conv, raw.x, raw.w, raw.y);
  if (geometry.has_error()) return ffi::Unexpected(geometry.error());
  const ffi::Error type_error = CheckConvTypes(
      kind, raw.x, raw.w, raw.y,
      {ffi::DataType::F16, ffi::DataType::BF16, ffi::DataType::F32, ffi::DataType::F64});
  if (type_error.failure()) return ffi::Unexpected(type_error);
  const ffi::DataType operand_type = raw.operand().element_type();
  const ffi::DataType result_type = raw.result().element_type();
  if (ffi::ByteWidth(result_type) < ffi::ByteWidth(operand_type)) {
    return ffi::Unexpected(InvalidArgument(ConvName(kind), ": the result has dtype ", result_type,
                                           ", narrower than the operands' ", operand_type));
  }

  CheckedCall call;
  call.result_bytes = raw.result().size_bytes();
  call.empty =
      raw.x.element_count() == 0 || raw.w.element_count() == 0 || raw.y.element_count() == 0;
  call.plan.rules = {mode, raw.config.generation};
  ConvProblem& problem = call.plan.problem;
  problem.kind = kind;
  problem.geometry = Widened(*geometry);
  problem.operand_type = operand_type;
  problem.result_type = result_type;
  // With one output channel, or one weight for each, both orders are the same: one problem, whose
  // weights no engine has to reorder.
  const bool in_one_order =
      call.empty || problem.geometry.out_channels == 1 ||
      raw.w.element_count() == static_cast<size_t>(problem.geometry.out_channels);
  problem.weights = in_one_order ? WeightsOrder::kOXI : weights;
  // Ignored for other types, so that it does not make two problems of one.
  problem.allow_tf32 = raw.config.allow_tf32 || operand_type != ffi::DataType::F32;
  problem.deterministic = raw.config.deterministic;
  problem.workspace_limit =
      std::max<int64_t>(0, static_cast<int64_t>(raw.workspace.size_bytes()) - kWorkspaceAlignment);
  problem.device = raw.device;
  return call;
}

// The check of a call, which runs once for all calls that differ only in addresses: Initialize runs
// it, and Execute finds its outcome.
ffi::ErrorOr<std::shared_ptr<const CheckedCall>> FindOrCheck(const RawCall& raw) {
  static CheckedCalls<CheckedCall>* const calls = new CheckedCalls<CheckedCall>(kMaxCheckedCalls);
  const std::optional<SearchMode> mode = SearchModeNamed(raw.config.search);
  if (!mode) {
    return ffi::Unexpected(InvalidArgument(ConvName(raw.kind), ": search is \"", raw.config.search,
                                           "\", expected default, heuristic or exhaustive"));
  }
  const std::optional<WeightsOrder> weights = WeightsOrderNamed(raw.config.weights);
  if (!weights) {
    return ffi::Unexpected(InvalidArgument(ConvName(raw.kind), ": weights is \"",
                                           raw.config.weights, "\", expected OXI or XIO"));
  }
  CallKey key = ConvCallKey(raw.kind, raw.config.conv, raw.x, raw.w, raw.y);
  key.Add(static_cast<int64_t>(*mode) * 8 + static_cast<int64_t>(*weights) * 4 +
          (raw.config.allow_tf32 ? 2 : 0) + (raw.config.deterministic ? 1 : 0));
  key.Add(raw.config.generation).Add(raw.device);
  key.Add(static_cast<int64_t>(raw.workspace.size_bytes()));
  return calls->Find(key, [&] { return Check(raw, *mode, *weights); });
}

// The sizes of a call, for the text of an error; empty if it has not been checked.
std::string SizesText(const std::shared_ptr<const CheckedCall>& call, const RawCall& raw) {
  return call == nullptr ? std::string() : call->PlanFor(raw.Buffers()).problem.ToString();
}

ffi::Error Initialize(const RawCall& raw, cudaStream_t stream) {
  std::shared_ptr<const CheckedCall> call;
  const auto body = [&] {
    const auto found = FindOrCheck(raw);
    if (found.has_error()) return ffi::Error(found.error());
    call = *found;
    if (call->empty) return ffi::Error::Success();
    const ConvBuffers buffers = raw.Buffers();
    const auto chosen = FindOrMakePlan(call->PlanFor(buffers), buffers, stream);
    return chosen.has_error() ? ffi::Error(chosen.error()) : ffi::Error::Success();
  };
  return Guarded(ConvName(raw.kind), body, [&] { return SizesText(call, raw); });
}

// The plan that Initialize has made. If it has been evicted since, it is made again, which is not
// allowed during a capture.
ffi::ErrorOr<std::shared_ptr<const ChosenPlan>> PlanOf(const PlanKey& key,
                                                       const ConvBuffers& buffers,
                                                       cudaStream_t stream) {
  if (std::shared_ptr<const ChosenPlan> found = FindPlan(key)) return found;
  const char* op = ConvName(key.problem.kind);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const cudaError_t status = cudaStreamIsCapturing(stream, &capture);
  if (status != cudaSuccess) {
    return ffi::Unexpected(WithSizes(CudaError(op, "cudaStreamIsCapturing", status),
                                     [&] { return key.problem.ToString(); }));
  }
  if (capture != cudaStreamCaptureStatusNone) {
    return ffi::Unexpected(
        ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                   Text(op, ": its plan was evicted from the plan cache before a capture (",
                        key.problem.ToString(), ")")));
  }
  return FindOrMakePlan(key, buffers, stream);
}

ffi::Error Execute(const RawCall& raw, cudaStream_t stream) {
  const char* const op = ConvName(raw.kind);
  std::shared_ptr<const CheckedCall> call;
  const auto sizes = [&] { return SizesText(call, raw); };
  const auto body = [&] {
    const auto found = FindOrCheck(raw);
    if (found.has_error()) return ffi::Error(found.error());
    call = *found;
    if (call->empty) {
      if (call->result_bytes == 0) return ffi::Error::Success();
      const cudaError_t status =
          cudaMemsetAsync(raw.result().untyped_data(), 0, call->result_bytes, stream);
      return WithSizes(CudaError(op, "cudaMemsetAsync of the result", status), sizes);
    }
    const ConvBuffers buffers = raw.Buffers();
    const auto chosen = PlanOf(call->PlanFor(buffers), buffers, stream);
    if (chosen.has_error()) return ffi::Error(chosen.error());
    const ConvPlan& plan = *(*chosen)->plan;
    if (!plan.needs_handle()) return plan.Run(/*handle=*/nullptr, stream, buffers);
    ffi::ErrorOr<DnnHandle> handle = DnnHandle::Borrow(op, raw.device, stream);
    if (handle.has_error()) return WithSizes(handle.error(), sizes);
    ffi::Error run = plan.Run(handle->get(), handle->stream(), buffers);
    ffi::Error finish = handle->Finish(op);
    return run.failure() ? run : WithSizes(finish, sizes);
  };
  return Guarded(op, body, sizes);
}

using Stage = ffi::Error (*)(const RawCall&, cudaStream_t);

template <Stage stage>
ffi::Error Fprop(cudaStream_t stream, int32_t device, CudaConvConfig config, ffi::AnyBuffer x,
                 ffi::AnyBuffer w, ffi::Result<ffi::AnyBuffer> y,
                 ffi::Result<Workspace> workspace) {
  return stage({ConvKind::kFprop, device, config, x, w, *y, *workspace}, stream);
}

// The shape of dx does not follow from dy and w (several inputs give the same output size when the
// stride is above 1), so it is read from the result.
template <Stage stage>
ffi::Error Dgrad(cudaStream_t stream, int32_t device, CudaConvConfig config, ffi::AnyBuffer dy,
                 ffi::AnyBuffer w, ffi::Result<ffi::AnyBuffer> dx,
                 ffi::Result<Workspace> workspace) {
  return stage({ConvKind::kDgrad, device, config, *dx, w, dy, *workspace}, stream);
}

template <Stage stage>
ffi::Error Wgrad(cudaStream_t stream, int32_t device, CudaConvConfig config, ffi::AnyBuffer x,
                 ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> dw,
                 ffi::Result<Workspace> workspace) {
  return stage({ConvKind::kWgrad, device, config, x, *dw, dy, *workspace}, stream);
}

// The two operands, the result and the workspace, after the arguments that every call has.
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
