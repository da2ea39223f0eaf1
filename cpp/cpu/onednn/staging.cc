#include "cpu/onednn/staging.h"

#include <cstdint>
#include <cstring>

#include "ffi/checked.h"

namespace jax_convgrad {
bool HasPadding(const ConvGeometry& g) {
  for (int axis = 0; axis < g.spatial; ++axis) {
    if (g.padding_low[axis] > 0 || g.padding_high[axis] > 0) return true;
  }
  return false;
}

bool WgradNeedsStaging(const ConvGeometry& g) {
  if (!HasPadding(g)) return false;
  if (g.spatial == 3) {
    const int64_t window = g.WindowSize(0);
    if (window > g.in[0]) return true;
    const bool both = g.padding_low[0] > 0 && g.padding_high[0] > 0;
    if (both && window + g.strides[0] - 1 > g.in[0]) return true;
  }
  for (int axis = 0; axis < g.spatial; ++axis) {
    for (int64_t tap = 0; tap < g.kernel[axis]; ++tap) {
      if (!g.TapReadsInput(axis, tap)) return true;
    }
  }
  return false;
}

ConvGeometry StagedGeometry(const ConvGeometry& g) {
  ConvGeometry staged = g;
  for (int axis = 0; axis < g.spatial; ++axis) {
    staged.in[axis] += g.padding_low[axis] + g.padding_high[axis];
    staged.padding_low[axis] = staged.padding_high[axis] = 0;
  }
  return staged;
}

std::optional<size_t> StagedBytes(const ConvGeometry& g, size_t element_bytes) {
  std::optional<int64_t> bytes =
      CheckedMultiply(g.batch * g.in_channels, static_cast<int64_t>(element_bytes));
  for (int axis = 0; axis < g.spatial && bytes; ++axis) {
    bytes = CheckedMultiply(*bytes, g.in[axis] + g.padding_low[axis] + g.padding_high[axis]);
  }
  if (!bytes) return std::nullopt;
  return static_cast<size_t>(*bytes);
}

PieceCopy::PieceCopy(int spatial, int64_t batch, const PixelRuns& runs,
                     const ConvGeometry::PerAxis& size, const ConvGeometry::PerAxis& low,
                     const ConvGeometry::PerAxis& high, const ConvGeometry::PerAxis& whole)
    : batch_(batch), runs_(runs), pixel_bytes_(static_cast<size_t>(runs.count) * runs.bytes) {
  size_t step = static_cast<size_t>(runs.count) * runs.step;
  bytes_ = pixel_bytes_ * static_cast<size_t>(batch);
  for (int i = kMaxSpatialAxes; i-- > 0;) {
    const int axis = i - (kMaxSpatialAxes - spatial);
    if (axis < 0) break;
    const int64_t padded = size[axis] + low[axis] + high[axis];
    axes_[static_cast<size_t>(i)] = {size[axis], low[axis], padded, step};
    step *= static_cast<size_t>(whole[axis]);
    bytes_ *= static_cast<size_t>(padded);
  }
  image_step_ = step;
}

// Calls visit(offset of a row in the larger array, in the copy, whether it is padding), in order of
// memory.
template <typename Visit>
void PieceCopy::ForEachRow(const Visit& visit) const {
  const Axis &outer = axes_[0], &inner = axes_[1];
  const size_t padded_row = static_cast<size_t>(axes_[2].padded) * pixel_bytes_;
  size_t at = 0;
  for (int64_t image = 0; image < batch_; ++image) {
    for (int64_t i = -outer.low; i < outer.padded - outer.low; ++i) {
      const bool outside = i < 0 || i >= outer.size;
      for (int64_t j = -inner.low; j < inner.padded - inner.low; ++j, at += padded_row) {
        const bool padding = outside || j < 0 || j >= inner.size;
        const size_t from = padding ? 0
                                    : static_cast<size_t>(image) * image_step_ +
                                          static_cast<size_t>(i) * outer.step +
                                          static_cast<size_t>(j) * inner.step;
        visit(from, at, padding);
      }
    }
  }
}

// Copies the runs of a row of pixels.
void PieceCopy::CopyRuns(const char* from, size_t from_step, char* to, size_t to_step) const {
  const size_t runs = static_cast<size_t>(axes_[2].size * runs_.count);
  if (from_step == to_step) {
    std::memcpy(to, from, runs * runs_.bytes);
    return;
  }
  for (size_t run = 0; run < runs; ++run) {
    std::memcpy(to + run * to_step, from + run * from_step, runs_.bytes);
  }
}

void PieceCopy::CopyIn(const char* from, char* copy) const {
  const size_t low = static_cast<size_t>(axes_[2].low) * pixel_bytes_;
  const size_t size = static_cast<size_t>(axes_[2].size) * pixel_bytes_;
  const size_t padded = static_cast<size_t>(axes_[2].padded) * pixel_bytes_;
  ForEachRow([&](size_t row, size_t at, bool padding) {
    char* const to = copy + at;
    if (padding) {
      std::memset(to, 0, padded);
      return;
    }
    std::memset(to, 0, low);
    CopyRuns(from + row, runs_.step, to + low, runs_.bytes);
    std::memset(to + low + size, 0, padded - low - size);
  });
}

void PieceCopy::CopyOut(const char* copy, char* to) const {
  const size_t low = static_cast<size_t>(axes_[2].low) * pixel_bytes_;
  ForEachRow([&](size_t row, size_t at, bool padding) {
    if (!padding) CopyRuns(copy + at + low, runs_.bytes, to + row, runs_.step);
  });
}

}  // namespace jax_convgrad
