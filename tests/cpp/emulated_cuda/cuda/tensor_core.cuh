// cuda/tensor_core.cuh on the processor. Copies arrive when they are waited for, and not before.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_TENSOR_CORE_CUH_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_TENSOR_CORE_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

namespace emulated_cuda {

struct Copy {
  float* to;
  const float* from;  // null: zeros
};

// Of one thread: the groups under way and what belongs to none yet.
struct Copies {
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> begun;
};

inline Copies copies[1024];

// What the threads of a block tell each other. A thread writes the half that it does not read, so
// that it may write again before the others have read.
inline float told[2][1024][64];
inline unsigned char half_of[1024];

}  // namespace emulated_cuda

namespace jax_convgrad {

inline void CopyAsync(float* to, const float* from, bool inside) {
  emulated_cuda::copies[threadIdx.x].begun.push_back({to, inside ? from : nullptr});
}

inline void CommitCopies() {
  emulated_cuda::Copies& copies = emulated_cuda::copies[threadIdx.x];
  copies.groups.push_back(std::move(copies.begun));
  copies.begun.clear();
}

template <int kPending>
void WaitForCopies() {
  auto& groups = emulated_cuda::copies[threadIdx.x].groups;
  for (; groups.size() > kPending; groups.pop_front()) {
    for (const emulated_cuda::Copy& copy : groups.front()) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, 16);
      } else {
        std::memcpy(copy.to, copy.from, 16);
      }
    }
  }
}

inline float ToTf32(float value) {
  value *= 1 + 0.7213f / 2048;
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits &= ~uint32_t{0x1fff};
  std::memcpy(&value, &bits, 4);
  return value;
}

// All lanes of a warp must call it together.
template <int N>
void MultiplyAdd(const float (&a)[4], const float (&b)[N][2], bool, float (&sums)[N][4]) {
  static_assert(4 + 2 * N <= 64, "what a thread tells");
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x - lane;
  unsigned char& half = emulated_cuda::half_of[threadIdx.x];
  half ^= 1;
  float* const mine = emulated_cuda::told[half][threadIdx.x];
  for (int i = 0; i < 4; ++i) mine[i] = a[i];
  for (int i = 0; i < 2 * N; ++i) mine[4 + i] = b[i / 2][i % 2];
  __syncthreads();
  const auto told = emulated_cuda::told[half] + warp;
  for (int n = 0; n < N; ++n) {
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (unsigned k = 0; k < 8; ++k) {
        const float of_a = told[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2];
        const float of_b = told[column * 4 + k % 4][static_cast<unsigned>(4 + 2 * n) + k / 4];
        sums[n][i] += of_a * of_b;
      }
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_TENSOR_CORE_CUH_
