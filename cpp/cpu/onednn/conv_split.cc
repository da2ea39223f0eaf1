#include "cpu/onednn/conv_split.h"

#include <algorithm>

#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

// Busy time over ideal time minus one, for that many equal pieces.
double Imbalance(int64_t pieces, int64_t workers) {
  const int64_t rounds = CeilDivide(pieces, workers);
  return static_cast<double>(rounds * workers) / static_cast<double>(pieces) - 1.0;
}

int64_t ImageElements(const ConvGeometry& g, const ConvGeometry::PerAxis& size, int64_t channels) {
  int64_t elements = channels;
  for (int axis = 0; axis < g.spatial; ++axis) elements *= size[axis];
  return elements;
}

ConvPiece WithImages(const ConvGeometry& g, int64_t first, int64_t count) {
  ConvPiece piece{g, first * ImageElements(g, g.in, g.in_channels),
                  first * ImageElements(g, g.out, g.out_channels)};
  piece.geometry.batch = count;
  return piece;
}

// Rows x_first to x_last of x and y_first to y_last of y of one image, both ends exclusive.
ConvPiece WithRows(const ConvGeometry& g, int64_t image, int64_t x_first, int64_t x_last,
                   int64_t y_first, int64_t y_last) {
  ConvPiece piece = WithImages(g, image, 1);
  piece.x_offset += x_first * (ImageElements(g, g.in, g.in_channels) / g.in[0]);
  piece.y_offset += y_first * (ImageElements(g, g.out, g.out_channels) / g.out[0]);
  ConvGeometry& rows = piece.geometry;
  rows.in[0] = x_last - x_first;
  rows.out[0] = y_last - y_first;
  // The first window of the piece starts at row y_first * stride - padding_low of x.
  rows.padding_low[0] = x_first + g.padding_low[0] - y_first * g.strides[0];
  rows.padding_high[0] = std::max<int64_t>(
      0, (rows.out[0] - 1) * g.strides[0] + g.WindowSize(0) - rows.in[0] - rows.padding_low[0]);
  return piece;
}

// Rows of y that fprop writes or wgrad reads, and the rows of x under their windows.
ConvPiece WithOutputRows(const ConvGeometry& g, int64_t image, int64_t first, int64_t last) {
  const int64_t x_first = std::max<int64_t>(0, first * g.strides[0] - g.padding_low[0]);
  const int64_t x_last =
      std::min(g.in[0], (last - 1) * g.strides[0] - g.padding_low[0] + g.WindowSize(0));
  return WithRows(g, image, x_first, x_last, first, last);
}

// Rows of dx that dgrad writes, and the rows of dy whose windows touch them. `first` is 0 or under
// the start of a window, which keeps the piece's low padding from being negative.
ConvPiece WithInputRows(const ConvGeometry& g, int64_t image, int64_t first, int64_t last) {
  const int64_t low = g.padding_low[0];
  const int64_t y_first =
      std::max<int64_t>(0, CeilDivide(first + low - g.WindowSize(0) + 1, g.strides[0]));
  const int64_t y_last = std::min(g.out[0], (last - 1 + low) / g.strides[0] + 1);
  return WithRows(g, image, first, last, y_first, y_last);
}

// Rows at which the image may be cut into about `blocks` equal runs, from 0 to the last row.
std::vector<int64_t> RowCuts(ConvKind kind, const ConvGeometry& g, int64_t blocks) {
  const bool input_rows = kind == ConvKind::kDgrad;
  const int64_t rows = input_rows ? g.in[0] : g.out[0];
  std::vector<int64_t> cuts{0};
  for (int64_t block = 1; block < blocks; ++block) {
    int64_t cut = rows * block / blocks;
    if (input_rows) {
      const int64_t window = (cut + g.padding_low[0]) / g.strides[0];
      if (window >= g.out[0]) break;  // the rest is read by no window that starts there
      cut = window * g.strides[0] - g.padding_low[0];
    }
    if (cut > cuts.back()) cuts.push_back(cut);
  }
  cuts.push_back(rows);
  return cuts;
}

}  // namespace

bool CanSplitRows(const ConvGeometry& g) {
  return g.padding_low[0] < g.WindowSize(0) && g.padding_high[0] < g.WindowSize(0);
}

ConvSplit BalancedSplit(ConvKind kind, const ConvGeometry& g, int64_t workers) {
  constexpr double kTolerable = 0.13;
  if (g.batch >= workers && Imbalance(g.batch, workers) <= kTolerable) return {workers, 1};
  ConvSplit best{std::min(g.batch, workers), 1};
  if (!CanSplitRows(g)) return best;
  double min_imbalance = Imbalance(g.batch, workers);
  const int64_t rows = kind == ConvKind::kDgrad ? g.in[0] : g.out[0];
  const int64_t max_blocks = std::min(rows, 2 * workers);
  for (int64_t blocks = 2; blocks <= max_blocks && min_imbalance > kTolerable; ++blocks) {
    const double imbalance = Imbalance(g.batch * blocks, workers);
    if (imbalance < min_imbalance) {
      min_imbalance = imbalance;
      best = {g.batch, blocks};
    }
  }
  return best;
}

std::vector<ConvPiece> SplitConv(ConvKind kind, const ConvGeometry& g, const ConvSplit& split) {
  std::vector<ConvPiece> pieces;
  if (split.row_blocks <= 1) {
    const int64_t chunks = std::clamp<int64_t>(split.chunks, 1, g.batch);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = g.batch * chunk / chunks;
      pieces.push_back(WithImages(g, first, g.batch * (chunk + 1) / chunks - first));
    }
    return pieces;
  }
  const std::vector<int64_t> cuts = RowCuts(kind, g, split.row_blocks);
  for (int64_t image = 0; image < g.batch; ++image) {
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      pieces.push_back(kind == ConvKind::kDgrad ? WithInputRows(g, image, cuts[i], cuts[i + 1])
                                                : WithOutputRows(g, image, cuts[i], cuts[i + 1]));
    }
  }
  return pieces;
}

}  // namespace jax_convgrad
