#include "cpu/onednn/conv_split.h"

#include <algorithm>
#include <utility>

#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

// Busy time over ideal time minus one, for that many equal pieces.
double Imbalance(int64_t pieces, int64_t workers) {
  const int64_t rounds = CeilDivide(pieces, workers);
  return static_cast<double>(rounds * workers) / static_cast<double>(pieces) - 1.0;
}

// Elements from one row of an axis to the next.
int64_t RowElements(const ConvGeometry& g, const ConvGeometry::PerAxis& size, int64_t channels,
                    int axis) {
  int64_t elements = channels;
  for (int inner = axis + 1; inner < g.spatial; ++inner) elements *= size[inner];
  return elements;
}

ConvPiece WithImages(const ConvGeometry& g, int64_t first, int64_t count) {
  ConvPiece piece{g, first * RowElements(g, g.in, g.in_channels, -1),
                  first * RowElements(g, g.out, g.out_channels, -1)};
  piece.geometry.batch = count;
  return piece;
}

// Rows of x and of y along one axis. Ends are exclusive.
struct Rows {
  int64_t x_first, x_last, y_first, y_last;
};

// Rows of y that fprop writes or wgrad reads, and the rows of x under their windows: none where all
// of those lie in the padding.
Rows OutputRows(const ConvGeometry& g, int axis, int64_t first, int64_t last) {
  const int64_t low = g.padding_low[axis], stride = g.strides[axis], in = g.in[axis];
  const int64_t x_first = std::clamp<int64_t>(first * stride - low, 0, in);
  const int64_t x_last = (last - 1) * stride - low + g.WindowSize(axis);
  return {x_first, std::clamp(x_last, x_first, in), first, last};
}

// The rows of y whose windows do not lie wholly in the padding in front of x or behind it.
std::pair<int64_t, int64_t> RowsThatReachX(const ConvGeometry& g, int axis) {
  const int64_t low = g.padding_low[axis], stride = g.strides[axis], out = g.out[axis];
  const int64_t in_front = CeilDivide(low - g.WindowSize(axis) + 1, stride);
  const int64_t first = std::clamp<int64_t>(in_front, 0, out);
  return {first, std::clamp(CeilDivide(g.in[axis] + low, stride), first, out)};
}

// Rows of dx that dgrad writes, and the rows of dy whose windows touch them. `first` is 0 or under
// the start of a window, which keeps the piece's low padding from being negative.
Rows InputRows(const ConvGeometry& g, int axis, int64_t first, int64_t last) {
  const int64_t low = g.padding_low[axis], stride = g.strides[axis];
  return {first, last,
          std::max<int64_t>(0, CeilDivide(first + low - g.WindowSize(axis) + 1, stride)),
          std::min(g.out[axis], (last - 1 + low) / stride + 1)};
}

// Leaves a piece of `g` only those rows.
void Restrict(const ConvGeometry& g, int axis, const Rows& rows, ConvPiece* piece) {
  piece->x_offset += rows.x_first * RowElements(g, g.in, g.in_channels, axis);
  piece->y_offset += rows.y_first * RowElements(g, g.out, g.out_channels, axis);
  ConvGeometry& part = piece->geometry;
  part.in[axis] = rows.x_last - rows.x_first;
  part.out[axis] = rows.y_last - rows.y_first;
  // The first window of the piece starts at row y_first * stride - padding_low of x.
  part.padding_low[axis] = rows.x_first + g.padding_low[axis] - rows.y_first * g.strides[axis];
  part.padding_high[axis] =
      std::max<int64_t>(0, (part.out[axis] - 1) * g.strides[axis] + g.WindowSize(axis) -
                               part.in[axis] - part.padding_low[axis]);
}

