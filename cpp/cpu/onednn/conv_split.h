// Cuts a convolution into smaller ones that can run side by side. Pure arithmetic on geometries: a
// piece is some images of the batch, or some rows (of the first spatial axis) of one image. Both
// are contiguous in channels-last memory, so a piece is a convolution with its own padding and two
// offsets.

#ifndef JAX_CONVGRAD_CPU_ONEDNN_CONV_SPLIT_H_
#define JAX_CONVGRAD_CPU_ONEDNN_CONV_SPLIT_H_

#include <cstdint>
#include <vector>

#include "ffi/conv.h"

namespace jax_convgrad {

struct ConvPiece {
  ConvGeometry geometry;
  int64_t x_offset = 0;  // in elements
  int64_t y_offset = 0;
};

// Whether rows of one image may be cut: not where a window can lie wholly in the padding.
bool CanSplitRows(const ConvGeometry& geometry);

// How to cut: `chunks` runs of images, each whole, if row_blocks is 1; else every image into
// `row_blocks` runs of rows.
struct ConvSplit {
  int64_t chunks = 1;
  int64_t row_blocks = 1;
};

// The split that keeps `workers` threads evenly busy.
ConvSplit BalancedSplit(ConvKind kind, const ConvGeometry& geometry, int64_t workers);

// The pieces in order of memory. The rows that fprop writes are those of y, dgrad's those of x, and
// every row is written by one piece; wgrad's pieces divide the rows of y, and their results add up.
std::vector<ConvPiece> SplitConv(ConvKind kind, const ConvGeometry& geometry,
                                 const ConvSplit& split);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_ONEDNN_CONV_SPLIT_H_
