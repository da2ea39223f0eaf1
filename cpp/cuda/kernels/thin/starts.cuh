// Where windows begin in what is staged of an image, whose rows are copied as they lie: a word of 4
// bytes has two 16-bit elements, which may belong to two windows or to two rows.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_STARTS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_STARTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/elements.cuh"

namespace jax_convgrad {

enum class Starts {
  kWords,     // at words, if one element in front is taken to them where all begin at odd ones
  kElements,  // at odd elements too
  kOddRows    // and rows have an odd number of elements
};

// Rows of an odd number of elements begin in the middle of a word every other time. What is staged
// of them then begins with the element in front, and everything is one element further. `row` is a
// row of the array, counted through all images.
__device__ inline int ElementsInFront(int64_t row) { return static_cast<int>(row & 1); }

// Begins to copy a word; of elements that are not inside there are zeros.
template <typename T>
__device__ inline void CopyWord(uint32_t* to, const T* from, bool low, bool high) {
  if (low == high) {
    CopyAsync<4>(to, from, low);
  } else {
    *to = low ? BitsOf<uint16_t>(from[0]) : static_cast<uint32_t>(BitsOf<uint16_t>(from[1])) << 16;
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_STARTS_CUH_
