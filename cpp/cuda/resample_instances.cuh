// The instances of the kernels that are compiled, one for each shape that ChooseResampleShape
// gives.

#ifndef JAX_CONVGRAD_CUDA_RESAMPLE_INSTANCES_CUH_
#define JAX_CONVGRAD_CUDA_RESAMPLE_INSTANCES_CUH_

#include <type_traits>

#include "cuda/resample_grow.cuh"
#include "cuda/resample_shrink.cuh"
#include "cuda/resample_stream.cuh"
#include "cuda/resample_tiling.h"

namespace jax_convgrad {
namespace resample_kernels {

template <typename KernelType>
struct Instance {
  using Kernel = KernelType;
};

// Returns visit(Instance<kernel>()) for the kernel of a shape.
template <typename T, typename Visit>
auto VisitInstance(const ResampleShape& shape, const Visit& visit) {
  constexpr int kSums = 16 / sizeof(typename SumOf<T>::Type), kWide = 16 / sizeof(T);
  if (shape.kernel == ResampleKernel::kGrow) {
    const auto along = [&](auto is_along) {
      constexpr bool kAlong = decltype(is_along)::value;
      if (shape.vector > 1) {
        return shape.out_vector > 1 ? visit(Instance<Grow<T, kSums, kWide, kAlong>>())
                                    : visit(Instance<Grow<T, kSums, 1, kAlong>>());
      }
      return shape.out_vector > 1 ? visit(Instance<Grow<T, 1, kWide, kAlong>>())
                                  : visit(Instance<Grow<T, 1, 1, kAlong>>());
    };
    return shape.along ? along(std::true_type()) : along(std::false_type());
  }
  constexpr int kParts = kResampleScalarParts;
  if (shape.kernel == ResampleKernel::kStream) {
    const auto planes = [&](auto number) {
      constexpr int kPlanes = decltype(number)::value;
      // There are no copies of single 16-bit elements.
      if constexpr (sizeof(T) >= 4) {
        if (shape.vector == 1) {
          return shape.out_vector > 1 ? visit(Instance<Stream<T, 1, kParts, kSums, kPlanes, 4>>())
                                      : visit(Instance<Stream<T, 1, kParts, 1, kPlanes, 4>>());
        }
      }
      return shape.out_vector > 1 ? visit(Instance<Stream<T, kWide, 1, kSums, kPlanes, 4>>())
                                  : visit(Instance<Stream<T, kWide, 1, 1, kPlanes, 4>>());
    };
    return shape.planes > 1 ? planes(std::integral_constant<int, 2>())
                            : planes(std::integral_constant<int, 1>());
  }
  const auto planes = [&](auto number) {
    constexpr int kPlanes = decltype(number)::value;
    if (shape.vector > 1) {
      return shape.out_vector > 1 ? visit(Instance<Shrink<T, kSums, 1, kSums, kPlanes, 4>>())
                                  : visit(Instance<Shrink<T, kSums, 1, 1, kPlanes, 4>>());
    }
    return shape.out_vector > 1 ? visit(Instance<Shrink<T, 1, kParts, kSums, kPlanes, 4>>())
                                : visit(Instance<Shrink<T, 1, kParts, 1, kPlanes, 4>>());
  };
  return shape.planes > 1 ? planes(std::integral_constant<int, 2>())
                          : planes(std::integral_constant<int, 1>());
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_RESAMPLE_INSTANCES_CUH_
