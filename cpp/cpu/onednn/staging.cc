#include "cpu/onednn/staging.h"

#include <cstdint>
#include <cstring>

#include "ffi/checked.h"

namespace jax_convgrad {
namespace {

struct Axis {
  int64_t size = 1;
  int64_t low = 0;
  int64_t padded = 1;
};

// The spatial axes except the last one, which lies in memory as rows of `row.size` bytes.
struct Layout {
  Axis outer, inner, row;
};

Layout LayoutOf(const ConvGeometry& g, size_t element_bytes) {
  const auto axis = [&g](int i) {
    return i < 0 ? Axis{}
                 : Axis{g.in[i], g.padding_low[i], g.in[i] + g.padding_low[i] + g.padding_high[i]};
  };
  Layout layout{axis(g.spatial - 3), axis(g.spatial - 2), axis(g.spatial - 1)};
  const int64_t bytes = g.in_channels * static_cast<int64_t>(element_bytes);
  layout.row.size *= bytes;
  layout.row.low *= bytes;
  layout.row.padded *= bytes;
  return layout;
}

// Calls visit(row of x or -1 where there is none, row of the padded copy) in order of memory.
template <typename Visit>
void ForEachRow(const ConvGeometry& g, const Layout& layout, const Visit& visit) {
  int64_t row = 0, padded_row = 0;
  for (int64_t image = 0; image < g.batch; ++image) {
    for (int64_t i = 0; i < layout.outer.padded; ++i) {
      const bool outside = i < layout.outer.low || i >= layout.outer.low + layout.outer.size;
      for (int64_t j = 0; j < layout.inner.padded; ++j, ++padded_row) {
        const bool padding =
            outside || j < layout.inner.low || j >= layout.inner.low + layout.inner.size;
        visit(padding ? -1 : row++, padded_row);
      }
    }
  }
}

}  // namespace

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

void CopyToStaged(const ConvGeometry& g, size_t element_bytes, const char* x, char* staged) {
  const Layout layout = LayoutOf(g, element_bytes);
  const size_t low = static_cast<size_t>(layout.row.low);
  const size_t size = static_cast<size_t>(layout.row.size);
  const size_t padded = static_cast<size_t>(layout.row.padded);
  ForEachRow(g, layout, [&](int64_t row, int64_t padded_row) {
    char* const to = staged + static_cast<size_t>(padded_row) * padded;
    if (row < 0) {
      std::memset(to, 0, padded);
      return;
    }
    std::memset(to, 0, low);
    std::memcpy(to + low, x + static_cast<size_t>(row) * size, size);
    std::memset(to + low + size, 0, padded - low - size);
  });
}

void CopyFromStaged(const ConvGeometry& g, size_t element_bytes, const char* staged, char* x) {
  const Layout layout = LayoutOf(g, element_bytes);
  const size_t low = static_cast<size_t>(layout.row.low);
  const size_t size = static_cast<size_t>(layout.row.size);
  const size_t padded = static_cast<size_t>(layout.row.padded);
  ForEachRow(g, layout, [&](int64_t row, int64_t padded_row) {
    if (row < 0) return;
    std::memcpy(x + static_cast<size_t>(row) * size,
                staged + static_cast<size_t>(padded_row) * padded + low, size);
  });
}

}  // namespace jax_convgrad
