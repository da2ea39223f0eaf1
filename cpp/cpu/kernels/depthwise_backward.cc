#include "cpu/kernels/depthwise_backward.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cpu/kernels/depthwise.h"
#include "cpu/kernels/lanes.h"
#include "cpu/runtime/parallel_for.h"
#include "cpu/runtime/processor.h"
#include "cpu/runtime/scratch.h"
#include "ffi/checked.h"

// NOTE [The sweep]. For each row of x, each block of channels and each phase of the stride, the
// taps that reach an element of x form an arithmetic progression, and so do the elements of dy that
// they meet: with stride s, dilation d and low padding p, element c of x meets column
// (c + p - j d) / s of dy through tap j where that division has no remainder. The innermost loop
// goes along such a phase with up to kMaxTaps taps: their weights and their sums of dw stay in
// registers.

namespace jax_convgrad {
namespace {

namespace ffi = ::xla::ffi;

constexpr int kMaxTaps = 8;  // of one row of the kernel at a time
constexpr int kMaxRows = 3;  // rows of the kernel at a time, of kernels up to 3 wide
// Elements of a row whose products are summed in registers before they are added to memory.
constexpr int64_t kSegment = 64;
constexpr int64_t kTasksPerThread = 4;
constexpr int kMaxLanes = 16;

// The taps of one axis that reach an element of x, first to last, `step` apart: tap first + t *
// step meets element `window` - t * window_step of dy. Elements outside of dy may be among them.
struct Reach {
  int64_t first, step, count, window, window_step;
};

// A problem and its memory.
template <typename T>
struct Sweep : DepthwiseSizes {
  explicit Sweep(const ConvGeometry& geometry) : DepthwiseSizes(geometry) {}

  int64_t taps;
  int64_t phases;      // of the last axis's stride
  const Reach* reach;  // of each phase's first element
  const T* x;
  const T* dy;
  T* dx;           // null if dx is not wanted
  const float* w;  // [block][tap][lane]
  int64_t tasks;
  float* sums;     // [task][block][tap, then one for db][lane]
  bool sums_dy;    // db is wanted
  float* dx_rows;  // [worker][column][lane]; null where dx itself takes the sums

