// What the weight gradient's kernel and its plan agree on: which taps each product has, which part
// of the positions each block has, and where these lie in shared memory. Plain arithmetic, for the
// host and the device.
//
// The gradient of a tap is the sum over positions of y of x's pixel, a column of channels, times
// y's gradient, a row of them. A product of the tensor cores has 16 neighboring positions as its
// depth, 64 rows and up to 192 columns. 64 rows are `shifts` pixels of y's gradient, 1, 2 or 4 with
// 64, 32 or 16 channels; the columns are several neighboring pixels of x, as far apart as taps. So
// one product has a tap for each pair of them. A unit is such a block of taps, in one of two ways:
//
//   by rows    the shifts are the rows of y below each other that taps of one column read. Tap
//              (y, x) is of shift y_tap - y and pixel x - x_tap.
//   by pixels  the shifts are `pixel_step` taps apart in one row. Tap x is of the shift s and the
//              pixel x - x_tap + s * pixel_step, and of the least such shift if there are several.
//
// A set is the units of one warpgroup. What a product has beyond the kernel is not stored.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_PARAMS_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_PARAMS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/tensor_map.h"
#include "cuda/kernels/implicit_gemm/walk.h"

namespace jax_convgrad {

constexpr int kWgradRows = 64;   // of a product
constexpr int kWgradDepth = 16;  // positions of a product, neighbors along x

// How taps are shared among units.
struct WgradTaps {
  int kernel[3];     // z, y, x
  int shifts;        // of y's gradient
  int pixels;        // of x, of a unit
  int extra_pixels;  // of the extra unit that each set has; 0: there is none
  bool by_pixels;    // else by rows; extra units are by pixels
  int set_units;     // units of a set, the extra one not counted
};

struct WgradUnit {
  bool exists;  // else its products are not stored
  bool by_pixels;
  int pixels;
  int z, y_tap, x_tap;
  int pixel_step;
};

// Units of one plane of taps, extra ones not counted: below each other, and side by side.
__host__ __device__ inline int WgradUnitsAlongY(const WgradTaps& t) {
  if (t.extra_pixels > 0) return 1;
  return t.by_pixels ? t.kernel[1] : (t.kernel[1] + t.shifts - 1) / t.shifts;
}
__host__ __device__ inline int WgradUnitsAlongX(const WgradTaps& t) {
  return t.by_pixels ? 1 : (t.kernel[2] + t.pixels - 1) / t.pixels;
}

// The sets that have all taps. With extra units a set has all taps of a plane, in one unit by rows
// and the row that is left over.
__host__ __device__ inline int WgradSets(const WgradTaps& t) {
  if (t.extra_pixels > 0) return t.kernel[0];
  const int units = t.kernel[0] * WgradUnitsAlongY(t) * WgradUnitsAlongX(t);
  return (units + t.set_units - 1) / t.set_units;
}

// How many taps apart the shifts of a unit by pixels are, so that all taps of a row are in it.
__host__ __device__ inline int WgradPixelStep(const WgradTaps& t, int pixels) {
  const int left = t.kernel[2] > pixels ? t.kernel[2] - pixels : 0;
  return t.shifts > 1 ? (left + t.shifts - 2) / (t.shifts - 1) : 0;
}

// Unit `index` of a set; the extra one is behind the others.
__host__ __device__ inline WgradUnit WgradUnitOf(const WgradTaps& t, int set, int index) {
  WgradUnit unit;
  const bool extra = index == t.set_units;
  unit.by_pixels = extra || t.by_pixels;
  unit.pixels = extra ? t.extra_pixels : t.pixels;
  int number = extra ? set : set * t.set_units + index;
  const int along_x = extra ? 1 : WgradUnitsAlongX(t), along_y = extra ? 1 : WgradUnitsAlongY(t);
  const int at_x = number % along_x;
  number /= along_x;
  const int at_y = number % along_y;
  unit.z = number / along_y;
  unit.exists = unit.z < t.kernel[0];
  // A warpgroup multiplies what is there also for units beyond the last.
  if (!unit.exists) unit.z = t.kernel[0] - 1;
  if (unit.by_pixels) {
    unit.y_tap = extra ? 0 : t.kernel[1] - 1 - at_y;
    unit.x_tap = t.kernel[2] > unit.pixels ? t.kernel[2] - unit.pixels : 0;
    unit.pixel_step = WgradPixelStep(t, unit.pixels);
  } else {
    unit.y_tap = t.kernel[1] - 1 - at_y * t.shifts;
    unit.x_tap = at_x * unit.pixels;
    unit.pixel_step = 0;
  }
  return unit;
}

// The tap of a unit's shift and pixel, counted along x, y, z; -1 if there is none.
__host__ __device__ inline int WgradTapOf(const WgradTaps& t, const WgradUnit& unit, int shift,
                                          int pixel) {
  const int y = unit.by_pixels ? unit.y_tap : unit.y_tap - shift;
  const int x = unit.x_tap + pixel - (unit.by_pixels ? shift * unit.pixel_step : 0);
  const bool repeated = unit.by_pixels && shift > 0 && pixel >= unit.pixel_step;
  if (!unit.exists || repeated || y < 0 || x < 0 || x >= t.kernel[2]) return -1;
  return (unit.z * t.kernel[1] + y) * t.kernel[2] + x;
}

// Positions are counted as planes and rows of x and pixels of y: in the plane z and the row y of x,
// and at pixel x of y, tap (i, j, k) multiplies x's pixel at
//   (z, y, x + k * dilation - padding)
// by y's at
//   (z + padding - i * dilation, y + padding - j * dilation, x).
// A unit by pixels is at the pixels x + s * pixel_step * dilation of both. What is outside of x or
// y is zero, so positions may be more than there are. Those from `first` on are walked through
// (walk.h), in steps of the dilation along z; the walk's blocks are parts of the sums, and its
// tiles have a multiple of 16 columns.
__host__ __device__ inline GemmPlace WgradPlaceOf(const GemmWalk& walk, const int (&first)[3],
                                                  int dilation_z, int step, int end) {
  const GemmStep of = GemmStepOf(walk, step, end);
  return {of.image, first[0] + of.phase + of.along * dilation_z, first[1] + of.y, first[2] + of.x,
          of.steps};
}

// Shared memory has a ring of planes of x, each of which one step reads, and a ring of planes of
// y's gradient, of which a step reads `planes` that follow each other, as many as the block's units
// have taps along z.
struct WgradRings {
  int planes;
  int x_pitch, y_pitch;  // pixels of a row
  int y_rows;            // rows of a plane of y; x has the tile's
  int x_slots, y_slots;
  int x_slot_bytes, y_slot_bytes;  // multiples of 1024, as swizzled pixels want it
  int x_box_bytes, y_box_bytes;    // that arrive
};

// Where a unit's first products read: pixels from the begin of a plane in shared memory, and from
// one shift or pixel of x to the next. `back` is how many planes of y are newer.
struct WgradOffsets {
  int back;
  int y_at, y_step;
  int x_at, x_step;
};

__host__ __device__ inline WgradOffsets WgradOffsetsOf(const WgradTaps& t, const int (&dilation)[3],
                                                       const WgradRings& rings,
                                                       const WgradUnit& unit, int first_plane) {
  WgradOffsets at;
  at.back = unit.z - first_plane;
  at.y_at = (t.kernel[1] - 1 - unit.y_tap) * dilation[1] * rings.y_pitch;
  at.y_step = unit.by_pixels ? unit.pixel_step * dilation[2] : dilation[1] * rings.y_pitch;
  at.x_at = unit.x_tap * dilation[2];
  at.x_step = dilation[2];
  return at;
}

// A block has `sets` sets of units, and for each of them `splits` warpgroups that share a tile's
// positions. Blocks of one group have the same sets.
struct GemmWgradParams {
  TensorMap x, y;  // y's gradient
  float* partial;  // part, set, pack, thread, sum
  WgradTaps taps;
  int first[3];   // position
  GemmWalk walk;  // its blocks are the parts; columns are a multiple of 16
  WgradRings rings;
  int padding[3], dilation[3];
  int sets, splits;
  int row_splits;         // warpgroups that share rows; the others share columns
  int in_line, out_line;  // channels of a pixel in shared memory: 16, 32 or 64
  int barrier_offset;     // in shared memory
  int part_packs;
};

// The lowest tap along z that the blocks of a group read planes for.
__host__ __device__ inline int WgradFirstPlane(const WgradTaps& t, const WgradRings& rings,
                                               int first_set) {
  const int z = WgradUnitOf(t, first_set, 0).z;
  return z < t.kernel[0] - rings.planes ? z : t.kernel[0] - rings.planes;
}

// A thread's sums are stored in packs: of two neighboring columns of a product, x's channels, and
// of a row, y's channel, and the row 8 below it.
constexpr int kWgradPack = 4;

struct GemmWgradSumParams {
  const float* partial;  // part, set, pack, thread, sum
  void* result;
  int parts;
  int part_packs, set_packs, unit_packs;  // of all threads, of one, and of its units but extra ones
  WgradTaps taps;
  int in_channels, out_channels;
  int in_line, out_line;
  int64_t of_tap, of_input, of_output;  // between elements of the result
};

// What a pack's first sum is of.
struct WgradPackPlace {
  int tap;  // -1: what the pack has is not stored
  int input, output;
};

__host__ __device__ inline WgradPackPlace WgradPackPlaceOf(const GemmWgradSumParams& p, int pack) {
  const int thread = pack % 128, of_all = pack / 128;
  const int set = of_all / p.set_packs, of_set = of_all % p.set_packs;
  // An extra unit may have fewer packs than the others.
  const int index =
      of_set / p.unit_packs < p.taps.set_units ? of_set / p.unit_packs : p.taps.set_units;
  const int row = thread / 32 * 16 + thread % 32 / 4;
  const int column = (of_set - index * p.unit_packs) * 8 + thread % 4 * 2;
  WgradPackPlace place;
  place.tap =
      WgradTapOf(p.taps, WgradUnitOf(p.taps, set, index), row / p.out_line, column / p.in_line);
  place.input = column % p.in_line;
  place.output = row % p.out_line;
  return place;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_PARAMS_H_
