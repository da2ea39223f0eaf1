// The compiled kernels of conv.h, wgrad.h and backward.h, one set per instruction set. A vector is
// some channels of one position.

#ifndef JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_KERNELS_H_
#define JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_KERNELS_H_

#include <cstdint>

#include "cpu/kernels/bfloat16.h"
#include "cpu/kernels/depthwise/sizes.h"

namespace jax_convgrad {

// A forward pass or an input gradient, and its memory. `operand` is x or dy, `result` y or dx.
template <typename T>
struct DepthwiseConvWork {
  DepthwiseSizes sizes;
  bool forward;
  int64_t piece, pieces;  // elements of a row's phases that are computed at once; pieces of a row
  const T* operand;
  T* result;
  const float* w;  // [block][tap][lane]
};

// A weight gradient and its memory.
template <typename T>
struct DepthwiseWgradWork {
  DepthwiseSizes sizes;
  const T* x;
  const T* dy;
  float* dw;  // [tap][channel]
};

// A whole backward pass and its memory.
template <typename T>
struct DepthwiseSweepWork {
  DepthwiseSizes sizes;
  int64_t phases;         // of the last axis's stride
  const TapReach* reach;  // of each phase's first element
  const T* x;
  const T* dy;
  T* dx;           // null if dx is not wanted
  const float* w;  // [block][tap][lane]
  int64_t tasks;
  float* sums;     // [task][block][tap, then one for db][lane]
  bool sums_dy;    // db is wanted
  float* dx_rows;  // [worker][column][lane]; null where dx itself takes the sums
};

template <typename T>
struct DepthwiseKernels {
  int64_t lanes;  // floats in a vector
  // One piece of the result: they are counted along rows, and rows through all images.
  void (*conv)(const DepthwiseConvWork<T>& work, int64_t piece);
  void (*wgrad)(const DepthwiseWgradWork<T>& work);
  // One task: a part of the rows of x, and the same part of the rows of dy for db.
  void (*sweep)(const DepthwiseSweepWork<T>& work, int64_t task, int64_t worker);
};

// The best set for so many channels that this processor supports. T is float or BFloat16.
template <typename T>
const DepthwiseKernels<T>& FindDepthwiseKernels(int64_t channels);

// The individual sets; not to be called on a processor that lacks their instructions.
namespace depthwise_avx512 {
extern const DepthwiseKernels<float> kFloat;
extern const DepthwiseKernels<BFloat16> kBFloat16;
}  // namespace depthwise_avx512
namespace depthwise_avx2 {
extern const DepthwiseKernels<float> kFloat;
extern const DepthwiseKernels<BFloat16> kBFloat16;
}  // namespace depthwise_avx2
namespace depthwise_sse2 {
extern const DepthwiseKernels<float> kFloat;
extern const DepthwiseKernels<BFloat16> kBFloat16;
}  // namespace depthwise_sse2

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_KERNELS_H_
