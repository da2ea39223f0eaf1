// cuda/kernels/common/bulk_copy.cuh on the processor. A copy overwrites what was there when it
// begins, and arrives when the first thread waits for it, and not before. Compiled with
// EMULATED_BULK_COPIES=1 the kernels use it.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_BULK_COPY_CUH_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_BULK_COPY_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/tensor_map.h"

namespace emulated_cuda {

struct BulkCopy {
  unsigned char* to;
  const jax_convgrad::TensorMap* map;
  int64_t at[jax_convgrad::kTensorAxes];

  int64_t bytes() const {
    int64_t bytes = map->shape.element_bytes;
    for (const int64_t size : map->shape.box) bytes *= size;
    return bytes;
  }
};

// Where what would lie at `at` lies among lines of `line_bytes`: bits of the address change by
// others.
inline unsigned char* Swizzled(unsigned char* at, int64_t line_bytes) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  const auto pieces = static_cast<uintptr_t>(line_bytes / 16);
  return reinterpret_cast<unsigned char*>(address ^ (address >> 7 & (pieces - 1)) << 4);
}

struct BulkRounds {
  std::vector<BulkCopy> begun;
  int64_t expected = 0;  // bytes
  int arrivals = 0;      // that a round takes
  int arrived = 0;
  uint32_t done = 0;  // rounds
};

// By barrier. Those of a block's shared memory begin anew with each block.
inline std::map<const void*, BulkRounds> bulk_rounds;

// For each line of a box, `move(in shared memory, in the array or null, bytes)` of each element.
// Returns the bytes of the box.
template <typename Move>
int64_t ForBox(const BulkCopy& copy, Move move) {
  const jax_convgrad::TensorShape& shape = copy.map->shape;
  const auto& box = shape.box;
  const int64_t pixels = box[1] * box[2] * box[3] * box[4], bytes = shape.element_bytes;
  const jax_convgrad::TensorStrides strides(shape);
  for (int64_t pixel = 0; pixel < pixels; ++pixel) {
    const int64_t of_box[] = {0, pixel % box[1], pixel / box[1] % box[2],
                              pixel / (box[1] * box[2]) % box[3],
                              pixel / (box[1] * box[2] * box[3])};
    bool inside = true;
    int64_t position = 0;
    for (int axis = jax_convgrad::kTensorAxes - 1; axis > 0; --axis) {
      const int64_t at = copy.at[axis] + of_box[axis];
      inside = inside && at >= 0 && at < shape.sizes[axis];
      position += at * strides.bytes[axis];
    }
    for (int64_t c = 0; c < box[0]; ++c) {
      const int64_t channel = copy.at[0] + c;
      unsigned char* const staged =
          Swizzled(copy.to + pixel * shape.line_bytes + c * bytes, shape.line_bytes);
      const bool exists = inside && channel < shape.sizes[0];
      move(staged,
           exists ? static_cast<unsigned char*>(copy.map->array) + position + channel * bytes
                  : nullptr,
           static_cast<size_t>(bytes));
    }
  }
  return pixels * box[0] * bytes;
}

// Copies a box and returns its bytes.
inline int64_t CopyBox(const BulkCopy& copy) {
  return ForBox(copy, [](unsigned char* staged, const unsigned char* from, size_t bytes) {
    if (from != nullptr) {
      std::memcpy(staged, from, bytes);
    } else {
      std::memset(staged, 0, bytes);
    }
  });
}

inline void StoreBox(const BulkCopy& copy) {
  ForBox(copy, [](const unsigned char* staged, unsigned char* to, size_t bytes) {
    if (to != nullptr) std::memcpy(to, staged, bytes);
  });
}

inline void CheckBox(const void* staged, const jax_convgrad::TensorMap& map) {
  const auto aligned = static_cast<uintptr_t>(map.shape.line_bytes * 8);
  if (reinterpret_cast<uintptr_t>(staged) % aligned != 0) Fail("a box is not aligned");
}

// Of one thread: the groups of stores under way and what belongs to none yet.
struct BulkStores {
  std::deque<std::vector<std::function<void()>>> groups;
  std::vector<std::function<void()>> begun;
};

inline BulkStores bulk_stores[1024];

}  // namespace emulated_cuda

