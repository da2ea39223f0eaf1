#include "cpu/kernels/depthwise.h"

#include <algorithm>
#include <cstdint>

#include "cpu/kernels/lanes.h"
#include "cpu/runtime/processor.h"

namespace jax_convgrad {
namespace {

template <typename T>
struct Wgrad : DepthwiseSizes {
  const T* x;
  const T* dy;
  float* dw;
};

// Windows along one axis for which a tap lies inside x: `last` is exclusive, and never more than
// there are, also of a tap that lies inside for none.
struct Range {
  int64_t first, last;
};

template <typename T>
JAX_CONVGRAD_INLINE Range Windows(const Wgrad<T>& g, int axis, int64_t tap) {
  const int64_t offset = tap * g.dilation[axis] - g.padding[axis];
  const int64_t stride = g.strides[axis];
  const int64_t first = offset >= 0 ? 0 : (-offset - 1) / stride + 1;
  const int64_t room = g.in[axis] - 1 - offset;
  const int64_t last = room < 0 ? 0 : std::min(g.out[axis], room / stride + 1);
  return {std::min(first, last), last};
}

// Adds the products of one row of dy and one row of x to kTaps neighbouring taps of dw, which stay
// in registers. All pointers are at the first channel of the block.
template <int kTaps, int kLanes, typename T>
JAX_CONVGRAD_INLINE void AddRow(const Wgrad<T>& g, int64_t first_tap, const T* x, const T* dy,
                                int64_t count, float* dw) {
  using L = Lanes<kLanes>;
  using Floats = typename L::Floats;
  Floats sums[kTaps] = {};
  // All taps lie inside x for the windows between the last that any tap opens and the first that
  // any closes; only the others need a look at each tap.
  const Range leftmost = Windows(g, 2, first_tap), rightmost = Windows(g, 2, first_tap + kTaps - 1);
  const int64_t begin = std::min(rightmost.first, leftmost.first);
  const int64_t end = std::max(rightmost.last, leftmost.last);
  const int64_t inner_begin = std::clamp(leftmost.first, begin, end);
  const int64_t inner_end = std::clamp(rightmost.last, inner_begin, end);
  const int64_t step = g.strides[2] * g.channels, tap_step = g.dilation[2] * g.channels;
  const int64_t origin = (first_tap * g.dilation[2] - g.padding[2]) * g.channels;

  const auto add_edge = [&](int64_t from, int64_t to) __attribute__((always_inline)) {
    for (int64_t window = from; window < to; ++window) {
      Floats gradient;
      L::Load(dy + window * g.channels, count, gradient);
      for (int tap = 0; tap < kTaps; ++tap) {
        const int64_t column =
            window * g.strides[2] + (first_tap + tap) * g.dilation[2] - g.padding[2];
        if (column < 0 || column >= g.in[2]) continue;
        Floats value;
        L::Load(x + column * g.channels, count, value);
        sums[tap] += value * gradient;
      }
    }
  };
  add_edge(begin, inner_begin);
  if (count == kLanes) {
    for (int64_t window = inner_begin; window < inner_end; ++window) {
      Floats gradient;
      L::Load(dy + window * g.channels, kLanes, gradient);
      const T* const column = x + origin + window * step;
#pragma GCC unroll 8
      for (int tap = 0; tap < kTaps; ++tap) {
        Floats value;
        L::Load(column + tap * tap_step, kLanes, value);
        sums[tap] += value * gradient;
      }
    }
  } else {
    add_edge(inner_begin, inner_end);
  }
  add_edge(inner_end, end);
  for (int tap = 0; tap < kTaps; ++tap) {
    L::Add(sums[tap], count, dw + (first_tap + tap) * g.channels);
  }
}

template <int kLanes, typename T>
JAX_CONVGRAD_INLINE void AddRowAllTaps(const Wgrad<T>& g, const T* x, const T* dy, int64_t count,
                                       float* dw) {
  int64_t tap = 0;
  for (; tap + 8 <= g.kernel[2]; tap += 8) AddRow<8, kLanes>(g, tap, x, dy, count, dw);
  switch (g.kernel[2] - tap) {
    case 7:
      return AddRow<7, kLanes>(g, tap, x, dy, count, dw);
    case 6:
      return AddRow<6, kLanes>(g, tap, x, dy, count, dw);
    case 5:
      return AddRow<5, kLanes>(g, tap, x, dy, count, dw);
    case 4:
      return AddRow<4, kLanes>(g, tap, x, dy, count, dw);
    case 3:
      return AddRow<3, kLanes>(g, tap, x, dy, count, dw);
    case 2:
      return AddRow<2, kLanes>(g, tap, x, dy, count, dw);
    case 1:
      return AddRow<1, kLanes>(g, tap, x, dy, count, dw);
    default:
      return;
  }
}

template <int kLanes, typename T>
JAX_CONVGRAD_INLINE void Compute(const Wgrad<T>& g) {
  const int64_t x_row = g.in[2] * g.channels, y_row = g.out[2] * g.channels;
  const int64_t w_row = g.kernel[2] * g.channels;
  std::fill_n(g.dw, g.kernel[0] * g.kernel[1] * w_row, 0.0f);
  for (int64_t image = 0; image < g.batch; ++image) {
    for (int64_t channel = 0; channel < g.channels; channel += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, g.channels - channel);
      for (int64_t i = 0; i < g.kernel[0]; ++i) {
        const Range outer = Windows(g, 0, i);
        for (int64_t j = 0; j < g.kernel[1]; ++j) {
          const Range inner = Windows(g, 1, j);
          float* const dw = g.dw + (i * g.kernel[1] + j) * w_row + channel;
          for (int64_t p = outer.first; p < outer.last; ++p) {
            const int64_t depth = p * g.strides[0] + i * g.dilation[0] - g.padding[0];
            for (int64_t q = inner.first; q < inner.last; ++q) {
              const int64_t row = q * g.strides[1] + j * g.dilation[1] - g.padding[1];
              const T* const x =
                  g.x + ((image * g.in[0] + depth) * g.in[1] + row) * x_row + channel;
              const T* const dy = g.dy + ((image * g.out[0] + p) * g.out[1] + q) * y_row + channel;
              AddRowAllTaps<kLanes>(g, x, dy, count, dw);
            }
          }
        }
      }
    }
  }
}

template <typename T>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma"))) void ComputeAvx512(
    const Wgrad<T>& g) {
  Compute<16>(g);
}

