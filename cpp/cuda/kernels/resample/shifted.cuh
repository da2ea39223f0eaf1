// kShifted: elements of y whose lines are not aligned. A thread makes as many as a vector has, and
// passes on those that lie in the vector of the thread behind it, so that all are written as
// vectors.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SHIFTED_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SHIFTED_CUH_

#include <cstdint>
#include <cstring>

#include "cuda/kernels/resample/elements.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// The element that a thread has, counted in threads' parts of a line, one line after another. The
// first thread of a warp repeats the last one of the warp before, and passes it on.
CONVGRAD_DEVICE int ShiftedPlace(int thread) {
  const int place = thread / 32 * 31 + thread % 32 - 1;
  return place < 0 ? 0 : place;
}

// Writes a row of y in vectors aligned in memory: each begins in the vector of the thread in front.
template <typename Lines>
CONVGRAD_DEVICE void WriteShifted(Lines& lines) {
  using T = typename Lines::T;
  ForEachThread<false>(lines.tiling.threads, [&](int thread) {
    auto& mine = lines.StateOf(thread);
    T values[Lines::kVector];
    PackSums(mine.sum, values);
    memcpy(mine.words, values, sizeof(values));
  });
  ForEachThread<false>(lines.tiling.threads, [&](int thread) {
    auto& mine = lines.StateOf(thread);
    const uintptr_t at = reinterpret_cast<uintptr_t>(lines.NextRow(mine));
    const uint32_t shift = static_cast<uint32_t>(at) & 15;
    uint32_t words[Lines::kWords];
#ifdef __CUDA_ARCH__
    uint32_t both[2 * Lines::kWords];
    CONVGRAD_UNROLL
    for (int i = 0; i < Lines::kWords; ++i) {
      both[i] = __shfl_up_sync(0xffffffffu, mine.words[i], 1);
      both[Lines::kWords + i] = mine.words[i];
    }
    const uint32_t from = 16 - shift;
    CONVGRAD_UNROLL
    for (int i = 0; i < 6; ++i) both[i] = (from & 8) != 0 ? both[i + 2] : both[i];
    CONVGRAD_UNROLL
    for (int i = 0; i < 5; ++i) both[i] = (from & 4) != 0 ? both[i + 1] : both[i];
    CONVGRAD_UNROLL
    for (int i = 0; i < Lines::kWords; ++i) {
      words[i] = shift == 0      ? mine.words[i]
                 : sizeof(T) < 4 ? __funnelshift_r(both[i], both[i + 1], (from & 2) * 8)
                                 : both[i];
    }
#else
    char both[2 * 16];
    memcpy(both, lines.StateOf(thread > 0 ? thread - 1 : 0).words, 16);
    memcpy(both + 16, mine.words, 16);
    memcpy(words, both + 16 - shift, 16);
#endif
    // The first of these elements, counted in the line: some may lie in front of it or behind.
    const int first = mine.first - static_cast<int>(shift / sizeof(T));
    if (mine.owned == 0) return;
    if (first >= 0 && first + Lines::kVector <= mine.owned) {
      WriteWords(words, reinterpret_cast<T*>(at - shift));
      return;
    }
    T values[Lines::kVector];
    memcpy(values, words, sizeof(values));
    CONVGRAD_UNROLL
    for (int i = 0; i < Lines::kVector; ++i) {
      if (first + i >= 0 && first + i < mine.owned) {
        reinterpret_cast<T*>(at - shift)[i] = values[i];
      }
    }
  });
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SHIFTED_CUH_