  JAX_CONVGRAD_INLINE int64_t rows_of_x() const { return batch * in[0] * in[1]; }
  JAX_CONVGRAD_INLINE int64_t rows_of_dy() const { return batch * out[0] * out[1]; }
};

int64_t Gcd(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

template <typename T>
Reach ReachOf(const Sweep<T>& g, int axis, int64_t element) {
  const int64_t stride = g.strides[axis], dilation = g.dilation[axis];
  const int64_t common = Gcd(stride, dilation), step = stride / common;
  const int64_t candidates = std::min(step, g.kernel[axis]);
  for (int64_t tap = 0; tap < candidates; ++tap) {
    const int64_t distance = element + g.padding[axis] - tap * dilation;
    if (distance % stride != 0) continue;
    return {tap, step, (g.kernel[axis] - 1 - tap) / step + 1, distance / stride, dilation / common};
  }
  return {0, step, 0, 0, 0};
}

// The same without the taps that meet no element of dy.
template <typename T>
Reach Inside(const Sweep<T>& g, int axis, int64_t element) {
  Reach reach = ReachOf(g, axis, element);
  while (reach.count > 0 && reach.window >= g.out[axis]) {
    reach.first += reach.step;
    reach.window -= reach.window_step;
    --reach.count;
  }
  while (reach.count > 0 && reach.window - (reach.count - 1) * reach.window_step < 0) --reach.count;
  return reach;
}

// What one call of Along reads and writes. Pointers are at the first channel of the block.
template <typename T>
struct Line {
  int64_t begin, end;  // elements of the phase, from the one that x, dx and dy point at
  const T* x;
  int64_t x_step;  // between neighbors of the phase, in numbers
  float* dx;
  int64_t dx_step;
  bool adds;                 // to what dx has
  const T* dy[kMaxRows];     // the element that the first tap of each row meets at element 0
  int64_t window;            // its column
  int64_t columns;           // of dy
  int64_t y_step;            // between neighboring columns of dy
  int64_t window_step;       // columns between what neighboring taps meet
  const float* w[kMaxRows];  // of the first tap of each row
  float* dw[kMaxRows];
  int64_t tap_step;  // between neighboring taps of w and dw, in numbers
};

template <int kRows, int kTaps, int kLanes, typename T>
JAX_CONVGRAD_INLINE void Along(const Line<T>& line, int64_t count) {
  using L = Lanes<kLanes>;
  using Floats = typename L::Floats;
  Floats w[kRows][kTaps];
  for (int row = 0; row < kRows; ++row) {
    for (int tap = 0; tap < kTaps; ++tap) {
      L::Load(line.w[row] + tap * line.tap_step, kLanes, w[row][tap]);
    }
  }
  const int64_t back = line.window_step * line.y_step;
  for (int64_t from = line.begin; from < line.end; from += kSegment) {
    const int64_t to = std::min(from + kSegment, line.end);
    // From the first element at which the last tap is inside of dy to the last at which the first
    // is, all taps are.
    const int64_t inner_begin = std::clamp((kTaps - 1) * line.window_step - line.window, from, to);
    const int64_t inner_end = std::clamp(line.columns - line.window, inner_begin, to);
    Floats sums[kRows][kTaps] = {};
    const auto edge_of = [&](int64_t lanes, int64_t first,
                             int64_t last) __attribute__((always_inline)) {
      for (int64_t i = first; i < last; ++i) {
        Floats x, dx{};
        L::Load(line.x + i * line.x_step, lanes, x);
        if (line.adds) L::Load(line.dx + i * line.dx_step, lanes, dx);
        for (int tap = 0; tap < kTaps; ++tap) {
          const int64_t column = line.window + i - tap * line.window_step;
          if (column < 0 || column >= line.columns) continue;
          for (int row = 0; row < kRows; ++row) {
            Floats dy;
            L::Load(line.dy[row] + i * line.y_step - tap * back, lanes, dy);
            dx += w[row][tap] * dy;
            sums[row][tap] += x * dy;
          }
        }
        L::Store(dx, lanes, line.dx + i * line.dx_step);
      }
    };
    const auto edge = [&](int64_t first, int64_t last) __attribute__((always_inline)) {
      if (count == kLanes) return edge_of(kLanes, first, last);
      edge_of(count, first, last);
    };
    edge(from, inner_begin);
    if (count == kLanes) {
      const auto inner = [&](auto adds) __attribute__((always_inline)) {
        for (int64_t i = inner_begin; i < inner_end; ++i) {
          Floats x, dx{};
          L::Load(line.x + i * line.x_step, kLanes, x);
          if (decltype(adds)::value) L::Load(line.dx + i * line.dx_step, kLanes, dx);
#pragma GCC unroll 3
          for (int row = 0; row < kRows; ++row) {
            const T* const dys = line.dy[row] + i * line.y_step;
#pragma GCC unroll 8
            for (int tap = 0; tap < kTaps; ++tap) {
              Floats dy;
              L::Load(dys - tap * back, kLanes, dy);
              dx += w[row][tap] * dy;
              sums[row][tap] += x * dy;
            }
          }
          L::Store(dx, kLanes, line.dx + i * line.dx_step);
        }
      };
      if (line.adds) {
        inner(std::true_type());
      } else {
        inner(std::false_type());
      }
    } else {
      edge(inner_begin, inner_end);
    }
    edge(inner_end, to);
    for (int row = 0; row < kRows; ++row) {
      for (int tap = 0; tap < kTaps; ++tap) {
        float* const at = line.dw[row] + tap * line.tap_step;
        Floats before;
        L::Load(at, kLanes, before);
        L::Store(before + sums[row][tap], kLanes, at);
      }
    }
  }
}

template <int kRows, int kLanes, typename T>
JAX_CONVGRAD_INLINE void AlongFew(const Line<T>& line, int taps, int64_t count) {
  switch (taps) {
    case 1:
      return Along<kRows, 1, kLanes>(line, count);
    case 2:
      return Along<kRows, 2, kLanes>(line, count);
    default:
      return Along<kRows, 3, kLanes>(line, count);
  }
}

template <int kLanes, typename T>
JAX_CONVGRAD_INLINE void AlongAny(const Line<T>& line, int rows, int taps, int64_t count) {
  if (rows == 3) return AlongFew<3, kLanes>(line, taps, count);
  if (rows == 2) return AlongFew<2, kLanes>(line, taps, count);
  switch (taps) {
    case 4:
      return Along<1, 4, kLanes>(line, count);
    case 5:
      return Along<1, 5, kLanes>(line, count);
    case 6:
      return Along<1, 6, kLanes>(line, count);
    case 7:
      return Along<1, 7, kLanes>(line, count);
    case 8:
      return Along<1, 8, kLanes>(line, count);
    default:
      return AlongFew<1, kLanes>(line, taps, count);
  }
}

// One row of x and one block of channels.
template <int kLanes, typename T>
JAX_CONVGRAD_INLINE void SweepRow(const Sweep<T>& g, int64_t image, const Reach& outer,
                                  const Reach& inner, const T* x, float* dx, int64_t dx_step,
                                  int64_t channel, int64_t count, const float* w, float* dw) {
  const int64_t stride = g.strides[2];
  for (int64_t phase = 0; phase < g.phases; ++phase) {
    const Reach& reach = g.reach[phase];
    Line<T> line;
    line.begin = 0;
    line.end = (g.in[2] - 1 - phase) / stride + 1;
    line.x = x + phase * g.channels;
    line.x_step = stride * g.channels;
    line.dx = dx + phase * dx_step;
    line.dx_step = stride * dx_step;
    line.adds = false;
    line.columns = g.out[2];
    line.y_step = g.channels;
    line.window_step = reach.window_step;
    line.tap_step = reach.step * kLanes;
    const bool few = reach.count <= 3;
    for (int64_t i = 0; i < outer.count && reach.count > 0; ++i) {
      const int64_t plane = (image * g.out[0] + outer.window - i * outer.window_step) * g.out[1];
      const int64_t row_of_taps = (outer.first + i * outer.step) * g.kernel[1];
      for (int64_t j = 0; j < inner.count;) {
        const int rows = static_cast<int>(few ? std::min<int64_t>(kMaxRows, inner.count - j) : 1);
        for (int64_t tap = 0; tap < reach.count; tap += kMaxTaps) {
          const int taps = static_cast<int>(std::min<int64_t>(kMaxTaps, reach.count - tap));
          line.window = reach.window - tap * reach.window_step;
          for (int r = 0; r < rows; ++r) {
            const int64_t dy_row = plane + inner.window - (j + r) * inner.window_step;
            const int64_t at = (row_of_taps + inner.first + (j + r) * inner.step) * g.kernel[2] +
                               reach.first + tap * reach.step;
            line.dy[r] = g.dy + (dy_row * g.out[2] + line.window) * g.channels + channel;
            line.w[r] = w + at * kLanes;
            line.dw[r] = dw + at * kLanes;
          }
          AlongAny<kLanes>(line, rows, taps, count);
          line.adds = true;
        }
        j += rows;
      }
    }
    if (line.adds) continue;
    for (int64_t i = 0; i < line.end; ++i) {
      std::memset(line.dx + i * line.dx_step, 0, static_cast<size_t>(count) * sizeof(float));
    }
  }
}

// Adds rows of dy, at its first channel of a block, to db.
template <int kLanes, typename T>
JAX_CONVGRAD_INLINE void AddRowsOfDy(const Sweep<T>& g, int64_t begin, int64_t end, const T* dy,
                                     int64_t count, float* db) {
  using L = Lanes<kLanes>;
  typename L::Floats total;
  L::Load(db, kLanes, total);
  for (int64_t row = begin; row < end; ++row) {
    typename L::Floats of_row{};
    for (int64_t from = 0; from < g.out[2]; from += kSegment) {
      const int64_t to = std::min(from + kSegment, g.out[2]);
      typename L::Floats parts[4] = {};  // so that an addition need not wait for the one before it
      int64_t i = from;
      for (; i + 4 <= to; i += 4) {
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) {
          typename L::Floats values;
          L::Load(dy + (row * g.out[2] + i + part) * g.channels, count, values);
          parts[part] += values;
        }
      }
      for (; i < to; ++i) {
        typename L::Floats values;
        L::Load(dy + (row * g.out[2] + i) * g.channels, count, values);
        parts[0] += values;
      }
      of_row += (parts[0] + parts[1]) + (parts[2] + parts[3]);
    }
    total += of_row;
  }
  L::Store(total, kLanes, db);
}

// One task: a part of the rows of x, and the same part of the rows of dy for db.
template <int kLanes, typename T>
JAX_CONVGRAD_INLINE void SweepTask(const Sweep<T>& g, int64_t task, int64_t worker) {
  const int64_t blocks = (g.channels - 1) / kLanes + 1;
  const int64_t block_sums = (g.taps + 1) * kLanes;
  float* const sums = g.sums + task * blocks * block_sums;
  std::memset(sums, 0, static_cast<size_t>(blocks * block_sums) * sizeof(float));
  const auto first_of = [&](int64_t rows, int64_t at) {  // without overflow
    return rows / g.tasks * at + rows % g.tasks * at / g.tasks;
  };
  const int64_t begin = first_of(g.rows_of_x(), task), end = first_of(g.rows_of_x(), task + 1);
  const int64_t dy_begin = first_of(g.rows_of_dy(), task),
                dy_end = first_of(g.rows_of_dy(), task + 1);
  int64_t dy_row = dy_begin;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t image = row / g.in[1] / g.in[0];
    const Reach outer = Inside(g, 0, row / g.in[1] % g.in[0]), inner = Inside(g, 1, row % g.in[1]);
    // These rows of dy are near those that this row of x meets, which the cache has.
    const int64_t dy_next =
        row + 1 == end ? dy_end
                       : dy_begin + (dy_end - dy_begin) * (row + 1 - begin) / (end - begin);
    for (int64_t block = 0; block < blocks; ++block) {
      // The last block overlaps the one before it where the channels do not fill it.
      const int64_t channel = std::max<int64_t>(0, std::min(block * kLanes, g.channels - kLanes));
      const int64_t count = std::min<int64_t>(kLanes, g.channels);
      float* const dw = sums + block * block_sums;
      if (g.sums_dy) {
        AddRowsOfDy<kLanes>(g, dy_row, dy_next, g.dy + channel, count, dw + g.taps * kLanes);
      }
      T* const dx = g.dx == nullptr ? nullptr : g.dx + row * g.in[2] * g.channels + channel;
      float* const buffer = g.dx_rows == nullptr ? nullptr : g.dx_rows + worker * g.in[2] * kLanes;
      SweepRow<kLanes>(g, image, outer, inner, g.x + row * g.in[2] * g.channels + channel,
                       buffer == nullptr ? reinterpret_cast<float*>(dx) : buffer,
                       buffer == nullptr ? g.channels : kLanes, channel, count,
                       g.w + block * g.taps * kLanes, dw);
      if (buffer == nullptr || dx == nullptr) continue;
      for (int64_t i = 0; i < g.in[2]; ++i) {
        for (int64_t lane = 0; lane < count; ++lane) {
          Narrow(buffer[i * kLanes + lane], dx + i * g.channels + lane);
        }
      }
    }
    dy_row = dy_next;
  }
}

template <typename T>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma"))) void TaskAvx512(const Sweep<T>& g,
                                                                                  int64_t task,
                                                                                  int64_t worker) {
  SweepTask<16>(g, task, worker);
}

