// The instances of the kernel that are compiled, and which of them takes a problem.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_INSTANCES_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_INSTANCES_CUH_

#include "cuda/kernels/resample/flat.cuh"
#include "cuda/kernels/resample/shape.cuh"
#include "cuda/kernels/resample/tiling.h"
#include "cuda/kernels/resample/walk.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename KernelType>
struct Instance {
  using Kernel = KernelType;
  static constexpr ResampleInstance kValues{Kernel::kPacked,
                                            Kernel::kRows,
                                            Kernel::kVector,
                                            Kernel::kTaps,
                                            Kernel::kBlocks * Kernel::kMaxThreads,
                                            Kernel::kStages};
};

template <typename... Kernels>
struct List {};

// Whether a kernel can do what the problem needs, and quickly unless a band is long.
template <typename Kernel>
bool Serves(const ResampleNeeds& needs) {
  if (Kernel::kLoad != needs.load) return false;
  if (Kernel::kPacked && needs.aligned < (Kernel::kStrip ? Kernel::kPiece : Kernel::kVector)) {
    return false;
  }
  if (Kernel::kGrow != needs.grow || Kernel::kRows < needs.rows) return false;
  if ((Kernel::kWindow || Kernel::kSpread) && Kernel::kStep != needs.step) return false;
  if (Kernel::kPairs || Kernel::kColumns) {
    // A window begins up to three columns in front of its first weight, and has two columns'.
    return needs.taps + needs.step + 3 <= Kernel::kTaps && needs.mid_taps == 1;
  }
  if (Kernel::kStrip && Kernel::kStep > 0 && Kernel::kStep < needs.step) return false;
  if (Kernel::kAny) return true;
  return (Kernel::kStrip || needs.taps <= Kernel::kTaps) && needs.mid_taps <= Kernel::kMid;
}

template <typename Visit>
bool VisitFirst(const ResampleNeeds&, const Visit&, List<>) {
  return false;
}
template <typename Visit, typename First, typename... Others>
bool VisitFirst(const ResampleNeeds& needs, const Visit& visit, List<First, Others...>) {
  if (Serves<First>(needs)) {
    visit(Instance<First>(), needs);
    return true;
  }
  return VisitFirst(needs, visit, List<Others...>());
}

template <typename T, bool kGrow, int kRows, int kTaps, int kMid = 1>
using Vectors = Walk<Shape<T, ResampleLoad::kVectors, true, kGrow, kRows, kTaps, kMid>>;
template <typename T, bool kPacked, bool kGrow, int kRows, int kTaps, int kMid = 1>
using Elements = Walk<Shape<T, ResampleLoad::kElements, kPacked, kGrow, kRows, kTaps, kMid>>;
template <typename T, bool kPacked, int kRows, int kTaps>
using Staged = Walk<Shape<T, ResampleLoad::kStaged, kPacked, true, kRows, kTaps, 1>>;
template <typename T, bool kPacked, bool kGrow, int kRows, int kTaps = 1, int kStep = 0>
using Strip = Walk<Shape<T, ResampleLoad::kStrip, kPacked, kGrow, kRows, kTaps, 1, kStep>>;

template <typename T, bool kGrow, int kRows, int kStep, int kTaps, int kMid = 1>
using Window = Walk<Shape<T, ResampleLoad::kWindow, true, kGrow, kRows, kTaps, kMid, kStep>>;

template <typename T, int kRows, int kTaps>
using Pairs = Walk<Shape<T, ResampleLoad::kPairs, true, false, kRows, kTaps, 1>>;
template <int kRows, int kTaps>
using Columns = Walk<Shape<float, ResampleLoad::kColumns, false, false, kRows, kTaps, 1>>;
template <typename T, int kRows, int kStep, int kTaps, int kMid = 1>
using Spread = Walk<Shape<T, ResampleLoad::kSpread, true, true, kRows, kTaps, kMid, kStep>>;
template <typename T, int kRows, int kTaps>
using Shifted = Walk<Shape<T, ResampleLoad::kShifted, false, true, kRows, kTaps, 1>>;

