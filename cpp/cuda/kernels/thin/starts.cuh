// How the rows of an image are staged, as they lie, and where windows begin in them: a word of 4
// bytes has two 16-bit elements, which may belong to two windows.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_STARTS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_STARTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/elements.cuh"

namespace jax_convgrad {

enum class Starts {
  kWords,    // at words, if one element in front is taken to them where all begin at odd ones
  kElements  // at odd elements too
};

// Two 16-bit elements that may lie between words, or zeros instead of what does not exist.
template <typename T>
__device__ inline uint32_t PairOf(const T* from, bool low_exists, bool high_exists) {
  const uint32_t low = low_exists ? BitsOf<uint16_t>(from[0]) : 0;
  const uint32_t high = high_exists ? BitsOf<uint16_t>(from[1]) : 0;
  return low | high << 16;
}

// Copies every `lanes`-th word of a row of 16-bit elements, from `word` on. `row` has `line`
// elements, which may begin between words; the first word has its element `first`. Of what is not
// inside there are zeros.
template <typename T>
__device__ inline void CopyOddRow(uint32_t* to, const T* row, int first, int line, int word,
                                  int lanes, int words) {
  constexpr int kAtOnce = 4;  // so that as many reads are on their way
  for (; word < words; word += kAtOnce * lanes) {
    uint32_t read[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + (word + i * lanes) * 2;
      read[i] = PairOf(row + at, Inside(at, line), Inside(at + 1, line));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (word + i * lanes < words) to[word + i * lanes] = read[i];
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_STARTS_CUH_
