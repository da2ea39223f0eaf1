// Numbers of several channels side by side, in vectors whose width the caller chooses.

#ifndef JAX_CONVGRAD_CPU_KERNELS_LANES_H_
#define JAX_CONVGRAD_CPU_KERNELS_LANES_H_

#include <cstdint>
#include <cstring>

#include "cpu/kernels/bfloat16.h"

namespace jax_convgrad {

// Vectors of 4, 8 and 16 numbers. Spelled out: GCC does not take a size that depends on a template.
template <int kLanes>
struct Vectors;

template <>
struct Vectors<4> {
  typedef float Floats __attribute__((vector_size(16)));
  typedef uint16_t Halves __attribute__((vector_size(8)));
  typedef uint32_t Words __attribute__((vector_size(16)));
};

template <>
struct Vectors<8> {
  typedef float Floats __attribute__((vector_size(32)));
  typedef uint16_t Halves __attribute__((vector_size(16)));
  typedef uint32_t Words __attribute__((vector_size(32)));
};

template <>
struct Vectors<16> {
  typedef float Floats __attribute__((vector_size(64)));
  typedef uint16_t Halves __attribute__((vector_size(32)));
  typedef uint32_t Words __attribute__((vector_size(64)));
};

// Several channels side by side. `count` is the number of them that exist.
template <int kLanes>
struct Lanes {
  using Floats = typename Vectors<kLanes>::Floats;
  using Halves = typename Vectors<kLanes>::Halves;
  using Words = typename Vectors<kLanes>::Words;

  JAX_CONVGRAD_INLINE static void Load(const float* from, int64_t count, Floats& to) {
    if (count == kLanes) {
      std::memcpy(&to, from, sizeof(to));
      return;
    }
    to = Floats{};
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }

  JAX_CONVGRAD_INLINE static void Load(const BFloat16* from, int64_t count, Floats& to) {
    Halves halves{};
    if (count == kLanes) {
      std::memcpy(&halves, from, sizeof(halves));
    } else {
      for (int64_t i = 0; i < count; ++i) halves[i] = from[i].bits;
    }
    const Words words = __builtin_convertvector(halves, Words) << 16;
    std::memcpy(&to, &words, sizeof(to));
  }

  JAX_CONVGRAD_INLINE static void Store(const Floats& values, int64_t count, float* to) {
    if (count == kLanes) {
      std::memcpy(to, &values, sizeof(values));
      return;
    }
    for (int64_t i = 0; i < count; ++i) to[i] = values[i];
  }

  // To the nearest, ties to even, as Narrow in bfloat16.h.
  JAX_CONVGRAD_INLINE static void Store(const Floats& values, int64_t count, BFloat16* to) {
    Words bits;
    std::memcpy(&bits, &values, sizeof(bits));
    const Words rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const Words nan = bits >> 16 | 0x40u;
    const Halves halves =
        __builtin_convertvector((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded, Halves);
    if (count == kLanes) {
      std::memcpy(to, &halves, sizeof(halves));
      return;
    }
    for (int64_t i = 0; i < count; ++i) to[i].bits = halves[i];
  }

  JAX_CONVGRAD_INLINE static void Add(const Floats& values, int64_t count, float* to) {
    if (count == kLanes) {
      Floats sum;
      std::memcpy(&sum, to, sizeof(sum));
      sum += values;
      std::memcpy(to, &sum, sizeof(sum));
      return;
    }
    for (int64_t i = 0; i < count; ++i) to[i] += values[i];
  }
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_LANES_H_
