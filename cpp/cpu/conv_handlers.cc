// The convolution handlers: checks, calls that need no library, and errors as values. See
// handlers.h.

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "cpu/handlers.h"
#include "cpu/kernels/depthwise/conv.h"
#include "cpu/kernels/direct.h"
#include "cpu/kernels/thin/conv.h"
#include "cpu/onednn/conv_limits.h"
#include "cpu/onednn/sliced_conv.h"
#include "cpu/runtime/parallel_for.h"
#include "ffi/checked_calls.h"
#include "ffi/conv.h"
#include "ffi/error.h"
#include "ffi/guard.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace jax_convgrad {
namespace {

ffi::ErrorCode CodeOf(dnnl_status_t status) {
  switch (status) {
    case dnnl_out_of_memory:
      return ffi::ErrorCode::kResourceExhausted;
    case dnnl_unimplemented:
      return ffi::ErrorCode::kUnimplemented;
    default:
      return ffi::ErrorCode::kInternal;
  }
}

// As many as plans are kept.
constexpr size_t kMaxCheckedCalls = 512;

// The arguments of a call, unchecked.
struct RawCall {
  ConvKind kind;
  const ConvConfig& config;
  const ffi::AnyBuffer &x, &w, &y;
  int64_t threads;

  const ffi::AnyBuffer& operand() const { return kind == ConvKind::kDgrad ? y : x; }
  const ffi::AnyBuffer& result() const {
    return kind == ConvKind::kFprop ? y : kind == ConvKind::kDgrad ? x : w;
  }
};

enum class Method { kZeros, kDirect, kThin, kDepthwise, kOnednn };

// A checked call and what computes it: everything except the addresses of its arrays.
struct CheckedCall {
  ConvProblem problem;
  Method method = Method::kZeros;
  std::shared_ptr<const SlicedConv> onednn;  // null unless `method` says so
};

Method MethodFor(const ConvProblem& problem) {
  if (problem.geometry.IsAllZero()) return Method::kZeros;
  if (NeedsDirectConv(problem.geometry)) return Method::kDirect;
  if (IsThinConv(problem)) return Method::kThin;
  if (IsDepthwiseConv(problem)) return Method::kDepthwise;
  return Method::kOnednn;
}

// Checks a call and makes its plan. `geometry` is set once the sizes have been checked.
ffi::ErrorOr<CheckedCall> Check(const RawCall& raw, ConvGeometry* geometry) {
  const ffi::ErrorOr<ConvGeometry> made =
      ConvGeometry::Make(raw.kind, raw.config, raw.x, raw.w, raw.y);
  if (made.has_error()) return ffi::Unexpected(made.error());
  *geometry = *made;
  const ffi::Error type_error =
      CheckConvTypes(raw.kind, raw.x, raw.w, raw.y, {ffi::DataType::F32, ffi::DataType::BF16});
  if (type_error.failure()) return ffi::Unexpected(type_error);
  CheckedCall call;
  call.problem = {raw.kind,
                  *made,
                  raw.operand().element_type(),
                  raw.result().element_type(),
                  WeightsStrides(raw.w, raw.config),
                  raw.threads};
  call.method = MethodFor(call.problem);
  if (call.method != Method::kOnednn) return call;
  try {
    call.onednn = SlicedConv::Get(call.problem);
  } catch (const dnnl::error&) {
    call.method = Method::kDirect;  // slower, but there for every problem
  }
  return call;
}

// How a call ends. It may return before its work is done.
struct Completion {
  ffi::Promise promise;
  bool later = false;  // the work completes the promise, not the handler
};

void Run(const CheckedCall& call, const RawCall& raw, ffi::ThreadPool& pool,
         Completion* completion) {
  void* const x = raw.x.untyped_data();
  void* const w = raw.w.untyped_data();
  void* const y = raw.y.untyped_data();
  const ffi::AnyBuffer &operand = raw.operand(), &result = raw.result();
  switch (call.method) {
    case Method::kZeros:
      if (result.element_count() > 0) std::memset(result.untyped_data(), 0, result.size_bytes());
      return;
    case Method::kDirect:
      DirectConv(pool, call.problem, x, w, y, result.untyped_data());
      return;
    case Method::kThin:
      BeginThinConv(pool, call.problem, static_cast<float*>(x), static_cast<float*>(w),
                    static_cast<float*>(y), completion->promise);
      completion->later = true;
      return;
    case Method::kDepthwise:
      DepthwiseConv(pool, call.problem, operand.untyped_data(), w, result.untyped_data());
      return;
    case Method::kOnednn:
      call.onednn->Run(pool, x, w, y);
      return;
  }
}

ffi::Future RunConv(ConvKind kind, ffi::ThreadPool pool, const ConvConfig& config,
                    const ffi::AnyBuffer& x, const ffi::AnyBuffer& w, const ffi::AnyBuffer& y) {
  static CheckedCalls<CheckedCall>* const calls = new CheckedCalls<CheckedCall>(kMaxCheckedCalls);
  Completion completion;
  ffi::Future future(completion.promise);
  std::shared_ptr<const CheckedCall> call;
  ConvGeometry geometry;  // without axes unless the check got that far
  const auto sizes = [&] {
    const ConvGeometry& checked = call == nullptr ? geometry : call->problem.geometry;
    return checked.spatial > 0 ? checked.ToString() : std::string();
  };
  const auto body = [&] {
    const RawCall raw{kind, config, x, w, y, NumThreads(pool)};
    CallKey key = ConvCallKey(kind, config, x, w, y);
    key.Add(raw.threads);
    try {
      const auto found = calls->Find(key, [&] { return Check(raw, &geometry); });
      if (found.has_error()) return ffi::Error(found.error());
      call = *found;
      Run(*call, raw, pool, &completion);
      return ffi::Error::Success();
    } catch (const dnnl::error& error) {
      return ffi::Error(CodeOf(error.status),
                        Text(ConvName(kind), ": oneDNN: ", error.message, " (", sizes(), ")"));
    }
  };
  ffi::Error error = Guarded(ConvName(kind), body, sizes);
  if (completion.later) return future;
  if (error.failure()) {
    completion.promise.SetError(std::move(error));
  } else {
    completion.promise.SetAvailable();
  }
  return future;
}

ffi::Future FpropImpl(ffi::ThreadPool pool, ConvConfig config, ffi::AnyBuffer x, ffi::AnyBuffer w,
                      ffi::Result<ffi::AnyBuffer> y) {
  return RunConv(ConvKind::kFprop, pool, config, x, w, *y);
}

// The shape of dx does not follow from dy and w (several inputs give the same output size when the
// stride is above 1), so it is read from the result.
ffi::Future DgradImpl(ffi::ThreadPool pool, ConvConfig config, ffi::AnyBuffer dy, ffi::AnyBuffer w,
                      ffi::Result<ffi::AnyBuffer> dx) {
  return RunConv(ConvKind::kDgrad, pool, config, *dx, w, dy);
}

ffi::Future WgradImpl(ffi::ThreadPool pool, ConvConfig config, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                      ffi::Result<ffi::AnyBuffer> dw) {
  return RunConv(ConvKind::kWgrad, pool, config, x, *dw, dy);
}

}  // namespace
}  // namespace jax_convgrad

XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvFprop, jax_convgrad::FpropImpl,
                              ::xla::ffi::Ffi::Bind()
                                  .Ctx<::xla::ffi::ThreadPool>()
                                  .Attrs<::jax_convgrad::ConvConfig>()
                                  .Arg<::xla::ffi::AnyBuffer>()    // x
                                  .Arg<::xla::ffi::AnyBuffer>()    // w
                                  .Ret<::xla::ffi::AnyBuffer>());  // y

XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvDgrad, jax_convgrad::DgradImpl,
                              ::xla::ffi::Ffi::Bind()
                                  .Ctx<::xla::ffi::ThreadPool>()
                                  .Attrs<::jax_convgrad::ConvConfig>()
                                  .Arg<::xla::ffi::AnyBuffer>()    // dy
                                  .Arg<::xla::ffi::AnyBuffer>()    // w
                                  .Ret<::xla::ffi::AnyBuffer>());  // dx

XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvWgrad, jax_convgrad::WgradImpl,
                              ::xla::ffi::Ffi::Bind()
                                  .Ctx<::xla::ffi::ThreadPool>()
                                  .Attrs<::jax_convgrad::ConvConfig>()
                                  .Arg<::xla::ffi::AnyBuffer>()    // x
                                  .Arg<::xla::ffi::AnyBuffer>()    // dy
                                  .Ret<::xla::ffi::AnyBuffer>());  // dw
