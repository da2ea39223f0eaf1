#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_BF16_H_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_BF16_H_

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

// To nearest, to even in the middle. Numbers only.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits += 0x7fff + (bits >> 16 & 1);
  return {static_cast<uint16_t>(bits >> 16)};
}

struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_BF16_H_
