// The resample handler: checks, and errors as values. See handlers.h.

#include <cuda_runtime_api.h>

#include "cuda/handlers.h"
#include "cuda/kernels/resample/launch.h"
#include "cuda/status.h"
#include "ffi/guard.h"
#include "ffi/resample.h"

namespace jax_convgrad {
namespace {

// Inside a single axis; with fewer bytes, threads take neighboring columns instead.
constexpr int64_t kFewInnerBytes = 64;

ResampleType TypeOf(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F16:
      return ResampleType::kF16;
    case ffi::DataType::BF16:
      return ResampleType::kBF16;
    case ffi::DataType::F64:
      return ResampleType::kF64;
    default:
      return ResampleType::kF32;
  }
}

// The tables are on the device, and the kernels clamp their contents.
ffi::Error ResampleImpl(cudaStream_t stream, ResampleConfig config, ffi::AnyBuffer x,
                        ffi::RemainingArgs tables, ffi::Result<ffi::AnyBuffer> y) {
  const auto sizes = [&] { return ResampleText(config, x, *y); };
  const auto body = [&] {
    const ffi::ErrorOr<ResampleForm> form = MakeResampleForm(config, x, tables, *y, kFewInnerBytes);
    if (form.has_error()) return ffi::Error(form.error());
    switch (form->work) {
      case ResampleForm::Work::kNone:
        return ffi::Error::Success();
      case ResampleForm::Work::kZeros:
        return WithSizes(CudaError("resample", "cudaMemsetAsync of the result",
                                   cudaMemsetAsync(y->untyped_data(), 0, y->size_bytes(), stream)),
                         sizes);
      case ResampleForm::Work::kBands:
        break;
    }
    return WithSizes(CudaError("resample", "launching the resample kernel",
                               LaunchResample(*form, TypeOf(x.element_type()), x.untyped_data(),
                                              y->untyped_data(), stream)),
                     sizes);
  };
  return Guarded("resample", body, sizes);
}

}  // namespace
}  // namespace jax_convgrad

XLA_FFI_DEFINE_HANDLER_SYMBOL(Resample, jax_convgrad::ResampleImpl,
                              ::xla::ffi::Ffi::Bind()
                                  .Ctx<::xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Attrs<::jax_convgrad::ResampleConfig>()
                                  .Arg<::xla::ffi::AnyBuffer>()   // x
                                  .RemainingArgs()                // start, weights of each axis
                                  .Ret<::xla::ffi::AnyBuffer>(),  // y
                              {::xla::ffi::Traits::kCmdBufferCompatible});
