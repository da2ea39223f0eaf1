// Code that the kernels of resample share: element types, accesses, tables.
//
// The tables are on the device and cannot be checked. Starts are clamped, so that no table makes a
// kernel read outside x.
//
// Zero weights add nothing, even where x is not finite.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_ELEMENTS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_ELEMENTS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/kernels/resample/instructions.cuh"
#include "ffi/resample_form.h"

#define CONVGRAD_DEVICE __device__ __forceinline__

namespace jax_convgrad {

namespace resample_kernels {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

CONVGRAD_DEVICE float ToSum(float value) { return value; }
CONVGRAD_DEVICE double ToSum(double value) { return value; }
CONVGRAD_DEVICE void FromSum(float sum, float& value) { value = sum; }
CONVGRAD_DEVICE void FromSum(double sum, double& value) { value = sum; }

CONVGRAD_DEVICE float ToSum(Half value) { return __half2float(__ushort_as_half(value.bits)); }
CONVGRAD_DEVICE float ToSum(BFloat16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
CONVGRAD_DEVICE void FromSum(float sum, Half& value) {
  value.bits = __half_as_ushort(__float2half_rn(sum));
}
CONVGRAD_DEVICE void FromSum(float sum, BFloat16& value) {
  value.bits = __bfloat16_as_ushort(__float2bfloat16_rn(sum));
}

template <typename T>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<double> {
  using Type = double;
};

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T at[kCount];
};

// One access of the whole vector. `from` is aligned to it.
template <typename T, int kCount>
CONVGRAD_DEVICE Vector<T, kCount> Load(const T* from) {
  return *reinterpret_cast<const Vector<T, kCount>*>(from);
}

// Elements of x as they were read: in words, because 16-bit elements would take a register each.
template <typename T, int kCount>
struct Piece {
  static constexpr int kBytes = sizeof(T) * kCount, kWords = (kBytes + 3) / 4;
  uint32_t words[kWords];

  // One access. `from` is aligned to all elements, and the kernel does not write there.
  CONVGRAD_DEVICE void Read(const T* from) {
    if constexpr (kBytes == 16) {
      const uint4 bits = __ldg(reinterpret_cast<const uint4*>(from));
      words[0] = bits.x;
      words[1] = bits.y;
      words[2] = bits.z;
      words[3] = bits.w;
    } else if constexpr (kBytes == 8) {
      const uint2 bits = __ldg(reinterpret_cast<const uint2*>(from));
      words[0] = bits.x;
      words[1] = bits.y;
    } else if constexpr (kBytes == 4) {
      words[0] = __ldg(reinterpret_cast<const unsigned int*>(from));
    } else {
      static_assert(kBytes == 2, "no such load");
      words[0] = __ldg(reinterpret_cast<const unsigned short*>(from));
    }
  }

  CONVGRAD_DEVICE typename SumOf<T>::Type At(int i) const {
    if constexpr (sizeof(T) == 8) {
      return __hiloint2double(static_cast<int>(words[2 * i + 1]), static_cast<int>(words[2 * i]));
    } else if constexpr (sizeof(T) == 4) {
      return __uint_as_float(words[i]);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    } else {
      return ToSum(T{static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16))});
    }
  }
};

// Sums as elements.
template <typename T, typename Sum, int kCount>
CONVGRAD_DEVICE void PackSums(const Sum (&sums)[kCount], T (&values)[kCount]) {
  constexpr bool kTwo = sizeof(T) == 2;  // two conversions are one instruction
#pragma unroll
  for (int i = 0; i < kCount; i += kTwo ? 2 : 1) {
    if constexpr (!kTwo) {
      FromSum(sums[i], values[i]);
    } else {
      if constexpr (std::is_same_v<T, BFloat16>) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(sums[i], sums[i + 1]);
        memcpy(&values[i], &pair, sizeof(pair));
      } else {
        const __half2 pair = __floats2half2_rn(sums[i], sums[i + 1]);
        memcpy(&values[i], &pair, sizeof(pair));
      }
    }
  }
}

// One access of as many elements as there are sums. `to` is aligned to them.
template <bool kPast, typename T, typename Sum, int kCount>
CONVGRAD_DEVICE void StoreSums(const Sum (&sums)[kCount], T* to) {
  Vector<T, kCount> values;
  PackSums(sums, values.at);
  // Bypasses the cache: nobody reads y soon.
  if constexpr (kPast && sizeof(values) == 16) {
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&values));
    return;
  }
  *reinterpret_cast<Vector<T, kCount>*>(to) = values;
}

// 16 bytes, past the cache as above.
template <typename T>
CONVGRAD_DEVICE void WriteWords(const uint32_t (&words)[4], T* to) {
  __stcs(reinterpret_cast<uint4*>(to), make_uint4(words[0], words[1], words[2], words[3]));
}

CONVGRAD_DEVICE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

CONVGRAD_DEVICE int Max(int a, int b) { return a > b ? a : b; }

CONVGRAD_DEVICE int ClampedStart(const ResampleAxis& axis, int64_t out) {
  const int last = static_cast<int>(axis.in - axis.taps);
  const int start = __ldg(axis.start + out);
  return start < 0 ? 0 : start > last ? last : start;
}

template <typename Sum>
CONVGRAD_DEVICE Sum WeightAt(const ResampleAxis& axis, int64_t out, int tap) {
  return __ldg(static_cast<const Sum*>(axis.weights) + out * axis.taps + tap);
}

// The number of an output's nonzero weights.
template <typename Sum>
CONVGRAD_DEVICE int CountWeights(const ResampleAxis& axis, int64_t out) {
  int count = 0;
  const int taps = static_cast<int>(axis.taps);
#pragma unroll 1
  for (int tap = 0; tap < taps; ++tap) count += WeightAt<Sum>(axis, out, tap) != Sum(0);
  return count;
}

// Splits a number into digits, the last one first. 32 bits, because 64-bit divisions are slow.
struct Digits {
  uint32_t rest;

  CONVGRAD_DEVICE int Next(int64_t size) {
    const uint32_t base = static_cast<uint32_t>(size), digit = rest % base;
    rest /= base;
    return static_cast<int>(digit);
  }
};

// Where a batch begins in x and in y.
struct BatchAt {
  int64_t x, y;

  CONVGRAD_DEVICE BatchAt(const ResampleForm& form, int64_t b0, int64_t b1, int64_t b2)
      : x(b0 * form.x_batch[0] + b1 * form.x_batch[1] + b2 * form.x_batch[2]),
        y(b0 * form.y_batch[0] + b1 * form.y_batch[1] + b2 * form.y_batch[2]) {}

  CONVGRAD_DEVICE static BatchAt Of(const ResampleForm& form, Digits digits) {
    const int b2 = digits.Next(form.batch[2]), b1 = digits.Next(form.batch[1]);
    return BatchAt(form, digits.rest, b1, b2);
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_ELEMENTS_CUH_
