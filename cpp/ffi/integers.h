// Divisions that round up.

#ifndef JAX_CONVGRAD_FFI_INTEGERS_H_
#define JAX_CONVGRAD_FFI_INTEGERS_H_

#include <cstddef>
#include <cstdint>

namespace jax_convgrad {

// `b` is positive; `a` need not be. No sum can overflow.
constexpr int64_t CeilDivide(int64_t a, int64_t b) { return a > 0 ? (a - 1) / b + 1 : -(-a / b); }

// The next multiple of `b`.
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDivide(a, b) * b; }
constexpr size_t RoundUp(size_t a, size_t b) { return (a + b - 1) / b * b; }

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_FFI_INTEGERS_H_
