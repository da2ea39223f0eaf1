#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "cpu/kernels/thin/work.h"
#include "ffi/checked.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

// Positions of a row that are worth a call of their own.
constexpr int64_t kMinPart = 48;
// Neighbors that are better summed side by side than each in several sums.
constexpr int64_t kMinTogether = 3;
// Multiples of so many channels fill vectors of one position each, whose kernels leave out taps.
constexpr int64_t kJoinedChannels = 8;
// Tasks for each thread: one that comes late finds less to do, and all end at about the same time.
constexpr int64_t kTasksPerThread = 12;

bool IsAlone(Range positions) { return positions.last - positions.first < kMinTogether; }

// The k in [0, count) for which offset + k * step lies in [0, size).
Range Inside(int64_t offset, int64_t step, int64_t count, int64_t size) {
  const int64_t first = offset >= 0 ? 0 : (-offset - 1) / step + 1;
  const int64_t room = size - 1 - offset;
  const int64_t last = room < 0 ? 0 : std::min(count, room / step + 1);
  return {std::min(first, last), last};
}

}  // namespace

bool ThinGather::Supports(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  const bool fprop = problem.kind == ConvKind::kFprop;
  const int64_t from = fprop ? g.in_channels : g.out_channels;
  const int64_t to = fprop ? g.out_channels : g.in_channels;
  return to % 4 == 0 || (to < 4 && from % 4 == 0);
}

ThinGather::Axis ThinGather::FpropAxis(const ConvGeometry& g, int i) {
  Axis axis;
  axis.from = g.in[i];
  axis.to = g.out[i];
  axis.from_step = g.strides[i];
  axis.from_tap = g.dilation[i];
  axis.phases.push_back({g.out[i], -g.padding_low[i], g.kernel[i], 0, {}, {}, {}});
  return axis;
}

// Element j of dx is read by tap t of window (j + padding - t dilation) / stride, where that is
// whole: by every (stride / divisor)th tap, each of them dilation / divisor windows before the
// last. They are counted from the last one, so that windows ascend.
ThinGather::Axis ThinGather::DgradAxis(const ConvGeometry& g, int i) {
  const int64_t stride = g.strides[i], dilation = g.dilation[i], padding = g.padding_low[i];
  const int64_t divisor = std::gcd(stride, dilation), every = stride / divisor;
  Axis axis;
  axis.from = g.out[i];
  axis.to = g.in[i];
  axis.from_step = 1;
  axis.from_tap = dilation / divisor;
  axis.w_tap = -every;
  for (int64_t j = 0; j < stride; ++j) {
    int64_t first = 0;
    while (first < every && (j + padding - first * dilation) % stride != 0) ++first;
    Phase phase{j < axis.to ? (axis.to - 1 - j) / stride + 1 : 0, 0, 0, 0, {}, {}, {}};
    if (first < every && first < g.kernel[i]) {
      phase.taps = (g.kernel[i] - 1 - first) / every + 1;
      phase.w_first = first + (phase.taps - 1) * every;
      phase.from_first = (j + padding - phase.w_first * dilation) / stride;
    }
    axis.phases.push_back(phase);
  }
  return axis;
}

Range ThinGather::TapsInside(const Axis& axis, const Phase& phase, int64_t position) {
  return Inside(phase.from_first + position * axis.from_step, axis.from_tap, phase.taps, axis.from);
}

// Elements at a row's ends that would be summed alone, which loads weights for one element only,
// are joined with their neighbors; the kernels leave out the taps that lie outside. On Zen 4 with
// k3 that takes 1% off rows of 64, 3% to 5% off those of 32 and 8% off those of 16; 10% to 28% off
// rows of 16 to 256 with k11 to k127.
void ThinGather::FindSegments(Axis* axis, bool join) {
  for (Phase& phase : axis->phases) {
    std::vector<int64_t> bounds{0, phase.positions};
    std::vector<Range> all;
    Range whole{0, phase.positions};
    for (int64_t tap = 0; tap < phase.taps; ++tap) {
      const Range inside = Inside(phase.from_first + tap * axis->from_tap, axis->from_step,
                                  phase.positions, axis->from);
      bounds.push_back(inside.first);
      bounds.push_back(inside.last);
      all.push_back(inside);
      whole = {std::max(whole.first, inside.first), std::min(whole.last, inside.last)};
    }
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      phase.segments.push_back({{bounds[i], bounds[i + 1]}, TapsInside(*axis, phase, bounds[i])});
    }
    const bool alone = std::any_of(phase.segments.begin(), phase.segments.end(),
                                   [](const Segment& s) { return IsAlone(s.positions); });
    if (join && alone && !IsAlone({0, phase.positions})) {
      phase.segments = {{{0, phase.positions}, {0, phase.taps}}};
      phase.inside = std::move(all);
      phase.whole = whole;
    }
  }
}

