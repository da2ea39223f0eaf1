#include <algorithm>
#include <cstddef>

#include "cpu/kernels/thin/work.h"
#include "ffi/checked.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

// Positions whose channels stay in the innermost cache while all taps go over them.
constexpr int64_t kBlockPositions = 256;
// Fewer rows are joined with those of neighboring taps.
constexpr int64_t kMinRows = 4;
constexpr int64_t kMaxParts = 16;
constexpr int64_t kMaxSumsElements = 1 << 20;
constexpr int64_t kTasksPerThread = 4;

// Floats in the vectors that all of the channels are cut into.
int64_t Lanes(int64_t channels, int64_t max_lanes) {
  for (int64_t lanes = max_lanes; lanes >= 4; lanes /= 2) {
    if (channels % lanes == 0) return lanes;
  }
  return 0;
}

// Positions of a block where rows are joined. Windows at the edges are summed apart then, which
// larger blocks do less often. Each sum of a block has one accumulator, or several if there are few
// rows, and loses digits with its length: few positions are cut nevertheless.
int64_t JoinedPositions(int64_t rows, int64_t positions) {
  return std::clamp<int64_t>(positions / 32, kBlockPositions, rows < 8 ? 4096 : 1024);
}

}  // namespace

bool ThinWgrad::Supports(const ConvProblem& problem) {
  return problem.geometry.in_channels % 4 == 0 || problem.geometry.out_channels % 4 == 0;
}

ThinWgrad::ThinWgrad(const ConvProblem& problem, const ThinKernels& kernels, int64_t threads,
                     const float* x, const float* dy, float* dw)
    : kernels_(kernels), x_(x), dy_(dy), dw_(dw) {
  const ConvGeometry& g = problem.geometry;
  geometry_ = g;
  const int missing = kMaxSpatialAxes - g.spatial;
  for (int i = 0; i < kMaxSpatialAxes; ++i) {
    const size_t place = static_cast<size_t>(i);
    const size_t axis = static_cast<size_t>(i < missing ? g.spatial + i : i - missing);
    geometry_.in[place] = g.in[axis];
    geometry_.kernel[place] = g.kernel[axis];
    geometry_.out[place] = g.out[axis];
    geometry_.strides[place] = g.strides[axis];
    geometry_.padding_low[place] = g.padding_low[axis];
    geometry_.dilation[place] = g.dilation[axis];
    table_.taps[place] = g.kernel[axis];
    if (i >= missing) table_.tap_strides[place] = problem.w_strides[axis + 2];
  }
  geometry_.spatial = kMaxSpatialAxes;

  // The side that fills wider vectors, else the one that lies like that in dw.
  const int64_t max_lanes = kernels.max_width / 2;
  const int64_t x_lanes = Lanes(g.in_channels, max_lanes);
  const int64_t y_lanes = Lanes(g.out_channels, max_lanes);
  columns_are_y_ = x_lanes != y_lanes ? y_lanes > x_lanes : problem.w_strides[0] == 1;
  table_.rows = columns_are_y_ ? g.in_channels : g.out_channels;
  table_.columns = columns_are_y_ ? g.out_channels : g.in_channels;
  table_.row_stride = problem.w_strides[columns_are_y_ ? 1 : 0];
  table_.column_stride = problem.w_strides[columns_are_y_ ? 0 : 1];

  const std::array<int64_t, 4> sizes{g.batch, geometry_.out[0], geometry_.out[1], geometry_.out[2]};
  const bool few_rows = columns_are_y_ && table_.rows < kMinRows && geometry_.dilation[2] == 1;
  int64_t room = kBlockPositions, count = 1;
  if (few_rows) {
    room = JoinedPositions(table_.rows * table_.taps[2], g.batch * sizes[1] * sizes[2] * sizes[3]);
  }
  for (size_t axis = 4; axis-- > 0;) {
    block_[axis] = std::min(sizes[axis], room);
    room = std::max<int64_t>(1, room / block_[axis]);
    blocks_[axis] = (sizes[axis] + block_[axis] - 1) / block_[axis];
    count *= blocks_[axis];
  }
  const int64_t elements = table_.tap_count() * table_.rows * table_.columns;
  const int64_t max_parts = std::clamp<int64_t>(kMaxSumsElements / elements, 1, kMaxParts);
  parts_ = std::min(count, max_parts);

  direct_ = parts_ == 1 && table_.column_stride == 1;
  if (direct_) {
    sums_table_ = table_;
    sums_ = dw;
  } else {
    sums_table_ = table_.Dense();
    scratch_.emplace(MultipliedBytes(static_cast<size_t>(parts_ * elements), sizeof(float)));
    sums_ = reinterpret_cast<float*>(scratch_->data());
  }
  const int64_t neighbors = table_.taps[2];
  const bool joins = few_rows && sums_table_.tap_strides[2] == table_.rows * sums_table_.row_stride;
  joined_taps_ = joins ? neighbors : 1;
  const int64_t wanted = threads == 1 ? 1 : kTasksPerThread * threads;
  groups_ = std::clamp<int64_t>(CeilDivide(wanted, parts_), 1, table_.tap_count() / joined_taps_);
}

void ThinWgrad::RunTask(int64_t task) const {
  const int64_t part = task / groups_, group = task % groups_;
  const int64_t all_taps = table_.tap_count(), runs = all_taps / joined_taps_;
  const Range taps{runs * group / groups_ * joined_taps_,
                   runs * (group + 1) / groups_ * joined_taps_};
  float* const sums = sums_ + part * all_taps * table_.rows * table_.columns;
  const int64_t blocks = blocks_[0] * blocks_[1] * blocks_[2] * blocks_[3];
  const int64_t first = blocks * part / parts_, last = blocks * (part + 1) / parts_;
  for (int64_t block = first; block < last; ++block) RunBlock(block, taps, block > first, sums);
}

