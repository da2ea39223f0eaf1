// What the kernels of resample share: phases, element types, accesses, and the slow way.
//
// The tables lie on the device and cannot be checked. Starts are clamped, so that whatever they
// are, nothing outside x is read. A tile has room for what evenly spaced starts read; an output
// that starts elsewhere is computed from x directly.
//
// Weights of zero add nothing, also where x is not finite.
//
// Threads meet between phases only, and keep nothing from one to the next: see ForEachThread. So
// the kernels also run on the host, where they are tested.

#ifndef JAX_CONVGRAD_CUDA_RESAMPLE_ELEMENTS_CUH_
#define JAX_CONVGRAD_CUDA_RESAMPLE_ELEMENTS_CUH_

#include <cstdint>
#include <cstring>

#include "common/resample_form.h"
#include "cuda/resample_tiling.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define CONVGRAD_DEVICE __device__ __forceinline__
#define CONVGRAD_DEVICE_CALL __device__ __noinline__
#define CONVGRAD_UNROLL _Pragma("unroll")
#else
#define CONVGRAD_DEVICE inline
#define CONVGRAD_DEVICE_CALL inline
#define CONVGRAD_UNROLL
#endif

namespace jax_convgrad {

struct ResampleTask {
  ResampleForm form;
  ResampleTiling tiling;
  const void* x;
  void* y;
};

namespace resample_kernels {

// Runs body(thread) for every thread of the block, and waits for all unless told not to. On the
// host, where the kernels are tested, the threads of a phase run one after another.
template <bool kMeet = true, typename Body>
CONVGRAD_DEVICE void ForEachThread(int threads, const Body& body) {
#ifdef __CUDA_ARCH__
  (void)threads;
  body(static_cast<int>(threadIdx.x));
  if (kMeet) __syncthreads();
#else
  for (int thread = threads; thread-- > 0;) body(thread);
#endif
}

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

#ifdef __CUDACC__
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
#else
// The host's versions belong to the test that needs them.
float ToSum(Half value);
float ToSum(BFloat16 value);
void FromSum(float sum, Half& value);
void FromSum(float sum, BFloat16& value);
#endif

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

// The same of memory that the kernel does not write.
template <typename T, int kCount>
CONVGRAD_DEVICE Vector<T, kCount> LoadConstant(const T* from) {
#ifdef __CUDA_ARCH__
  Vector<T, kCount> to;
  constexpr int kBytes = sizeof(to);
  if constexpr (kBytes == 16) {
    const uint4 bits = __ldg(reinterpret_cast<const uint4*>(from));
    memcpy(&to, &bits, sizeof(to));
  } else if constexpr (kBytes == 8) {
    const uint2 bits = __ldg(reinterpret_cast<const uint2*>(from));
    memcpy(&to, &bits, sizeof(to));
  } else if constexpr (kBytes == 4) {
    const unsigned int bits = __ldg(reinterpret_cast<const unsigned int*>(from));
    memcpy(&to, &bits, sizeof(to));
  } else {
    static_assert(kBytes == 2, "no such load");
    const unsigned short bits = __ldg(reinterpret_cast<const unsigned short*>(from));
    memcpy(&to, &bits, sizeof(to));
  }
  return to;
#else
  return Load<T, kCount>(from);
#endif
}

CONVGRAD_DEVICE int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

CONVGRAD_DEVICE int Most(int a, int b) { return a > b ? a : b; }

CONVGRAD_DEVICE int ClampedStart(const ResampleAxis& axis, int64_t out) {
  const int last = static_cast<int>(axis.in - axis.taps);
  const int start = LoadConstant<int32_t, 1>(axis.start + out).at[0];
  return start < 0 ? 0 : start > last ? last : start;
}

template <typename Sum>
CONVGRAD_DEVICE Sum WeightAt(const ResampleAxis& axis, int64_t out, int tap) {
  return LoadConstant<Sum, 1>(static_cast<const Sum*>(axis.weights) + out * axis.taps + tap).at[0];
}

// Takes the digits of a number, the last first. 32 bits, as divisions of 64 are slow.
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

  CONVGRAD_DEVICE BatchAt(const ResampleForm& form, Digits digits) {
    const int b2 = digits.Next(form.batch[2]), b1 = digits.Next(form.batch[1]);
    const int64_t b0 = digits.rest;
    x = b0 * form.x_batch[0] + b1 * form.x_batch[1] + b2 * form.x_batch[2];
    y = b0 * form.y_batch[0] + b1 * form.y_batch[1] + b2 * form.y_batch[2];
  }
};

// What one output reads along one axis.
template <typename Sum>
struct Reads {
  int64_t start;
  int taps;
  const Sum* weights;  // null: one weight of 1

