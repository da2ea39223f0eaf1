// Elements, vectors of channels and division by a constant.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_COMMON_ELEMENTS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_COMMON_ELEMENTS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace jax_convgrad {

// The type that elements are summed in.
template <typename T>
struct SumType {
  using Type = float;
};
template <>
struct SumType<double> {
  using Type = double;
};
template <typename T>
using Sum = typename SumType<T>::Type;

__device__ inline float Widen(float value) { return value; }
__device__ inline double Widen(double value) { return value; }
__device__ inline float Widen(__half value) { return __half2float(value); }
__device__ inline float Widen(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ inline void Narrow(float sum, float* value) { *value = sum; }
__device__ inline void Narrow(double sum, double* value) { *value = sum; }
__device__ inline void Narrow(float sum, __half* value) { *value = __float2half_rn(sum); }
__device__ inline void Narrow(float sum, __nv_bfloat16* value) {
  *value = __float2bfloat16_rn(sum);
}

// N neighboring channels, read and written at once.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T value[N];
};

template <typename To, typename From>
__device__ inline To BitsOf(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// Elements as they were read. Those of 16 bits stay in pairs, as registers hold them.
template <typename T, int N, bool Pairs = (sizeof(T) == 2 && N % 2 == 0)>
struct Elements {
  Pack<T, N> pack;

  __device__ Sum<T> operator[](int v) const { return Widen(pack.value[v]); }
};

template <typename T, int N>
struct Elements<T, N, true> {
  Pack<uint32_t, N / 2> pack;

  __device__ float operator[](int v) const {
    const uint32_t pair = pack.value[v / 2];
    return WidenHalf(static_cast<T*>(nullptr), pair, v % 2);
  }

 private:
  __device__ static float WidenHalf(const __nv_bfloat16*, uint32_t pair, int which) {
    return BitsOf<float>(which == 0 ? pair << 16 : pair & 0xffff0000u);
  }
  __device__ static float WidenHalf(const __half*, uint32_t pair, int which) {
    return Widen(BitsOf<__half>(static_cast<uint16_t>(pair >> (16 * which))));
  }
};

// The block's dynamic shared memory, aligned as what is swizzled in it needs (bulk_copy.cuh).
template <typename S>
__device__ inline S* SharedMemory() {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  return reinterpret_cast<S*>(shared_memory);
}

__device__ inline bool Inside(int index, int size) {
  return static_cast<unsigned>(index) < static_cast<unsigned>(size);
}

// Zeros where `inside` is false; nothing is read then.
template <typename T, int N>
__device__ inline Elements<T, N> Load(const T* at, bool inside) {
  using Words = decltype(Elements<T, N>::pack);
  Elements<T, N> elements = {};
  if (inside) elements.pack = *reinterpret_cast<const Words*>(at);
  return elements;
}

template <typename T, int N>
__device__ inline void Store(const Sum<T> (&values)[N], T* at) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    Pack<uint32_t, N / 2> pack;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      T low, high;
      Narrow(values[2 * i], &low);
      Narrow(values[2 * i + 1], &high);
      pack.value[i] = BitsOf<uint16_t>(low) | static_cast<uint32_t>(BitsOf<uint16_t>(high)) << 16;
    }
    *reinterpret_cast<Pack<uint32_t, N / 2>*>(at) = pack;
  } else {
    Pack<T, N> pack;
#pragma unroll
    for (int v = 0; v < N; ++v) Narrow(values[v], &pack.value[v]);
    *reinterpret_cast<Pack<T, N>*>(at) = pack;
  }
}

template <typename S, int N>
__device__ inline void LoadSums(const S* at, S (&values)[N]) {
  const Pack<S, N> pack = *reinterpret_cast<const Pack<S, N>*>(at);
#pragma unroll
  for (int v = 0; v < N; ++v) values[v] = pack.value[v];
}

// Division of numbers below 2^31 by one divisor from 1 to 2^31 - 1, without a division.
class Divider {
 public:
  Divider() = default;
  explicit Divider(int64_t divisor) : divisor_(static_cast<uint32_t>(divisor)) {
    while ((uint64_t{1} << shift_) < divisor_) ++shift_;
    const uint64_t excess = (uint64_t{1} << shift_) - divisor_;
    magic_ = static_cast<uint32_t>((excess << 32) / divisor_ + 1);
  }

  __device__ int Quotient(int number) const {
    const uint32_t n = static_cast<uint32_t>(number);
    return static_cast<int>((__umulhi(n, magic_) + n) >> shift_);
  }

  // Divides `number` and returns the remainder.
  __device__ int Split(int* number) const {
    const int quotient = Quotient(*number);
    const int remainder = *number - quotient * static_cast<int>(divisor_);
    *number = quotient;
    return remainder;
  }

 private:
  uint32_t divisor_ = 1;
  uint32_t magic_ = 1;
  uint32_t shift_ = 0;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_ELEMENTS_CUH_
