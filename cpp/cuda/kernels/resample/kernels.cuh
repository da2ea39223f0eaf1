// The kernels that the rows of the table stand for.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_KERNELS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_KERNELS_CUH_

#include <type_traits>
#include <utility>

#include "cuda/kernels/resample/flat.cuh"
#include "cuda/kernels/resample/grow.cuh"
#include "cuda/kernels/resample/grow_staged.cuh"
#include "cuda/kernels/resample/instances.h"
#include "cuda/kernels/resample/modes/columns.cuh"
#include "cuda/kernels/resample/modes/elements.cuh"
#include "cuda/kernels/resample/modes/pairs.cuh"
#include "cuda/kernels/resample/modes/shifted.cuh"
#include "cuda/kernels/resample/modes/spread.cuh"
#include "cuda/kernels/resample/modes/staged.cuh"
#include "cuda/kernels/resample/modes/strips.cuh"
#include "cuda/kernels/resample/modes/vectors.cuh"
#include "cuda/kernels/resample/modes/window.cuh"
#include "cuda/kernels/resample/shrink.cuh"
#include "cuda/kernels/resample/shrink_staged.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename T>
constexpr unsigned kLetter = 0;
template <>
inline constexpr unsigned kLetter<Half> = resample_rows::kH;
template <>
inline constexpr unsigned kLetter<BFloat16> = resample_rows::kB;
template <>
inline constexpr unsigned kLetter<float> = resample_rows::kF;
template <>
inline constexpr unsigned kLetter<double> = resample_rows::kD;

template <typename T, int kRow>
constexpr bool kIsCompiled = (kResampleRows[kRow].types & kLetter<T>) != 0;

// A mode with its driver.
template <typename Mode, int kRow>
struct Walk {
  static constexpr bool kGrow = kResampleRows[kRow].grow, kStaged = Mode::kStages > 0;
  static constexpr int kRows = kResampleRows[kRow].rows;
  using Growing = std::conditional_t<kStaged, GrowStaged<Mode, kRows>, Grow<Mode, kRows>>;
  using Shrinking = std::conditional_t<kStaged, ShrinkStaged<Mode, kRows>, Shrink<Mode, kRows>>;
  using Type = std::conditional_t<kGrow, Growing, Shrinking>;
  static constexpr int kMaxThreads = jax_convgrad::kMaxThreads, kBlocks = Mode::kBlocks;
  static constexpr ResampleInstance kValues{Mode::kAlign,          kRows,
                                            Mode::kVector,         kResampleRows[kRow].taps,
                                            kBlocks * kMaxThreads, Mode::kStages};
};

template <typename T, int kRow, ResampleLoad kLoad>
struct KernelOf : Walk<typename ModeOf<kLoad, T, kRow>::Type, kRow> {};

// Its rows are its own, see flat.cuh.
template <typename T, int kRow>
struct KernelOf<T, kRow, ResampleLoad::kFlat> {
  using Type = Flat<T>;
  static constexpr int kMaxThreads = kFlatThreads, kBlocks = Type::kBlocks;
  static constexpr ResampleInstance kValues{1,           Type::kRows,           Type::kVector,
                                            Type::kTaps, kBlocks * kMaxThreads, 0};
};

// The kernel of a row: `Type` with a constructor of the task and shared memory and with
// Run(block, thread), its threads and blocks for __launch_bounds__, and kValues for the tiling.
template <typename T, int kRow>
struct Kernel : KernelOf<T, kRow, kResampleRows[kRow].load> {};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_KERNELS_CUH_