// Sorted from few rows and taps to many: the first that serves is taken. Those with 0 taps take any
// number.
template <typename T>
using Common =
    List<Vectors<T, false, 1, 2>, Vectors<T, false, 2, 4>, Vectors<T, false, 2, 6>,
         Vectors<T, false, 2, 8>, Vectors<T, false, 2, 4, 4>, Vectors<T, false, 2, 0>,
         Vectors<T, false, 4, 16>, Vectors<T, false, 4, 0>, Vectors<T, false, 12, 0>,
         Vectors<T, true, 1, 1>, Vectors<T, true, 2, 2>, Vectors<T, true, 2, 2, 2>,
         Vectors<T, true, 4, 4>, Vectors<T, true, 10, 0>,  //
         Elements<T, true, true, 1, 1>, Elements<T, true, true, 1, 2>,
         Elements<T, true, true, 2, 2>, Elements<T, true, true, 2, 2, 2>,
         Elements<T, true, true, 4, 4>, Elements<T, true, true, 6, 6>,
         Elements<T, false, true, 2, 2>, Elements<T, false, true, 4, 4>,
         Elements<T, false, true, 10, 0>, Elements<T, false, false, 12, 0>,  //
         Staged<T, true, 6, 6>, Staged<T, false, 6, 6>,                      //
         Window<T, false, 1, 2, 2>, Window<T, false, 2, 2, 4>, Window<T, false, 2, 2, 4, 4>,
         Window<T, true, 1, 2, 4>, Window<T, false, 2, 4, 8>, Window<T, false, 4, 4, 16>,  //
         Pairs<T, 6, 20>, Shifted<T, 1, 1>, Shifted<T, 2, 2>,                              //
         Strip<T, true, true, 1>, Strip<T, false, true, 1>, Strip<T, true, false, 2>,
         Strip<T, false, false, 2, 1, 4>, Strip<T, false, false, 2>, Strip<T, true, false, 4>,
         Strip<T, false, false, 4>, Strip<T, true, false, 6>, Strip<T, true, false, 8>,
         Strip<T, false, false, 8>, Strip<T, false, false, 12>, Strip<T, false, false, 2, 0>,
         Strip<T, false, false, 12, 0>>;
template <typename T>
using Spreads = List<Spread<T, 1, 2, 1>, Spread<T, 2, 2, 2>, Spread<T, 2, 2, 2, 2>,
                     Spread<T, 1, 4, 1>, Spread<T, 2, 4, 3>>;

template <typename... Some, typename... Others>
List<Some..., Others...> Join(List<Some...>, List<Others...>);

template <typename T>
struct Kernels;
template <>
struct Kernels<float> {
  using All = decltype(Join(List<Columns<2, 12>, Columns<6, 20>>(), Common<float>()));
};
template <>
struct Kernels<BFloat16> {
  using All = decltype(Join(List<Flat<BFloat16>>(), Join(Spreads<BFloat16>(), Common<BFloat16>())));
};

// Half has fewer instances, and double only those that take anything, so that less is compiled.
template <>
struct Kernels<Half> {
  using All =
      List<Flat<Half>, Vectors<Half, false, 1, 2>, Vectors<Half, false, 2, 4>,
           Vectors<Half, false, 2, 8>, Vectors<Half, false, 2, 0>, Vectors<Half, false, 4, 0>,
           Vectors<Half, false, 12, 0>, Vectors<Half, true, 1, 1>, Vectors<Half, true, 2, 2>,
           Vectors<Half, true, 4, 4>, Vectors<Half, true, 10, 0>,  //
           Elements<Half, true, true, 1, 1>, Elements<Half, true, true, 2, 2>,
           Elements<Half, true, true, 4, 4>, Elements<Half, false, true, 2, 2>,
           Elements<Half, false, true, 10, 0>, Elements<Half, false, false, 12, 0>,  //
           Window<Half, false, 1, 2, 2>, Window<Half, false, 2, 2, 4>,
           Window<Half, false, 2, 4, 8>,  //
           Strip<Half, false, true, 1>, Strip<Half, false, false, 2>, Strip<Half, false, false, 12>,
           Strip<Half, false, false, 12, 0>>;
};
template <>
struct Kernels<double> {
  using All =
      List<Vectors<double, false, 2, 0>, Vectors<double, false, 12, 0>, Vectors<double, true, 2, 0>,
           Vectors<double, true, 10, 0>, Elements<double, false, true, 2, 0>,
           Elements<double, false, true, 10, 0>, Elements<double, false, false, 12, 0>,
           Strip<double, false, true, 1>, Strip<double, false, false, 2>,
           Strip<double, false, false, 12>, Strip<double, false, false, 12, 0>>;
};

// Calls visit(Instance<kernel>(), needs) for the kernel of a problem.
template <typename T, typename Visit>
bool VisitInstance(ResampleNeeds needs, const Visit& visit) {
  using All = typename Kernels<T>::All;
  if (VisitFirst(needs, visit, All())) return true;
  if (needs.load == ResampleLoad::kWindow || needs.load == ResampleLoad::kPairs ||
      needs.load == ResampleLoad::kColumns) {
    needs.load = ResampleLoad::kStrip;
    if (VisitFirst(needs, visit, All())) return true;
  }
  if (needs.load == ResampleLoad::kFlat) {
    needs.load = ResampleLoad::kShifted;
    if (VisitFirst(needs, visit, All())) return true;
  }
  if (needs.load == ResampleLoad::kStaged || needs.load == ResampleLoad::kSpread ||
      needs.load == ResampleLoad::kShifted) {
    needs.load = ResampleLoad::kElements;
    if (VisitFirst(needs, visit, All())) return true;
  }
  needs.gather = true;
  needs.grow = false;
  needs.rows = 1;
  return VisitFirst(needs, visit, All());
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_INSTANCES_CUH_
