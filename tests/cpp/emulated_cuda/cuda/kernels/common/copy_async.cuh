// cuda/kernels/common/copy_async.cuh on the processor. Copies arrive at once, or when they are
// waited for, at random: what is overwritten too early shows as well as what is read too early.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_COPY_ASYNC_CUH_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_COPY_ASYNC_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

namespace emulated_cuda {

struct Copy {
  void* to;
  const void* from;  // null: zeros
  size_t bytes;

  void Arrive() const {
    if (from == nullptr) {
      std::memset(to, 0, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  }
};

// Of one thread: the groups under way and what belongs to none yet.
struct Copies {
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> begun;
  uint64_t block = 0;
};

inline Copies copies[1024];

// Those of the thread that runs. What another block's has not waited for is gone with its memory.
inline Copies& CopiesOfThread() {
  Copies& mine = copies[threadIdx.x];
  if (mine.block != blocks_begun) mine = {{}, {}, blocks_begun};
  return mine;
}

}  // namespace emulated_cuda

namespace jax_convgrad {

// From the begin of shared memory on, as on a device.
inline uint32_t SharedAddress(const void* at) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(at) - shared_memory);
}

template <int kBytes = 16>
void CopyAsync(void* to, const void* from, bool inside) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "as a device copies");
  const uintptr_t ends = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if (ends % kBytes != 0) emulated_cuda::Fail("it copies what is not aligned");
  const emulated_cuda::Copy copy{to, inside ? from : nullptr, kBytes};
  if (emulated_cuda::turns() & 1) {
    copy.Arrive();
  } else {
    emulated_cuda::CopiesOfThread().begun.push_back(copy);
  }
}

inline void CommitCopies() {
  emulated_cuda::Copies& copies = emulated_cuda::CopiesOfThread();
  copies.groups.push_back(std::move(copies.begun));
  copies.begun.clear();
}

template <int kPending>
void WaitForCopies() {
  auto& groups = emulated_cuda::CopiesOfThread().groups;
  for (; groups.size() > kPending; groups.pop_front()) {
    for (const emulated_cuda::Copy& copy : groups.front()) copy.Arrive();
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_COPY_ASYNC_CUH_
