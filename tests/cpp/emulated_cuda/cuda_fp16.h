#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_FP16_H_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_FP16_H_

#include <cstdint>
#include <cstring>

struct __half {
  uint16_t bits;
};

inline float __half2float(__half value) {
  _Float16 half;
  std::memcpy(&half, &value, sizeof(half));
  return static_cast<float>(half);
}

// To nearest, to even in the middle.
inline __half __float2half_rn(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  __half result;
  std::memcpy(&result, &half, sizeof(result));
  return result;
}

struct __half2 {
  __half x, y;
};

inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}

inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half value) { return value.bits; }

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_FP16_H_