void ThinWgrad::RunBlock(int64_t block, Range taps, bool add, float* sums) const {
  const ConvGeometry& g = geometry_;
  Box box;
  for (size_t axis = 4; axis-- > 0;) {
    const int64_t size = axis == 0 ? g.batch : g.out[axis - 1];
    const int64_t first = block % blocks_[axis] * block_[axis];
    box[axis] = {first, std::min(first + block_[axis], size)};
    block /= blocks_[axis];
  }
  for (int64_t tap = taps.first; tap < taps.last; tap += joined_taps_) {
    if (joined_taps_ == 1) {
      SumTaps(tap, 1, box, add, sums);
      continue;
    }
    // The windows that have all neighbors inside x, then what is beside them for each.
    const Range columns = box[3];
    Range inner{WindowsInside(2, 0, columns).first,
                WindowsInside(2, joined_taps_ - 1, columns).last};
    inner.last = std::max(inner.first, inner.last);
    const bool any = inner.first < inner.last;
    box[3] = inner;
    if (any) SumTaps(tap, joined_taps_, box, add, sums);
    for (int64_t neighbor = 0; neighbor < joined_taps_; ++neighbor) {
      if (!any) {
        box[3] = columns;
        SumTaps(tap + neighbor, 1, box, add, sums);
        continue;
      }
      box[3] = {columns.first, inner.first};
      if (box[3].first < box[3].last) SumTaps(tap + neighbor, 1, box, /*add=*/true, sums);
      box[3] = {inner.last, columns.last};
      if (box[3].first < box[3].last) SumTaps(tap + neighbor, 1, box, /*add=*/true, sums);
    }
    box[3] = columns;
  }
}

// Those of `windows` that have a tap inside x, along one axis.
Range ThinWgrad::WindowsInside(size_t axis, int64_t tap, Range windows) const {
  const ConvGeometry& g = geometry_;
  const int64_t offset = tap * g.dilation[axis] - g.padding_low[axis], stride = g.strides[axis];
  const int64_t room = g.in[axis] - 1 - offset;
  return {std::max(windows.first, offset >= 0 ? 0 : (-offset - 1) / stride + 1),
          room < 0 ? 0 : std::min(windows.last, room / stride + 1)};
}

void ThinWgrad::SumTaps(int64_t first_tap, int64_t taps, const Box& box, bool add,
                        float* sums) const {
  const ConvGeometry& g = geometry_;
  const int64_t at[] = {first_tap / g.kernel[2] / g.kernel[1],
                        first_tap / g.kernel[2] % g.kernel[1], first_tap % g.kernel[2]};
  ProductSum sum{};
  sum.sums = sums + sums_table_.TapOffset(first_tap);
  sum.row_count = taps * table_.rows;
  sum.sums_step = sums_table_.row_stride;
  sum.add = add;
  int64_t x_steps[4], y_steps[4], x_offset = 0, y_offset = 0;
  int64_t x_step = g.in_channels, y_step = g.out_channels;
  bool empty = false;
  for (size_t axis = 4; axis-- > 1;) {
    const size_t i = axis - 1;
    const Range windows = WindowsInside(i, at[i], box[axis]);
    empty = empty || windows.first >= windows.last;
    sum.counts[axis] = windows.last - windows.first;
    x_offset += (windows.first * g.strides[i] + at[i] * g.dilation[i] - g.padding_low[i]) * x_step;
    y_offset += windows.first * y_step;
    x_steps[axis] = g.strides[i] * x_step;
    y_steps[axis] = y_step;
    x_step *= g.in[i];
    y_step *= g.out[i];
  }
  if (empty) {
    for (int64_t row = 0; row < sum.row_count && !add; ++row) {
      std::fill_n(sum.sums + row * sum.sums_step, table_.columns, 0.0f);
    }
    return;
  }
  sum.counts[0] = box[0].last - box[0].first;
  x_steps[0] = x_step;
  y_steps[0] = y_step;
  x_offset += box[0].first * x_step;
  y_offset += box[0].first * y_step;
  const float* const x = x_ + x_offset;
  const float* const dy = dy_ + y_offset;
  sum.vectors = columns_are_y_ ? dy : x;
  sum.rows = columns_are_y_ ? x : dy;
  std::copy_n(columns_are_y_ ? y_steps : x_steps, 4, sum.vector_steps);
  std::copy_n(columns_are_y_ ? x_steps : y_steps, 4, sum.row_steps);
  for (int64_t column = 0, width; column < table_.columns; column += width) {
    width = kernels_.WidthOf(table_.columns - column);
    kernels_.sum_products(sum, width);
    sum.vectors += width;
    sum.sums += width;
  }
}

void ThinWgrad::Finish() const {
  if (direct_) return;
  constexpr int64_t kBlock = 64;  // stays in registers and the innermost cache
  const int64_t elements = table_.tap_count() * table_.rows * table_.columns;
  const bool dense = table_.IsDense();
  float* const to = dense ? dw_ : sums_;
  for (int64_t first = 0; first < elements; first += kBlock) {
    const int64_t count = std::min(kBlock, elements - first);
    float totals[kBlock];
    std::copy_n(sums_ + first, count, totals);
    for (int64_t part = 1; part < parts_; ++part) {
      const float* const addends = sums_ + part * elements + first;
      for (int64_t i = 0; i < count; ++i) totals[i] += addends[i];
    }
    std::copy_n(totals, count, to + first);
  }
  if (!dense) CopyWeights(sums_table_, sums_, table_, dw_);
}

}  // namespace jax_convgrad
