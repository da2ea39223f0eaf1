#include "cpu/kernels/direct.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "cpu/kernels/bfloat16.h"
#include "cpu/runtime/first_exception.h"
#include "cpu/runtime/parallel_for.h"
#include "cpu/runtime/scratch.h"

namespace jax_convgrad {
namespace {

namespace ffi = ::xla::ffi;

// One spatial axis. In window i, tap t is on element i * stride - padding + t * dilation of x. None
// of this overflows: ConvGeometry::Make has computed the size of x with its padding.
struct Axis {
  int64_t in = 1, kernel = 1, out = 1, stride = 1, padding = 0, dilation = 1;
};

// `last` is exclusive.
struct Range {
  int64_t first, last;
};

// The k in [0, count) for which offset + k * step lies in [0, size).
Range Inside(int64_t offset, int64_t step, int64_t count, int64_t size) {
  const int64_t first = offset >= 0 ? 0 : (-offset - 1) / step + 1;
  const int64_t room = size - 1 - offset;
  const int64_t last = room < 0 ? 0 : std::min(count, room / step + 1);
  return {std::min(first, last), last};
}

using Position = std::array<int64_t, 3>;

template <typename T, typename R>
struct Direct {
  int64_t batch, in_channels, out_channels, groups;
  Axis axes[3];
  // Strides of the weights: output channel, input channel, the three axes.
  int64_t w_out, w_in, w_taps[3];
  const T *x, *w, *y;  // null is the result
  R* result;

  int64_t in_group() const { return in_channels / groups; }
  int64_t out_group() const { return out_channels / groups; }

  const T* XPixel(int64_t image, const Position& at) const {
    return x +
           (((image * axes[0].in + at[0]) * axes[1].in + at[1]) * axes[2].in + at[2]) * in_channels;
  }
  const T* YPixel(int64_t image, const Position& at) const {
    return y + (((image * axes[0].out + at[0]) * axes[1].out + at[1]) * axes[2].out + at[2]) *
                   out_channels;
  }
  int64_t TapOffset(const Position& tap) const {
    return tap[0] * w_taps[0] + tap[1] * w_taps[1] + tap[2] * w_taps[2];
  }

