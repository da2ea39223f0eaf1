// One element of y at a time from x directly: for problems that do not fit the drivers' blocks.
//
//   Grid: a block for each element of y, up to 2^30; then each block makes several. Block: 128
//   threads, which share the taps along the width. Shared memory: 1 KB, their sums. Registers: 56
//   to 64. Bound: the bands' weights, which every element reads anew. Not among the measured cases.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_DIRECT_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_DIRECT_CUH_

#include <cstdint>

#include "cuda/kernels/resample/elements.cuh"
#include "cuda/kernels/resample/tiling.h"

namespace jax_convgrad {
namespace resample_kernels {

// The elements that one output reads along one axis.
template <typename Sum>
struct Reads {
  int64_t start;
  int taps;
  const Sum* weights;  // null: one weight of 1

  CONVGRAD_DEVICE Reads(const ResampleAxis& axis, int64_t out)
      : start(axis.resampled ? ClampedStart(axis, out) : out),
        taps(axis.resampled ? static_cast<int>(axis.taps) : 1),
        weights(axis.resampled ? static_cast<const Sum*>(axis.weights) + out * axis.taps
                               : nullptr) {}

  CONVGRAD_DEVICE Sum Weight(int64_t tap) const {
    return weights == nullptr ? Sum(1) : weights[tap];
  }
};

// One element of y from x directly, with every `step`th tap along the width from `first` on. Not
// inlined, so that a path that is hardly ever taken costs the kernels no registers.
template <typename T>
__device__ __attribute__((noinline)) typename SumOf<T>::Type Directly(const ResampleForm& form,
                                                                      const T* x, int64_t plane,
                                                                      int64_t row, int64_t column,
                                                                      int64_t channel,
                                                                      int first = 0, int step = 1) {
  using Sum = typename SumOf<T>::Type;
  const Reads<Sum> depth(form.depth, plane), height(form.height, row), width(form.width, column);
  Sum sum = 0;
  for (int p = 0; p < depth.taps; ++p) {
    for (int q = 0; q < height.taps; ++q) {
      const Sum outer = depth.Weight(p) * height.Weight(q);
      if (outer == Sum(0)) continue;
      const T* const line = x + (depth.start + p) * form.x_plane + (height.start + q) * form.x_row +
                            width.start * form.inner + channel;
      for (int64_t r = first; r < width.taps; r += step) {
        const Sum weight = width.Weight(r);
        if (weight != Sum(0)) sum += outer * weight * ToSum(line[r * form.inner]);
      }
    }
  }
  return sum;
}

// One element of y per block, for bands too long for a tile. Each element reads as many elements of
// x as it has weights.
template <typename T>
struct LongBands {
  using Sum = typename SumOf<T>::Type;

  CONVGRAD_DEVICE static void Run(const ResampleTask& task, int64_t element, int thread,
                                  char* shared) {
    const ResampleForm& form = task.form;
    const int threads = task.tiling.threads;
    Sum* const partial = reinterpret_cast<Sum*>(shared);
    const auto next = [&element](int64_t size) {
      const int64_t at = element % size;
      element /= size;
      return at;
    };
    const int64_t channel = next(form.inner), column = next(form.width.out);
    const int64_t row = next(form.height.out), plane = next(form.depth.out);
    const int64_t b2 = next(form.batch[2]), b1 = next(form.batch[1]);
    const BatchAt batch(form, element, b1, b2);
    partial[thread] = Directly<T>(form, static_cast<const T*>(task.x) + batch.x, plane, row, column,
                                  channel, thread, threads);
    __syncthreads();
    if (thread == 0) {
      Sum sum = 0;
      for (int i = 0; i < threads; ++i) sum += partial[i];
      FromSum(sum, static_cast<T*>(task.y)[batch.y + plane * form.y_plane + row * form.y_row +
                                           column * form.inner + channel]);
    }
    __syncthreads();
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_DIRECT_CUH_
