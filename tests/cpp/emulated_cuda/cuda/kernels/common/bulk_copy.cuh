// cuda/kernels/common/bulk_copy.cuh on the processor. A copy arrives when the first thread waits
// for it, and not before. Compiled with EMULATED_BULK_COPIES=1 the kernels use it.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_BULK_COPY_CUH_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_BULK_COPY_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/tensor_map.h"

namespace emulated_cuda {

struct BulkCopy {
  unsigned char* to;
  const jax_convgrad::TensorMap* map;
  int64_t at[jax_convgrad::kTensorAxes];
};

struct BulkRounds {
  std::vector<BulkCopy> begun;
  int64_t expected = 0;  // bytes
  uint32_t done = 0;     // rounds
};

// By barrier. Those of a block's shared memory begin anew with each block.
inline std::map<const void*, BulkRounds> bulk_rounds;

// Copies a box and returns its bytes.
inline int64_t CopyBox(const BulkCopy& copy) {
  const jax_convgrad::TensorShape& shape = copy.map->shape;
  const auto& box = shape.box;
  const int64_t pixels = box[1] * box[2] * box[3] * box[4], bytes = shape.element_bytes;
  for (int64_t pixel = 0; pixel < pixels; ++pixel) {
    const int64_t of_box[] = {0, pixel % box[1], pixel / box[1] % box[2],
                              pixel / (box[1] * box[2]) % box[3],
                              pixel / (box[1] * box[2] * box[3])};
    bool inside = true;
    int64_t position = 0;
    for (int axis = jax_convgrad::kTensorAxes - 1; axis > 0; --axis) {
      const int64_t at = copy.at[axis] + of_box[axis];
      inside = inside && at >= 0 && at < shape.sizes[axis];
      position = position * shape.sizes[axis] + at;
    }
    for (int64_t c = 0; c < box[0]; ++c) {
      const int64_t channel = copy.at[0] + c;
      const int64_t place = pixel * 64 + c * bytes;
      // Bits 4 and 5 of the address change by bits 7 and 8.
      unsigned char* const to = copy.to + (place ^ (place >> 7 & 3) << 4);
      if (inside && channel < shape.sizes[0]) {
        std::memcpy(to,
                    static_cast<const unsigned char*>(copy.map->array) +
                        (position * shape.sizes[0] + channel) * bytes,
                    static_cast<size_t>(bytes));
      } else {
        std::memset(to, 0, static_cast<size_t>(bytes));
      }
    }
  }
  return pixels * box[0] * bytes;
}

}  // namespace emulated_cuda

namespace jax_convgrad {

constexpr bool kHasBulkCopies = EMULATED_BULK_COPIES;

class BulkBarrier {
 public:
  void Init() {
    state_ = kState;
    emulated_cuda::bulk_rounds[this] = {};
  }

  void Expect(int bytes) {
    Check();
    emulated_cuda::bulk_rounds[this].expected += bytes;
  }

  void Wait(uint32_t odd) {
    Check();
    emulated_cuda::BulkRounds& rounds = emulated_cuda::bulk_rounds[this];
    while ((rounds.done & 1) == odd && rounds.begun.empty()) {
      emulated_cuda::WaitAs(emulated_cuda::State::kPolling);
    }
    if ((rounds.done & 1) != odd) return;
    int64_t bytes = 0;
    for (const emulated_cuda::BulkCopy& copy : rounds.begun) bytes += emulated_cuda::CopyBox(copy);
    if (bytes != rounds.expected) emulated_cuda::Fail("other bytes arrive than are expected");
    rounds = {{}, 0, rounds.done + 1};
  }

 private:
  static constexpr uint64_t kState = 0x0123456789abcdef;

  void Check() const {
    if (state_ != kState) emulated_cuda::Fail("something was written where a barrier is");
  }

  uint64_t state_;
};

inline void BulkCopy(void* to, const TensorMap& map, int channel, int x, int y, int z, int image,
                     BulkBarrier* barrier) {
  if (reinterpret_cast<uintptr_t>(to) % 512 != 0) emulated_cuda::Fail("a box is not aligned");
  if (channel < 0) emulated_cuda::Fail("a box begins in front of the channels");
  emulated_cuda::bulk_rounds[barrier].begun.push_back(
      {static_cast<unsigned char*>(to), &map, {channel, x, y, z, image}});
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_BULK_COPY_CUH_
