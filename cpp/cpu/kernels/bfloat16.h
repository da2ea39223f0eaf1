// bfloat16 in memory, float32 in registers.

#ifndef JAX_CONVGRAD_CPU_KERNELS_BFLOAT16_H_
#define JAX_CONVGRAD_CPU_KERNELS_BFLOAT16_H_

#include <cstdint>
#include <cstring>

// Functions with a `target` attribute are compiled for their own instruction set. Everything that
// they call must be inlined into them, or it is compiled for the oldest processor.
#define JAX_CONVGRAD_INLINE inline __attribute__((always_inline))

namespace jax_convgrad {

struct BFloat16 {
  uint16_t bits;
};

JAX_CONVGRAD_INLINE float Widen(float value) { return value; }

JAX_CONVGRAD_INLINE float Widen(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

JAX_CONVGRAD_INLINE void Narrow(float value, float* to) { *to = value; }

// To the nearest, ties to even. A NaN stays one.
JAX_CONVGRAD_INLINE void Narrow(float value, BFloat16* to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  to->bits = static_cast<uint16_t>(is_nan ? bits >> 16 | 0x40u : rounded);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_BFLOAT16_H_