// Cuts one axis into about `blocks` equal runs of rows.
std::vector<Rows> CutAxis(ConvKind kind, const ConvGeometry& g, int axis, int64_t blocks) {
  constexpr int64_t kLong = 16;  // rows of a block beside which one more or less does not count
  const bool input_rows = kind == ConvKind::kDgrad;
  const int64_t rows = input_rows ? g.in[axis] : g.out[axis];
  // What lies in the padding is apart from what does not: no piece has padding as wide as a window.
  const auto [begin, end] = input_rows ? std::pair(int64_t{0}, rows) : RowsThatReachX(g, axis);
  const int64_t length = end - begin;
  // Long blocks have one length, except the last: each length is a primitive of its own.
  const int64_t step = length >= kLong * blocks ? CeilDivide(length, blocks) : 0;
  std::vector<int64_t> cuts{0};
  if (begin > 0) cuts.push_back(begin);
  for (int64_t block = 1; block < blocks; ++block) {
    int64_t cut = begin + (step > 0 ? step * block : length * block / blocks);
    if (cut >= end) break;
    if (input_rows) {
      const int64_t window = (cut + g.padding_low[axis]) / g.strides[axis];
      if (window >= g.out[axis]) break;  // the rest is read by no window that starts there
      cut = window * g.strides[axis] - g.padding_low[axis];
    }
    if (cut > cuts.back()) cuts.push_back(cut);
  }
  if (end > cuts.back()) cuts.push_back(end);
  if (rows > cuts.back()) cuts.push_back(rows);
  std::vector<Rows> runs;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    runs.push_back(input_rows ? InputRows(g, axis, cuts[i], cuts[i + 1])
                              : OutputRows(g, axis, cuts[i], cuts[i + 1]));
  }
  return runs;
}

}  // namespace

ConvSplit BalancedSplit(ConvKind kind, const ConvGeometry& g, int64_t workers) {
  constexpr double kTolerable = 0.13;
  if (g.batch >= workers && Imbalance(g.batch, workers) <= kTolerable) return {workers};
  ConvSplit best{std::min(g.batch, workers)};
  double min_imbalance = Imbalance(g.batch, workers);
  const int64_t rows = kind == ConvKind::kDgrad ? g.in[0] : g.out[0];
  const int64_t max_blocks = std::min(rows, 2 * workers);
  for (int64_t blocks = 2; blocks <= max_blocks && min_imbalance > kTolerable; ++blocks) {
    const double imbalance = Imbalance(g.batch * blocks, workers);
    if (imbalance < min_imbalance) {
      min_imbalance = imbalance;
      best = {g.batch, {blocks, 1, 1}};
    }
  }
  return best;
}

ConvSplit LimitedSplit(ConvKind kind, const ConvGeometry& g, ConvSplit split, int64_t max_pixels) {
  const ConvGeometry::PerAxis& size = kind == ConvKind::kDgrad ? g.in : g.out;
  int64_t inner = 1;
  for (int axis = 0; axis < g.spatial; ++axis) inner *= size[axis];
  if (inner <= max_pixels && !split.CutsImages()) {
    const int64_t images = std::max<int64_t>(1, max_pixels / std::max<int64_t>(1, inner));
    const int64_t chunks = std::max(split.chunks, CeilDivide(g.batch, images));
    split.chunks = std::min(g.batch, RoundUp(chunks, split.chunks));
    return split;
  }
  int64_t outer = 1;  // pixels of a piece along the axes so far
  for (int axis = 0; axis < g.spatial && outer * inner > max_pixels; ++axis) {
    inner /= size[axis];
    int64_t& blocks = split.blocks[axis];
    const int64_t rows = std::clamp<int64_t>(max_pixels / (outer * inner), 1, size[axis]);
    blocks = std::min(size[axis], RoundUp(std::max(blocks, CeilDivide(size[axis], rows)), blocks));
    outer *= CeilDivide(size[axis], blocks);
  }
  return split;
}

std::vector<ConvPiece> SplitConv(ConvKind kind, const ConvGeometry& g, const ConvSplit& split) {
  std::vector<ConvPiece> pieces;
  if (!split.CutsImages()) {
    const int64_t chunks = std::clamp<int64_t>(split.chunks, 1, g.batch);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = g.batch * chunk / chunks;
      pieces.push_back(WithImages(g, first, g.batch * (chunk + 1) / chunks - first));
    }
    return pieces;
  }
  for (int64_t image = 0; image < g.batch; ++image) pieces.push_back(WithImages(g, image, 1));
  for (int axis = 0; axis < g.spatial; ++axis) {
    if (split.blocks[axis] <= 1) continue;
    const std::vector<Rows> runs = CutAxis(kind, g, axis, split.blocks[axis]);
    std::vector<ConvPiece> parts;
    parts.reserve(pieces.size() * runs.size());
    for (const ConvPiece& piece : pieces) {
      for (const Rows& rows : runs) {
        parts.push_back(piece);
        Restrict(g, axis, rows, &parts.back());
      }
    }
    pieces = std::move(parts);
  }
  return pieces;
}

}  // namespace jax_convgrad
