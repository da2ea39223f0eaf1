#include "cpu/runtime/scratch.h"

#include <sys/mman.h>

#include <array>
#include <limits>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kMaxKeptBuffers = 32;
// Together with the 64 MB that a backward pass may use beside its arrays; kMaxScratchBytes is the
// share of one call.
constexpr size_t kMaxBytes = size_t{56} << 20;

struct Buffer {
  char* data;
  size_t bytes;
};

char* Map(size_t bytes) {
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, /*offset=*/0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  if (bytes >= kHugePageBytes) madvise(data, bytes, MADV_HUGEPAGE);  // a hint: may do nothing
  return static_cast<char*>(data);
}

class Pool {
 public:
  // Giving memory back needs none: it happens in a destructor.
  Pool() { kept_.reserve(kMaxKeptBuffers + 1); }

  Buffer Take(size_t bytes) {
    if (bytes > std::numeric_limits<size_t>::max() / 2) throw std::bad_alloc();
    bytes = RoundUp(bytes, kPageBytes);
    Dropped dropped;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      size_t best = kept_.size();
      for (size_t i = 0; i < kept_.size(); ++i) {
        const bool fits = kept_[i].bytes >= bytes && kept_[i].bytes / 2 <= bytes;
        if (fits && (best == kept_.size() || kept_[i].bytes < kept_[best].bytes)) best = i;
      }
      if (best != kept_.size()) {
        const Buffer buffer = kept_[best];
        kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(best));
        kept_bytes_ -= buffer.bytes;
        used_bytes_ += buffer.bytes;
        return buffer;
      }
      used_bytes_ += bytes;
      dropped = Trim();
    }
    dropped.Unmap();
    try {
      return {Map(bytes), bytes};
    } catch (const std::bad_alloc&) {
      const std::lock_guard<std::mutex> lock(mutex_);
      used_bytes_ -= bytes;
      throw;
    }
  }

  void Give(Buffer buffer) {
    Dropped dropped;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      used_bytes_ -= buffer.bytes;
      kept_bytes_ += buffer.bytes;
      kept_.push_back(buffer);
      dropped = Trim();
    }
    dropped.Unmap();
  }

 private:
  struct Dropped {
    std::array<Buffer, kMaxKeptBuffers + 1> buffers{};
    size_t count = 0;

    void Unmap() const {
      for (size_t i = 0; i < count; ++i) munmap(buffers[i].data, buffers[i].bytes);
    }
  };

  // Removes kept buffers, the oldest first, until the rest is within bounds.
  Dropped Trim() {
    Dropped dropped;
    size_t& count = dropped.count;
    while (count < kept_.size() &&
           (used_bytes_ + kept_bytes_ > kMaxBytes || kept_.size() - count > kMaxKeptBuffers)) {
      kept_bytes_ -= kept_[count].bytes;
      dropped.buffers[count] = kept_[count];
      ++count;
    }
    kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(count));
    return dropped;
  }

  std::mutex mutex_;
  std::vector<Buffer> kept_;  // oldest first
  size_t kept_bytes_ = 0;
  size_t used_bytes_ = 0;
};

// Never destroyed: pool threads may still run handlers while the process ends.
Pool& GlobalPool() {
  static Pool* const pool = new Pool;
  return *pool;
}

}  // namespace

Scratch::Scratch(size_t bytes) {
  if (bytes == 0) return;
  const Buffer buffer = GlobalPool().Take(bytes);
  data_ = buffer.data;
  bytes_ = buffer.bytes;
}

Scratch::~Scratch() {
  if (data_ != nullptr) GlobalPool().Give({data_, bytes_});
}

}  // namespace jax_convgrad
