// Cuts a convolution into smaller ones that can run side by side. Pure arithmetic on geometries: a
// piece is some images of the batch, or a part of one image, a convolution with its own padding and
// two offsets. Images and rows of the first spatial axis are contiguous in channels-last memory; a
// part of such a row, where there are more axes, is not.

#ifndef JAX_CONVGRAD_CPU_ONEDNN_CONV_SPLIT_H_
#define JAX_CONVGRAD_CPU_ONEDNN_CONV_SPLIT_H_

#include <cstdint>
#include <vector>

#include "ffi/conv.h"

namespace jax_convgrad {

struct ConvPiece {
  ConvGeometry geometry;
  int64_t x_offset = 0;  // in elements, of the whole arrays
  int64_t y_offset = 0;
};

// How to cut: `chunks` runs of images, each whole, if no axis is cut; else every image, along each
// axis into about so many blocks.
struct ConvSplit {
  int64_t chunks = 1;
  ConvGeometry::PerAxis blocks{1, 1, 1};

  bool CutsImages() const { return CutsRows() || blocks[0] > 1; }
  // Whether pieces are not contiguous.
  bool CutsRows() const { return blocks[1] > 1 || blocks[2] > 1; }
};

// The split that keeps `workers` threads evenly busy.
ConvSplit BalancedSplit(ConvKind kind, const ConvGeometry& geometry, int64_t workers);

// A multiple of `split` whose pieces have at most `max_pixels`, where it can be cut so far:
// pixels of x for dgrad, of y for the others. The outer axes are cut first.
ConvSplit LimitedSplit(ConvKind kind, const ConvGeometry& geometry, ConvSplit split,
                       int64_t max_pixels);

// The pieces in order of memory. The pixels that fprop writes are those of y, dgrad's those of x,
// and each is written by one piece; wgrad's pieces divide the pixels of y, and their results add
// up. Where an axis is cut, some pieces may read nothing of x, or no window may reach them: they
// are IsAllZero.
std::vector<ConvPiece> SplitConv(ConvKind kind, const ConvGeometry& geometry,
                                 const ConvSplit& split);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_ONEDNN_CONV_SPLIT_H_
