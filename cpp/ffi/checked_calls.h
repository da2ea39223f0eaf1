// A cache of calls that have passed their check, so that equal calls need not be checked again.

#ifndef JAX_CONVGRAD_FFI_CHECKED_CALLS_H_
#define JAX_CONVGRAD_FFI_CHECKED_CALLS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "ffi/lru_cache.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// Everything that the check of a call depends on, as numbers: two calls with the same key are the
// same except for the addresses of their arrays.
class CallKey {
 public:
  CallKey& Add(int64_t value) {
    if (size_ == kMaxNumbers) {
      complete_ = false;
    } else {
      numbers_[size_++] = value;
      hash_ = (hash_ ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;
      hash_ ^= hash_ >> 32;
    }
    return *this;
  }

  // The length goes first, so that different sequences of lists never give the same numbers.
  CallKey& Add(::xla::ffi::Span<const int64_t> values) {
    Add(static_cast<int64_t>(values.size()));
    for (int64_t value : values) {
      if (!complete_) break;
      Add(value);
    }
    return *this;
  }

  CallKey& Add(const ::xla::ffi::AnyBuffer& buffer) {
    return Add(static_cast<int64_t>(buffer.element_type())).Add(buffer.dimensions());
  }

  // Whether all numbers fit. A call that has more numbers than there is room for is not a valid
  // one.
  bool complete() const { return complete_; }

  bool operator==(const CallKey& other) const {
    return hash_ == other.hash_ && size_ == other.size_ &&
           std::equal(numbers_.begin(), numbers_.begin() + size_, other.numbers_.begin());
  }

  struct Hash {
    size_t operator()(const CallKey& key) const { return static_cast<size_t>(key.hash_); }
  };

 private:
  // A convolution along three axes has about 60 on CUDA.
  static constexpr uint32_t kMaxNumbers = 64;

  uint64_t hash_ = 0;
  uint32_t size_ = 0;
  bool complete_ = true;
  std::array<int64_t, kMaxNumbers> numbers_{};
};

// The outcomes for calls that passed the check, by their keys: a bounded number of them, and
// nothing about calls that did not pass. The lock is held only to look up and to insert.
template <typename Call>
class CheckedCalls {
 public:
  explicit CheckedCalls(size_t capacity) : cache_(capacity) {}

  // The outcome for `key`: that of an earlier call, or else of check(), an ffi::ErrorOr<Call>.
  template <typename Check>
  ::xla::ffi::ErrorOr<std::shared_ptr<const Call>> Find(const CallKey& key, const Check& check) {
    if (key.complete()) {
      if (std::shared_ptr<const Call> found = cache_.Find(key)) return found;
    }
    ::xla::ffi::ErrorOr<Call> call = check();
    if (call.has_error()) return ::xla::ffi::Unexpected(call.error());
    auto checked = std::make_shared<const Call>(*std::move(call));
    if (!key.complete()) return std::shared_ptr<const Call>(std::move(checked));
    return cache_.Insert(key, std::move(checked));
  }

 private:
  LruCache<CallKey, Call, CallKey::Hash> cache_;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_FFI_CHECKED_CALLS_H_
