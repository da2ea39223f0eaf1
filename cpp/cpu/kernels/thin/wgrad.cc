#include <algorithm>
#include <cstddef>

#include "cpu/kernels/thin/work.h"
#include "ffi/checked.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

// Positions whose channels stay in the innermost cache while all taps go over them.
constexpr int64_t kBlockPositions = 256;
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
  int64_t room = kBlockPositions, count = 1;
  for (size_t axis = 4; axis-- > 0;) {
    block_[axis] = std::min(sizes[axis], room);
    room = std::max<int64_t>(1, room / block_[axis]);
    blocks_[axis] = (sizes[axis] + block_[axis] - 1) / block_[axis];
    count *= blocks_[axis];
  }
  const int64_t elements = table_.tap_count() * table_.rows * table_.columns;
  const int64_t max_parts = std::clamp<int64_t>(kMaxSumsElements / elements, 1, kMaxParts);
  parts_ = std::min(count, max_parts);
  const int64_t wanted = threads == 1 ? 1 : kTasksPerThread * threads;
  groups_ = std::clamp<int64_t>(CeilDivide(wanted, parts_), 1, table_.tap_count());

  direct_ = parts_ == 1 && table_.column_stride == 1;
  if (direct_) {
    sums_table_ = table_;
    sums_ = dw;
  } else {
    sums_table_ = table_.Dense();
    scratch_.emplace(MultipliedBytes(static_cast<size_t>(parts_ * elements), sizeof(float)));
    sums_ = reinterpret_cast<float*>(scratch_->data());
  }
}

void ThinWgrad::RunTask(int64_t task) const {
  const int64_t part = task / groups_, group = task % groups_;
  const int64_t all_taps = table_.tap_count();
  const Range taps{all_taps * group / groups_, all_taps * (group + 1) / groups_};
  float* const sums = sums_ + part * all_taps * table_.rows * table_.columns;
  const int64_t blocks = blocks_[0] * blocks_[1] * blocks_[2] * blocks_[3];
  const int64_t first = blocks * part / parts_, last = blocks * (part + 1) / parts_;
  for (int64_t block = first; block < last; ++block) RunBlock(block, taps, block > first, sums);
}

void ThinWgrad::RunBlock(int64_t block, Range taps, bool add, float* sums) const {
  const ConvGeometry& g = geometry_;
  Range windows[4];
  for (size_t axis = 4; axis-- > 0;) {
    const int64_t size = axis == 0 ? g.batch : g.out[axis - 1];
    const int64_t first = block % blocks_[axis] * block_[axis];
    windows[axis] = {first, std::min(first + block_[axis], size)};
    block /= blocks_[axis];
  }
  for (int64_t tap = taps.first; tap < taps.last; ++tap) {
    const int64_t at[] = {tap / g.kernel[2] / g.kernel[1], tap / g.kernel[2] % g.kernel[1],
                          tap % g.kernel[2]};
    ProductSum sum{};
    sum.sums = sums + sums_table_.TapOffset(tap);
    sum.row_count = table_.rows;
    sum.sums_step = sums_table_.row_stride;
    sum.add = add;
    int64_t x_steps[4], y_steps[4], x_offset = 0, y_offset = 0;
    int64_t x_step = g.in_channels, y_step = g.out_channels;
    bool empty = false;
    for (size_t axis = 4; axis-- > 1;) {
      const size_t i = axis - 1;
      // The windows of the block that have the tap inside x.
      const int64_t offset = at[i] * g.dilation[i] - g.padding_low[i], stride = g.strides[i];
      const int64_t room = g.in[i] - 1 - offset;
      const int64_t first =
          std::max(windows[axis].first, offset >= 0 ? 0 : (-offset - 1) / stride + 1);
      const int64_t last = room < 0 ? 0 : std::min(windows[axis].last, room / stride + 1);
      empty = empty || first >= last;
      sum.counts[axis] = last - first;
      x_offset += (first * stride + offset) * x_step;
      y_offset += first * y_step;
      x_steps[axis] = stride * x_step;
      y_steps[axis] = y_step;
      x_step *= g.in[i];
      y_step *= g.out[i];
    }
    if (empty) {
      for (int64_t row = 0; row < table_.rows && !add; ++row) {
        std::fill_n(sum.sums + row * sum.sums_step, table_.columns, 0.0f);
      }
      continue;
    }
    sum.counts[0] = windows[0].last - windows[0].first;
    x_steps[0] = x_step;
    y_steps[0] = y_step;
    x_offset += windows[0].first * x_step;
    y_offset += windows[0].first * y_step;
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
