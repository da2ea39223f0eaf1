// Size arithmetic that cannot overflow, for the checks that stand before any access to memory.

#ifndef JAX_CONVGRAD_FFI_CHECKED_H_
#define JAX_CONVGRAD_FFI_CHECKED_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <optional>

namespace jax_convgrad {

inline std::optional<int64_t> CheckedAdd(int64_t a, int64_t b) {
  int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<int64_t> CheckedMultiply(int64_t a, int64_t b) {
  int64_t product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// Bytes of `count` pieces of memory. Throws std::bad_alloc, as an allocation would, if there are
// more than an int64_t can count.
inline size_t MultipliedBytes(size_t count, size_t bytes) {
  int64_t product;
  if (__builtin_mul_overflow(count, bytes, &product)) throw std::bad_alloc();
  return static_cast<size_t>(product);
}

// The product if it fits, else the largest int64_t. For sizes that are not negative.
inline int64_t SaturatedMultiply(int64_t a, int64_t b) {
  return CheckedMultiply(a, b).value_or(std::numeric_limits<int64_t>::max());
}

// An array may have more elements than memory has bytes only if another of its sizes is zero.
template <typename Dims>
bool ByteSizeOverflows(const Dims& dims) {
  int64_t bytes = 8;
  for (int64_t size : dims) {
    if (size == 0) return false;
    const std::optional<int64_t> product = CheckedMultiply(bytes, size);
    if (!product) return true;
    bytes = *product;
  }
  return false;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_FFI_CHECKED_H_
