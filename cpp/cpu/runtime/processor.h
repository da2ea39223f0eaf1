// What this project's kernels ask of the processor.

#ifndef JAX_CONVGRAD_CPU_RUNTIME_PROCESSOR_H_
#define JAX_CONVGRAD_CPU_RUNTIME_PROCESSOR_H_

#include <cpuid.h>

namespace jax_convgrad {

// With products and sums in one instruction.
inline bool HasAvx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}

// The parts of it that every server processor with AVX-512 has.
inline bool HasAvx512() {
  static const bool has = HasAvx2() && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return has;
}

// The rest is what __builtin_cpu_supports and __builtin_cpu_is tell only in newer compilers.

inline bool HasF16C() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// AMD's family 25: Zen 3 and Zen 4.
inline bool IsAmdFamily19h() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__builtin_cpu_is("amd") || __get_cpuid(1, &a, &b, &c, &d) == 0) return false;
  const unsigned family = a >> 8 & 0xf, extended = a >> 20 & 0xff;
  return family == 0xf && family + extended == 0x19;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_RUNTIME_PROCESSOR_H_