template <typename T>
__attribute__((target("avx2,fma"))) void TaskAvx2(const Sweep<T>& g, int64_t task, int64_t worker) {
  SweepTask<8>(g, task, worker);
}

template <typename T>
void TaskSse2(const Sweep<T>& g, int64_t task, int64_t worker) {
  SweepTask<4>(g, task, worker);
}

template <typename T>
struct Kernel {
  int lanes;
  void (*task)(const Sweep<T>&, int64_t, int64_t);
};

template <typename T>
Kernel<T> KernelHere() {
  if (HasAvx512()) return {16, TaskAvx512<T>};
  if (HasAvx2()) return {8, TaskAvx2<T>};
  return {4, TaskSse2<T>};
}

// Where the taps of w and dw lie, counted row by row, from those of the first tap.
template <typename T>
std::vector<int64_t> PlacesOfTaps(const Sweep<T>& g, const DepthwiseBackwardCall& call) {
  std::vector<int64_t> places(static_cast<size_t>(g.taps), 0);
  for (int64_t tap = 0; tap < g.taps; ++tap) {
    int64_t rest = tap;
    for (int axis = 2; axis >= 0; --axis) {
      const int from = axis - (3 - call.geometry.spatial);
      const int64_t stride = from >= 0 ? call.w_strides[static_cast<size_t>(from) + 2] : 0;
      places[static_cast<size_t>(tap)] += rest % g.kernel[axis] * stride;
      rest /= g.kernel[axis];
    }
  }
  return places;
}

