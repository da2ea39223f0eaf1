#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_FP16_H_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_FP16_H_

#include <cmath>
#include <cstdint>

struct __half {
  uint16_t bits;
};

// Numbers only, below the largest.
inline float __half2float(__half value) {
  const int exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                   : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return value.bits >> 15 ? -size : size;
}

// To nearest, to even in the middle.
inline __half __float2half_rn(float value) {
  int exponent;
  std::frexp(value, &exponent);  // value = f * 2^exponent, 1/2 <= |f| < 1
  const int unit = value == 0 || exponent < -13 ? -24 : exponent - 11;  // of the last digit
  const int digits = static_cast<int>(std::nearbyint(std::ldexp(std::fabs(value), -unit)));
  const int bits = digits + (unit + 24) * 1024;
  return {static_cast<uint16_t>((std::signbit(value) ? 0x8000 : 0) | bits)};
}

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_FP16_H_