  int64_t TaskCount() const;
  void RunTask(int64_t task, std::vector<double>& sums) const;
  void Fprop(int64_t pixel, std::vector<double>& sums) const;
  void Dgrad(int64_t pixel, std::vector<double>& sums) const;
  void Wgrad(int64_t tap, int64_t output, std::vector<double>& sums) const;
};

// Calls visit(index, position) for the taps that window `i` has on x, along one axis.
template <typename Visit>
void ForTapsOf(const Axis& axis, int64_t i, const Visit& visit) {
  const int64_t offset = i * axis.stride - axis.padding;
  const Range taps = Inside(offset, axis.dilation, axis.kernel, axis.in);
  for (int64_t tap = taps.first; tap < taps.last; ++tap) visit(tap, offset + tap * axis.dilation);
}

// Calls visit(window, position) for the windows that have tap `tap` on x.
template <typename Visit>
void ForWindowsOf(const Axis& axis, int64_t tap, const Visit& visit) {
  const int64_t offset = tap * axis.dilation - axis.padding;
  const Range windows = Inside(offset, axis.stride, axis.out, axis.in);
  for (int64_t i = windows.first; i < windows.last; ++i) visit(i, offset + i * axis.stride);
}

// Calls visit(window, tap) for the windows that have a tap on element `j` of x.
template <typename Visit>
void ForWindowsOn(const Axis& axis, int64_t j, const Visit& visit) {
  for (int64_t tap = 0; tap < axis.kernel; ++tap) {
    const int64_t start = j + axis.padding - tap * axis.dilation;
    if (start < 0) return;
    if (start % axis.stride == 0 && start / axis.stride < axis.out) visit(start / axis.stride, tap);
  }
}

// The position of an element among those of three axes, the last of them innermost.
void Unravel(int64_t index, int64_t size1, int64_t size2, Position& at) {
  at[2] = index % size2;
  at[1] = index / size2 % size1;
  at[0] = index / size2 / size1;
}

template <typename T, typename R>
int64_t Direct<T, R>::TaskCount() const {
  if (y == nullptr) return batch * axes[0].out * axes[1].out * axes[2].out;
  if (x == nullptr) return batch * axes[0].in * axes[1].in * axes[2].in;
  return axes[0].kernel * axes[1].kernel * axes[2].kernel * out_channels;
}

template <typename T, typename R>
void Direct<T, R>::RunTask(int64_t task, std::vector<double>& sums) const {
  if (y == nullptr) return Fprop(task, sums);
  if (x == nullptr) return Dgrad(task, sums);
  Wgrad(task / out_channels, task % out_channels, sums);
}

// All channels of one pixel of y.
template <typename T, typename R>
void Direct<T, R>::Fprop(int64_t pixel, std::vector<double>& sums) const {
  Position window;
  Unravel(pixel, axes[1].out, axes[2].out, window);
  const int64_t image = window[0] / axes[0].out;
  window[0] %= axes[0].out;
  sums.assign(static_cast<size_t>(out_channels), 0.0);
  const auto add = [&](const Position& tap, const Position& at) {
    const T* const values = XPixel(image, at);
    for (int64_t o = 0; o < out_channels; ++o) {
      const T* const weights = w + TapOffset(tap) + o * w_out;
      const T* const group = values + o / out_group() * in_group();
      double sum = 0;
      for (int64_t c = 0; c < in_group(); ++c) {
        sum += double{Widen(group[c])} * Widen(weights[c * w_in]);
      }
      sums[static_cast<size_t>(o)] += sum;
    }
  };
  ForTapsOf(axes[0], window[0], [&](int64_t tap0, int64_t at0) {
    ForTapsOf(axes[1], window[1], [&](int64_t tap1, int64_t at1) {
      ForTapsOf(axes[2], window[2], [&](int64_t tap2, int64_t at2) {
        add(Position{tap0, tap1, tap2}, Position{at0, at1, at2});
      });
    });
  });
  for (int64_t o = 0; o < out_channels; ++o) {
    Narrow(static_cast<float>(sums[static_cast<size_t>(o)]), result + pixel * out_channels + o);
  }
}

// All channels of one pixel of dx.
template <typename T, typename R>
void Direct<T, R>::Dgrad(int64_t pixel, std::vector<double>& sums) const {
  Position at;
  Unravel(pixel, axes[1].in, axes[2].in, at);
  const int64_t image = at[0] / axes[0].in;
  at[0] %= axes[0].in;
  sums.assign(static_cast<size_t>(in_channels), 0.0);
  const auto add = [&](const Position& window, const Position& tap) {
    const T* const gradients = YPixel(image, window);
    for (int64_t o = 0; o < out_channels; ++o) {
      const double gradient = Widen(gradients[o]);
      const T* const weights = w + TapOffset(tap) + o * w_out;
      double* const group = sums.data() + o / out_group() * in_group();
      for (int64_t c = 0; c < in_group(); ++c) group[c] += gradient * Widen(weights[c * w_in]);
    }
  };
  ForWindowsOn(axes[0], at[0], [&](int64_t window0, int64_t tap0) {
    ForWindowsOn(axes[1], at[1], [&](int64_t window1, int64_t tap1) {
      ForWindowsOn(axes[2], at[2], [&](int64_t window2, int64_t tap2) {
        add(Position{window0, window1, window2}, Position{tap0, tap1, tap2});
      });
    });
  });
  for (int64_t c = 0; c < in_channels; ++c) {
    Narrow(static_cast<float>(sums[static_cast<size_t>(c)]), result + pixel * in_channels + c);
  }
}

// All input channels of one tap and one output channel of dw.
template <typename T, typename R>
void Direct<T, R>::Wgrad(int64_t tap, int64_t output, std::vector<double>& sums) const {
  Position taps;
  Unravel(tap, axes[1].kernel, axes[2].kernel, taps);
  sums.assign(static_cast<size_t>(in_group()), 0.0);
  const auto add = [&](int64_t image, const Position& window, const Position& at) {
    const T* const values = XPixel(image, at) + output / out_group() * in_group();
    const double gradient = Widen(YPixel(image, window)[output]);
    for (int64_t c = 0; c < in_group(); ++c) {
      sums[static_cast<size_t>(c)] += gradient * Widen(values[c]);
    }
  };
  for (int64_t image = 0; image < batch; ++image) {
    ForWindowsOf(axes[0], taps[0], [&](int64_t window0, int64_t at0) {
      ForWindowsOf(axes[1], taps[1], [&](int64_t window1, int64_t at1) {
        ForWindowsOf(axes[2], taps[2], [&](int64_t window2, int64_t at2) {
          add(image, Position{window0, window1, window2}, Position{at0, at1, at2});
        });
      });
    });
  }
  R* const to = result + TapOffset(taps) + output * w_out;
  for (int64_t c = 0; c < in_group(); ++c)
    Narrow(static_cast<float>(sums[static_cast<size_t>(c)]), to + c * w_in);
}

template <typename T, typename R>
void Run(ffi::ThreadPool& pool, const ConvProblem& problem, const void* x, const void* w,
         const void* y, void* result) {
  const ConvGeometry& g = problem.geometry;
  Direct<T, R> direct{};
  direct.batch = g.batch;
  direct.in_channels = g.in_channels;
  direct.out_channels = g.out_channels;
  direct.groups = g.groups;
  direct.w_out = problem.w_strides[0];
  direct.w_in = problem.w_strides[1];
  for (int axis = 0; axis < g.spatial; ++axis) {
    const int place = 3 - g.spatial + axis;
    direct.axes[place] = {g.in[axis],      g.kernel[axis],      g.out[axis],
                          g.strides[axis], g.padding_low[axis], g.dilation[axis]};
    direct.w_taps[place] = problem.w_strides[static_cast<size_t>(axis) + 2];
  }
  direct.x = static_cast<const T*>(problem.kind == ConvKind::kDgrad ? nullptr : x);
  direct.w = static_cast<const T*>(problem.kind == ConvKind::kWgrad ? nullptr : w);
  direct.y = static_cast<const T*>(problem.kind == ConvKind::kFprop ? nullptr : y);
  direct.result = static_cast<R*>(result);

  const int64_t tasks = direct.TaskCount();
  const int64_t runs = std::min(tasks, 8 * problem.threads);
  FirstException exception;
  ParallelFor(pool, problem.threads, runs, [&](int64_t run, int64_t) {
    exception.Guard([&] {
      std::vector<double> sums;
      // The first `tasks % runs` runs are one longer; no product of two sizes.
      const int64_t length = tasks / runs, longer = tasks % runs;
      const int64_t first = run * length + std::min(run, longer);
      const int64_t last = first + length + (run < longer ? 1 : 0);
      for (int64_t task = first; task < last; ++task) direct.RunTask(task, sums);
    });
  });
  exception.Rethrow();
}

}  // namespace

void DirectConv(ffi::ThreadPool& pool, const ConvProblem& problem, const void* x, const void* w,
                const void* y, void* result) {
  if (problem.operand_type == ffi::DataType::F32) {
    return Run<float, float>(pool, problem, x, w, y, result);
  }
  if (problem.result_type == ffi::DataType::F32) {
    return Run<BFloat16, float>(pool, problem, x, w, y, result);
  }
  Run<BFloat16, BFloat16>(pool, problem, x, w, y, result);
}

}  // namespace jax_convgrad