ThinGather::ThinGather(const ConvProblem& problem, const ThinKernels& kernels, int64_t threads,
                       const float* from, const float* w, float* to)
    : kernels_(kernels), from_(from), to_(to) {
  const ConvGeometry& g = problem.geometry;
  const bool fprop = problem.kind == ConvKind::kFprop;
  batch_ = g.batch;
  from_channels_ = fprop ? g.in_channels : g.out_channels;
  to_channels_ = fprop ? g.out_channels : g.in_channels;
  table_.rows = from_channels_;
  table_.columns = to_channels_;
  table_.row_stride = problem.w_strides[fprop ? 1 : 0];
  table_.column_stride = problem.w_strides[fprop ? 0 : 1];
  const int missing = kMaxSpatialAxes - g.spatial;
  for (int i = 0; i < kMaxSpatialAxes; ++i) {
    const size_t place = static_cast<size_t>(i);
    const int axis = i < missing ? g.spatial + i : i - missing;  // beyond the last are neutral ones
    axes_[place] = fprop ? FpropAxis(g, axis) : DgradAxis(g, axis);
    table_.taps[place] = g.kernel[static_cast<size_t>(axis)];
    if (i >= missing) table_.tap_strides[place] = problem.w_strides[static_cast<size_t>(axis) + 2];
  }
  FindSegments(&axes_[2], to_channels_ % kJoinedChannels == 0);

  w_ = w;
  const bool narrow = to_channels_ < 4;
  if ((narrow ? table_.row_stride : table_.column_stride) != 1) {
    WeightsTable dense = table_.Dense();
    if (narrow) {
      dense.row_stride = 1;
      dense.column_stride = dense.rows;
    }
    const size_t count = static_cast<size_t>(table_.tap_count() * table_.rows * table_.columns);
    packed_.emplace(MultipliedBytes(count, sizeof(float)));
    float* const packed = reinterpret_cast<float*>(packed_->data());
    CopyWeights(table_, w, dense, packed);
    table_ = dense;
    w_ = packed;
  }

  const int64_t rows = batch_ * axes_[0].to * axes_[1].to;
  const int64_t wanted = threads == 1 ? 1 : kTasksPerThread * threads;
  const int64_t max_parts = std::max<int64_t>(1, axes_[2].to / kMinPart);
  parts_ = std::clamp<int64_t>(CeilDivide(wanted, rows), 1, max_parts);
  tasks_ = std::min(wanted, rows * parts_);
}

void ThinGather::RunTask(int64_t task) const {
  const int64_t units = batch_ * axes_[0].to * axes_[1].to * parts_;
  std::vector<TapOffset> outer;
  const int64_t last = units * (task + 1) / tasks_;
  for (int64_t unit = units * task / tasks_; unit < last; ++unit) RunUnit(unit, &outer);
}

void ThinGather::RunUnit(int64_t unit, std::vector<TapOffset>* outer) const {
  const int64_t part = unit % parts_, line = unit / parts_;
  const int64_t at1 = line % axes_[1].to, at0 = line / axes_[1].to % axes_[0].to;
  const int64_t image = line / axes_[1].to / axes_[0].to;
  const int64_t from_row = axes_[2].from * from_channels_, to_row = axes_[2].to * to_channels_;

  // The outer axes' taps inside `from`.
  outer->clear();
  const int64_t phases0 = static_cast<int64_t>(axes_[0].phases.size());
  const int64_t phases1 = static_cast<int64_t>(axes_[1].phases.size());
  const Phase& phase0 = axes_[0].phases[static_cast<size_t>(at0 % phases0)];
  const Phase& phase1 = axes_[1].phases[static_cast<size_t>(at1 % phases1)];
  const Range taps0 = TapsInside(axes_[0], phase0, at0 / phases0);
  const Range taps1 = TapsInside(axes_[1], phase1, at1 / phases1);
  for (int64_t t0 = taps0.first; t0 < taps0.last; ++t0) {
    const int64_t from0 =
        phase0.from_first + at0 / phases0 * axes_[0].from_step + t0 * axes_[0].from_tap;
    const int64_t w0 = (phase0.w_first + t0 * axes_[0].w_tap) * table_.tap_strides[0];
    for (int64_t t1 = taps1.first; t1 < taps1.last; ++t1) {
      const int64_t from1 =
          phase1.from_first + at1 / phases1 * axes_[1].from_step + t1 * axes_[1].from_tap;
      const int64_t w1 = (phase1.w_first + t1 * axes_[1].w_tap) * table_.tap_strides[1];
      outer->push_back({(from0 * axes_[1].from + from1) * from_row, w0 + w1});
    }
  }

  const Axis& axis = axes_[2];
  const int64_t phases = static_cast<int64_t>(axis.phases.size());
  const float* const from = from_ + image * axes_[0].from * axes_[1].from * from_row;
  float* const to = to_ + line * to_row;
  GatherRow row{};
  row.from_step = axis.from_step * from_channels_;
  row.to_step = phases * to_channels_;
  row.channels = from_channels_;
  row.w_channel = table_.row_stride;
  row.w_column = table_.column_stride;
  row.from_tap = axis.from_tap * from_channels_;
  row.w_tap = axis.w_tap * table_.tap_strides[2];
  row.outer = outer->data();
  row.outer_count = static_cast<int64_t>(outer->size());
  for (int64_t p = 0; p < phases; ++p) {
    const Phase& phase = axis.phases[static_cast<size_t>(p)];
    const int64_t begin = phase.positions * part / parts_;
    const int64_t end = phase.positions * (part + 1) / parts_;
    for (const Segment& segment : phase.segments) {
      const int64_t first = std::max(begin, segment.positions.first);
      row.positions = std::min(end, segment.positions.last) - first;
      if (row.positions <= 0) continue;
      row.alone = IsAlone(segment.positions);
      row.inside = phase.inside.empty() ? nullptr : phase.inside.data();
      row.whole = phase.whole;
      row.position = first;
      row.taps = segment.taps.last - segment.taps.first;
      row.from = from;
      row.w = w_;
      if (row.taps > 0) {
        row.from +=
            (phase.from_first + first * axis.from_step + segment.taps.first * axis.from_tap) *
            from_channels_;
        row.w += (phase.w_first + segment.taps.first * axis.w_tap) * table_.tap_strides[2];
      }
      row.to = to + (first * phases + p) * to_channels_;
      for (int64_t channel = 0, width; channel < to_channels_; channel += width) {
        width = kernels_.WidthOf(to_channels_ - channel);
        kernels_.gather(row, width);
        row.w += width;
        row.to += width;
      }
    }
  }
}

}  // namespace jax_convgrad