template <typename T>
__attribute__((target("avx2,fma"))) void ComputeAvx2(const Wgrad<T>& g) {
  Compute<8>(g);
}

template <typename T>
void ComputeSse2(const Wgrad<T>& g) {
  Compute<4>(g);
}

template <typename T>
void Dispatch(const ConvGeometry& geometry, const void* x, const void* dy, float* dw) {
  const Wgrad<T> g{DepthwiseSizes(geometry), static_cast<const T*>(x), static_cast<const T*>(dy),
                   dw};
  if (HasAvx512()) return ComputeAvx512(g);
  if (HasAvx2()) return ComputeAvx2(g);
  ComputeSse2(g);
}

}  // namespace

DepthwiseSizes::DepthwiseSizes(const ConvGeometry& geometry)
    : batch(geometry.batch), channels(geometry.in_channels) {
  for (int axis = 0; axis < 3; ++axis) {
    const int from = axis - (3 - geometry.spatial);
    const bool there = from >= 0;
    in[axis] = there ? geometry.in[from] : 1;
    out[axis] = there ? geometry.out[from] : 1;
    kernel[axis] = there ? geometry.kernel[from] : 1;
    strides[axis] = there ? geometry.strides[from] : 1;
    padding[axis] = there ? geometry.padding_low[from] : 0;
    dilation[axis] = there ? geometry.dilation[from] : 1;
  }
}

bool IsDepthwise(const ConvGeometry& g) {
  return g.groups > 1 && g.groups == g.in_channels && g.groups == g.out_channels;
}

void DepthwiseWgrad(const ConvGeometry& geometry, ::xla::ffi::DataType type, const void* x,
                    const void* dy, float* dw) {
  if (type == ::xla::ffi::DataType::BF16) {
    Dispatch<BFloat16>(geometry, x, dy, dw);
  } else {
    Dispatch<float>(geometry, x, dy, dw);
  }
}

}  // namespace jax_convgrad
