// The convolution handlers: checks, what needs no library, and errors as values. See handlers.h.

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "cpu/handlers.h"
#include "cpu/kernels/direct.h"
#include "cpu/kernels/thin/conv.h"
#include "cpu/onednn/sliced_conv.h"
#include "cpu/runtime/parallel_for.h"
#include "ffi/conv.h"
#include "ffi/error.h"
#include "ffi/guard.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace jax_convgrad {
namespace {

// Row-major strides of w's logical shape, in the order of w_spec.
std::array<int64_t, kMaxSpatialAxes + 2> WeightsStrides(const ffi::AnyBuffer& w,
                                                        const ConvConfig& config) {
  const ffi::Span<const int64_t> dims = w.dimensions();
  std::array<int64_t, kMaxSpatialAxes + 2> logical{}, strides{};
  int64_t stride = 1;
  for (size_t axis = dims.size(); axis-- > 0;) {
    logical[axis] = stride;
    stride *= dims[axis];
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    strides[i] = logical[static_cast<size_t>(config.w_spec[i])];
  }
  return strides;
}

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

// How a call ends, which may return before its work is done.
struct Completion {
  ffi::Promise promise;
  bool later = false;  // the work completes the promise, not the handler
};

ffi::Error RunChecked(const ConvProblem& problem, ffi::ThreadPool& pool, void* x, void* w, void* y,
                      void* result, Completion* completion) {
  if (NeedsDirectConv(problem.geometry)) {
    DirectConv(pool, problem, x, w, y, result);
    return ffi::Error::Success();
  }
  if (IsThinConv(problem)) {
    BeginThinConv(pool, problem, static_cast<float*>(x), static_cast<float*>(w),
                  static_cast<float*>(y), completion->promise);
    completion->later = true;
    return ffi::Error::Success();
  }
  try {
    SlicedConv::Get(problem)->Run(pool, x, w, y);
    return ffi::Error::Success();
  } catch (const dnnl::error& error) {
    return ffi::Error(CodeOf(error.status),
                      Text(ConvName(problem.kind), ": oneDNN: ", error.message, " (",
                           problem.geometry.ToString(), ")"));
  }
}

ffi::Future RunConv(ConvKind kind, ffi::ThreadPool pool, const ConvConfig& config,
                    const ffi::AnyBuffer& x, const ffi::AnyBuffer& w, const ffi::AnyBuffer& y) {
  Completion completion;
  ffi::Future future(completion.promise);
  ConvGeometry geometry;  // without axes until the call has been checked
  const auto body = [&] {
    const ffi::ErrorOr<ConvGeometry> made = ConvGeometry::Make(kind, config, x, w, y);
    if (made.has_error()) return ffi::Error(made.error());
    geometry = *made;
    const ffi::Error type_error =
        CheckConvTypes(kind, x, w, y, {ffi::DataType::F32, ffi::DataType::BF16});
    if (type_error.failure()) return type_error;

    const ffi::AnyBuffer& operand = kind == ConvKind::kDgrad ? y : x;
    const ffi::AnyBuffer& result = kind == ConvKind::kFprop ? y : kind == ConvKind::kDgrad ? x : w;
    if (geometry.IsAllZero()) {
      if (result.element_count() > 0) std::memset(result.untyped_data(), 0, result.size_bytes());
      return ffi::Error::Success();
    }
    return RunChecked({kind, geometry, operand.element_type(), result.element_type(),
                       WeightsStrides(w, config), NumThreads(pool)},
                      pool, x.untyped_data(), w.untyped_data(), y.untyped_data(),
                      result.untyped_data(), &completion);
  };
  ffi::Error error = Guarded(ConvName(kind), body, [&] {
    return geometry.spatial > 0 ? geometry.ToString() : std::string();
  });
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
