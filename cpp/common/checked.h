// Size arithmetic that cannot overflow, for the checks that stand before any access to memory.

#ifndef JAX_CONVGRAD_COMMON_CHECKED_H_
#define JAX_CONVGRAD_COMMON_CHECKED_H_

#include <cstdint>
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

#endif  // JAX_CONVGRAD_COMMON_CHECKED_H_