template <typename T>
void Run(ffi::ThreadPool& pool, const DepthwiseBackwardCall& call) {
  const Kernel<T> kernel = KernelHere<T>();
  const int64_t lanes = kernel.lanes;
  Sweep<T> g(call.geometry);
  g.taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
  g.x = static_cast<const T*>(call.x);
  g.dy = static_cast<const T*>(call.dy);
  g.dx = static_cast<T*>(call.dx);
  g.sums_dy = call.db != nullptr;
  const int64_t blocks = (g.channels - 1) / lanes + 1, block_sums = (g.taps + 1) * lanes;
  const int64_t workers = std::min(NumThreads(pool), g.rows_of_x());

  // More tasks than threads, as far as their sums fit: a thread may be late.
  const size_t task_bytes = MultipliedBytes(
      MultipliedBytes(static_cast<size_t>(blocks), static_cast<size_t>(block_sums)), sizeof(float));
  const int64_t room = static_cast<int64_t>(kMaxScratchBytes / task_bytes);
  g.tasks = std::clamp(room, workers, std::min(workers * kTasksPerThread, g.rows_of_x()));
  const Scratch weights(task_bytes);
  const Scratch sums(MultipliedBytes(static_cast<size_t>(g.tasks), task_bytes));
  const bool buffered = !std::is_same<T, float>::value || call.dx == nullptr;
  const Scratch rows(buffered
                         ? MultipliedBytes(static_cast<size_t>(workers * lanes) * sizeof(float),
                                           static_cast<size_t>(g.in[2]))
                         : 1);
  float* const w = reinterpret_cast<float*>(weights.data());
  g.w = w;
  g.sums = reinterpret_cast<float*>(sums.data());
  g.dx_rows = buffered ? reinterpret_cast<float*>(rows.data()) : nullptr;
  g.phases = std::min(g.strides[2], g.in[2]);
  std::vector<Reach> reach;
  for (int64_t phase = 0; phase < g.phases; ++phase) reach.push_back(ReachOf(g, 2, phase));
  g.reach = reach.data();
  const std::vector<int64_t> places = PlacesOfTaps(g, call);
  const auto weight_at = [&](int64_t channel, int64_t tap) {
    return channel * call.w_strides[0] + places[static_cast<size_t>(tap)];
  };
  const auto channel_of = [&](int64_t block, int64_t lane) {
    return std::max<int64_t>(0, std::min(block * lanes, g.channels - lanes)) + lane;
  };
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t tap = 0; tap < g.taps; ++tap) {
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const int64_t channel = channel_of(block, lane);
        w[(block * g.taps + tap) * lanes + lane] =
            channel < g.channels ? Widen(static_cast<const T*>(call.w)[weight_at(channel, tap)])
                                 : 0.0f;
      }
    }
  }
  ParallelFor(pool, workers, g.tasks,
              [&](int64_t task, int64_t worker) { kernel.task(g, task, worker); });
  for (int64_t task = 1; task < g.tasks; ++task) {
    const float* const from = g.sums + task * blocks * block_sums;
    for (int64_t i = 0; i < blocks * block_sums; ++i) g.sums[i] += from[i];
  }
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t channel = channel_of(block, lane);
      if (channel >= g.channels) break;
      const float* const from = g.sums + block * block_sums + lane;
      for (int64_t tap = 0; tap < g.taps && call.dw != nullptr; ++tap) {
        Narrow(from[tap * lanes], static_cast<T*>(call.dw) + weight_at(channel, tap));
      }
      if (call.db != nullptr) Narrow(from[g.taps * lanes], static_cast<T*>(call.db) + channel);
    }
  }
}

template <typename T>
void Sum(const T* dy, int64_t rows, int64_t channels, T* db) {
  for (int64_t channel = 0; channel < channels; ++channel) {
    double total = 0.0;
    for (int64_t row = 0; row < rows; ++row) total += Widen(dy[row * channels + channel]);
    Narrow(static_cast<float>(total), db + channel);
  }
}

}  // namespace

void DepthwiseBackward(ffi::ThreadPool& pool, const DepthwiseBackwardCall& call) {
  if (call.type == ffi::DataType::BF16) {
    Run<BFloat16>(pool, call);
  } else {
    Run<float>(pool, call);
  }
}

void SumOverRows(ffi::DataType type, const void* dy, int64_t rows, int64_t channels, void* db) {
  if (type == ffi::DataType::BF16) {
    Sum(static_cast<const BFloat16*>(dy), rows, channels, static_cast<BFloat16*>(db));
  } else {
    Sum(static_cast<const float*>(dy), rows, channels, static_cast<float*>(db));
  }
}

}  // namespace jax_convgrad
