// Which of the three strips a row of the table stands for.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_STRIPS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_STRIPS_CUH_

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/modes/aligned_strip.cuh"
#include "cuda/kernels/resample/modes/any_strip.cuh"
#include "cuda/kernels/resample/modes/staged_strip.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename T, int kRow, bool kAligned, bool kAny>
struct StripOf {
  using Type = StagedStrip<T, kResampleRows[kRow].rows, kResampleRows[kRow].step>;
};
template <typename T, int kRow>
struct StripOf<T, kRow, true, false> {
  using Type = AlignedStrip<T, kResampleRows[kRow].rows>;
};
template <typename T, int kRow>
struct StripOf<T, kRow, false, true> {
  using Type = AnyStrip<T, kResampleRows[kRow].rows>;
};
template <typename T, int kRow>
struct ModeOf<ResampleLoad::kStrip, T, kRow>
    : StripOf<T, kRow, kResampleRows[kRow].aligned, kResampleRows[kRow].taps == 0> {};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_STRIPS_CUH_