namespace jax_convgrad {

constexpr bool kHasBulkCopies = EMULATED_BULK_COPIES;

class BulkBarrier {
 public:
  void Init(int arrivals = 1) {
    state_ = kState;
    emulated_cuda::bulk_rounds[this] = {};
    emulated_cuda::bulk_rounds[this].arrivals = arrivals;
  }

  void Expect(int bytes) {
    Check();
    emulated_cuda::bulk_rounds[this].expected += bytes;
    Count();
  }

  // Others go on first: those who wait for what this thread should not use any more.
  void Arrive() {
    Check();
    Count();
    emulated_cuda::WaitAs(emulated_cuda::State::kPolling);
  }

  void Wait(uint32_t odd) {
    Check();
    emulated_cuda::BulkRounds& rounds = emulated_cuda::bulk_rounds[this];
    const auto is_over = [&] { return (rounds.done & 1) != odd; };
    const auto may_end = [&] {
      return rounds.arrived == rounds.arrivals && BytesOf(rounds) >= rounds.expected;
    };
    while (!is_over() && !may_end()) emulated_cuda::WaitAs(emulated_cuda::State::kPolling);
    if (is_over()) return;
    int64_t bytes = 0;
    for (const emulated_cuda::BulkCopy& copy : rounds.begun) bytes += emulated_cuda::CopyBox(copy);
    if (bytes != rounds.expected) emulated_cuda::Fail("other bytes arrive than are expected");
    Finish(&rounds);
    emulated_cuda::Progress();
  }

 private:
  static constexpr uint64_t kState = 0x0123456789abcdef;

  void Count() {
    emulated_cuda::BulkRounds& rounds = emulated_cuda::bulk_rounds[this];
    if (rounds.arrived == rounds.arrivals) emulated_cuda::Fail("it arrives once too often");
    ++rounds.arrived;
    if (rounds.arrived == rounds.arrivals && rounds.expected == 0) Finish(&rounds);
    emulated_cuda::Progress();
  }

  static int64_t BytesOf(const emulated_cuda::BulkRounds& rounds) {
    int64_t bytes = 0;
    for (const emulated_cuda::BulkCopy& copy : rounds.begun) bytes += copy.bytes();
    return bytes;
  }

  static void Finish(emulated_cuda::BulkRounds* rounds) {
    rounds->begun.clear();
    rounds->expected = rounds->arrived = 0;
    ++rounds->done;
  }

  void Check() const {
    if (state_ != kState) emulated_cuda::Fail("something was written where a barrier is");
  }

  uint64_t state_;
};

inline void ShowBulkCopies() {}

inline void BulkStore(const TensorMap& map, const void* from, int channel, int x, int y, int z,
                      int image) {
  emulated_cuda::CheckBox(from, map);
  unsigned char* const at = const_cast<unsigned char*>(static_cast<const unsigned char*>(from));
  const emulated_cuda::BulkCopy store{at, &map, {channel, x, y, z, image}};
  emulated_cuda::bulk_stores[threadIdx.x].begun.push_back(
      [store] { emulated_cuda::StoreBox(store); });
}

inline void CommitBulkStores() {
  emulated_cuda::BulkStores& stores = emulated_cuda::bulk_stores[threadIdx.x];
  stores.groups.push_back(std::move(stores.begun));
  stores.begun.clear();
}

// What is stored is read when it is waited for, and not before.
template <int kPending>
void WaitForBulkStores() {
  auto& groups = emulated_cuda::bulk_stores[threadIdx.x].groups;
  for (; groups.size() > kPending; groups.pop_front()) {
    for (const auto& store : groups.front()) store();
  }
}

inline void BulkCopy(void* to, const TensorMap& map, int channel, int x, int y, int z, int image,
                     BulkBarrier* barrier) {
  emulated_cuda::CheckBox(to, map);
  if (channel < 0) emulated_cuda::Fail("a box begins in front of the channels");
  const emulated_cuda::BulkCopy copy{
      static_cast<unsigned char*>(to), &map, {channel, x, y, z, image}};
  // What was there is gone from now on.
  emulated_cuda::ForBox(copy, [](unsigned char* staged, const unsigned char*, size_t bytes) {
    std::memset(staged, 0xff, bytes);
  });
  emulated_cuda::bulk_rounds[barrier].begun.push_back(copy);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_BULK_COPY_CUH_
