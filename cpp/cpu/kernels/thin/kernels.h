// The compiled kernels of conv.h, one set per instruction set. A vector is some channels of
// one position; 4 channels are too few for a register, which then holds those of several positions.

#ifndef JAX_CONVGRAD_CPU_KERNELS_THIN_KERNELS_H_
#define JAX_CONVGRAD_CPU_KERNELS_THIN_KERNELS_H_

#include <cstdint>

namespace jax_convgrad {

// `last` is exclusive.
struct Range {
  int64_t first, last;
};

// All steps and offsets are in elements.
struct TapOffset {
  int64_t from, w;
};

// Neighboring positions of a result whose taps all lie inside `from`, or those that `inside` says:
//
//   to[p][v] = sum over o, t, c of  from[outer[o].from + p from_step + t from_tap + c]
//                                   * w[outer[o].w + t w_tap + c w_channel + v w_column]
//
// No tap at all gives zeros. w_column is 1 for 4 channels v and more. For less of them w_channel
// is, and there are channels c in fours.
struct GatherRow {
  const float* from;
  const float* w;
  float* to;
  int64_t positions, from_step, to_step;
  int64_t channels, w_channel, w_column;
  int64_t taps, from_tap, w_tap;
  const TapOffset* outer;
  int64_t outer_count;
  // The positions are summed one by one, each in several sums: for too few to be summed side by
  // side. Their bits differ, so this must not depend on how a row is cut.
  bool alone;
  // For each tap the positions that have it inside `from`, and the positions that have all of them
  // there; the first of the row has number `position` in these ranges. Null where all lie inside.
  // Not for `alone`, nor for a width below 8.
  const Range* inside;
  Range whole;
  int64_t position;
};

// sums[r][v] = sum over a box of positions of  rows[r] * vectors[v], the innermost axis last, added
// to what is there if `add`.
struct ProductSum {
  const float* vectors;
  const float* rows;
  float* sums;
  int64_t row_count, sums_step;
  int64_t counts[4], vector_steps[4], row_steps[4];
  bool add;
};

struct ThinKernels {
  // The most channels that a call takes: its `width` is that, or a power of two from 4 on below it.
  // Also 1, 2 or 3 for gather.
  int64_t max_width;
  void (*gather)(const GatherRow& row, int64_t width);
  void (*sum_products)(const ProductSum& sum, int64_t width);

  // Of the next call for so many channels, a multiple of 4 or less than 4.
  int64_t WidthOf(int64_t channels) const {
    if (channels < 4) return channels;
    int64_t width = max_width;
    while (width > channels) width /= 2;
    return width;
  }
};

// The best set that this processor runs, or null.
const ThinKernels* FindThinKernels();

// Each set by itself; not to be called where the processor lacks its instructions.
namespace thin_avx512 {
extern const ThinKernels kKernels;
}
namespace thin_avx2 {
extern const ThinKernels kKernels;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_THIN_KERNELS_H_
