// The resample handler: checks, the choice of kernels, and errors as values. See handlers.h.

#include <algorithm>
#include <cstring>

#include "cpu/handlers.h"
#include "cpu/kernels/resample/plan.h"
#include "cpu/kernels/resample/tile.h"
#include "cpu/runtime/parallel_for.h"
#include "cpu/runtime/processor.h"
#include "cpu/runtime/scratch.h"
#include "ffi/checked.h"
#include "ffi/guard.h"
#include "ffi/integers.h"
#include "ffi/resample.h"

namespace jax_convgrad {

const ResampleKernels& FindResampleKernels() {
  static const ResampleKernels kernels = [] {
    const bool has_avx2 = HasAvx2() && HasF16C();
    if (has_avx2 && HasAvx512()) return ResampleKernels{16, resample_avx512::RunTile};
    if (has_avx2) return ResampleKernels{8, resample_avx2::RunTile};
    return ResampleKernels{4, resample_sse2::RunTile};
  }();
  return kernels;
}

namespace {

// Inside a single axis; with fewer bytes, rows are transposed to lie side by side in vectors.
constexpr int64_t kFewInnerBytes = 64;
// A thread is worth waking for this many bytes.
constexpr size_t kMinBytes = 128 << 10;

ffi::Error Run(ffi::ThreadPool& pool, const ResampleForm& form, const ffi::AnyBuffer& x,
               const ffi::AnyBuffer& y) {
  const ResampleKernels& kernels = FindResampleKernels();
  const int64_t useful = static_cast<int64_t>((x.size_bytes() + y.size_bytes()) / kMinBytes) + 1;
  const int64_t threads = std::min(NumThreads(pool), useful);
  const ffi::ErrorOr<ResamplePlan> plan = MakeResamplePlan(
      form, x.element_type(), x.untyped_data(), y.untyped_data(), kernels.lanes, threads);
  if (plan.has_error()) return plan.error();

  const size_t bytes = RoundUp(plan->scratch_bytes(), size_t{64});
  const Scratch scratch(MultipliedBytes(static_cast<size_t>(threads), bytes));
  const int64_t tiles = plan->tile_count();
  ParallelFor(pool, threads, plan->runs, [&](int64_t run, int64_t worker) {
    const int64_t begin = tiles * run / plan->runs, end = tiles * (run + 1) / plan->runs;
    for (int64_t tile = begin; tile < end; ++tile) {
      kernels.run_tile(*plan, x.element_type(), tile,
                       scratch.data() + static_cast<size_t>(worker) * bytes);
    }
  });
  return ffi::Error::Success();
}

ffi::Error ResampleImpl(ffi::ThreadPool pool, ResampleConfig config, ffi::AnyBuffer x,
                        ffi::RemainingArgs tables, ffi::Result<ffi::AnyBuffer> y) {
  const auto body = [&] {
    const ffi::ErrorOr<ResampleForm> form = MakeResampleForm(config, x, tables, *y, kFewInnerBytes);
    if (form.has_error()) return ffi::Error(form.error());
    if (form->work == ResampleForm::Work::kNone) return ffi::Error::Success();
    if (form->work == ResampleForm::Work::kZeros) {
      std::memset(y->untyped_data(), 0, y->size_bytes());
      return ffi::Error::Success();
    }
    return Run(pool, *form, x, *y);
  };
  return Guarded("resample", body, [&] { return ResampleText(config, x, *y); });
}

}  // namespace
}  // namespace jax_convgrad

XLA_FFI_DEFINE_HANDLER_SYMBOL(Resample, jax_convgrad::ResampleImpl,
                              ::xla::ffi::Ffi::Bind()
                                  .Ctx<::xla::ffi::ThreadPool>()
                                  .Attrs<::jax_convgrad::ResampleConfig>()
                                  .Arg<::xla::ffi::AnyBuffer>()    // x
                                  .RemainingArgs()                 // start, weights of each axis
                                  .Ret<::xla::ffi::AnyBuffer>());  // y