  CONVGRAD_DEVICE Reads(const ResampleAxis& axis, int64_t out)
      : start(axis.resampled ? ClampedStart(axis, out) : out),
        taps(axis.resampled ? static_cast<int>(axis.taps) : 1),
        weights(axis.resampled ? static_cast<const Sum*>(axis.weights) + out * axis.taps
                               : nullptr) {}

  CONVGRAD_DEVICE Sum Weight(int tap) const { return weights == nullptr ? Sum(1) : weights[tap]; }
};

// One element of y from x directly. The taps along the width from `first` on, every `step`th. A
// call, so that a path that is hardly ever taken costs the kernels no registers.
template <typename T>
CONVGRAD_DEVICE_CALL typename SumOf<T>::Type Directly(const ResampleForm& form, const T* x,
                                                      int64_t plane, int64_t row, int64_t column,
                                                      int64_t channel, int first = 0,
                                                      int step = 1) {
  using Sum = typename SumOf<T>::Type;
  const Reads<Sum> depth(form.depth, plane), height(form.height, row), width(form.width, column);
  Sum sum = 0;
  for (int p = 0; p < depth.taps; ++p) {
    for (int q = 0; q < height.taps; ++q) {
      const Sum outer = depth.Weight(p) * height.Weight(q);
      if (outer == Sum(0)) continue;
      const T* const line = x + (depth.start + p) * form.x_plane + (height.start + q) * form.x_row +
                            width.start * form.inner + channel;
      for (int r = first; r < width.taps; r += step) {
        const Sum weight = width.Weight(r);
        if (weight != Sum(0)) sum += outer * weight * ToSum(line[r * form.inner]);
      }
    }
  }
  return sum;
}

// The table of a tile's columns in shared memory: weights[tap][column], so that neighbouring
// threads find theirs side by side.
template <typename Sum>
CONVGRAD_DEVICE void LoadWidthTable(const ResampleTask& task, int64_t first, int columns,
                                    Sum* weights, int* starts, int thread) {
  const ResampleAxis& axis = task.form.width;
  const int taps = static_cast<int>(axis.taps), pitch = task.tiling.columns;
  for (int j = thread; j < columns; j += task.tiling.threads) {
    if (!axis.resampled) {
      starts[j] = 0;
      weights[j] = 1;
      continue;
    }
    starts[j] = ClampedStart(axis, first + j);
    const Sum* const from = static_cast<const Sum*>(axis.weights) + (first + j) * taps;
    int tap = 0;
    for (; tap + 4 <= taps; tap += 4) {
      Sum four[4];
      CONVGRAD_UNROLL
      for (int i = 0; i < 4; ++i) four[i] = LoadConstant<Sum, 1>(from + tap + i).at[0];
      CONVGRAD_UNROLL
      for (int i = 0; i < 4; ++i) weights[(tap + i) * pitch + j] = four[i];
    }
    for (; tap < taps; ++tap) weights[tap * pitch + j] = LoadConstant<Sum, 1>(from + tap).at[0];
  }
}

// The columns of x that a tile reads, if its first and last say so, and no more than it has room
// for.
struct Window {
  int64_t low;
  int size;

  CONVGRAD_DEVICE Window(const ResampleAxis& axis, int64_t first, int count, int room) {
    if (!axis.resampled) {
      low = first;
      size = count;
      return;
    }
    const int a = ClampedStart(axis, first), b = ClampedStart(axis, first + count - 1);
    low = a < b ? a : b;
    size = static_cast<int>(Least((a < b ? b : a) + axis.taps - low, room));
  }

  CONVGRAD_DEVICE bool Holds(int start, int taps) const {
    return start >= low && start + taps <= low + size;
  }
};

// Where the columns of a window lie in a row of x, cut into vectors. With the whole inner run in a
// tile, rows are contiguous, and vectors may begin between two columns.
struct RowRun {
  int64_t begin;  // of the whole, in elements from the row's first
  int vectors, shift, per_column;
  bool whole;

  CONVGRAD_DEVICE RowRun(const ResampleTask& task, const Window& window, int channels, int vector) {
    const int64_t inner = task.form.inner, first = window.low * inner;
    whole = task.tiling.channels == inner;
    begin = whole ? first / vector * vector : first;
    shift = whole ? static_cast<int>(first - begin) : 0;
    per_column = channels / vector;
    vectors = whole ? (static_cast<int>(window.size * inner) + shift + vector - 1) / vector
                    : window.size * per_column;
  }

  // Of vector `index`, in elements from the row's first.
  CONVGRAD_DEVICE int64_t Offset(int64_t inner, int64_t first_channel, int index,
                                 int vector) const {
    return whole ? begin + static_cast<int64_t>(index) * vector
                 : begin + index / per_column * inner + first_channel + index % per_column * vector;
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_RESAMPLE_ELEMENTS_CUH_
