// How fprop and dgrad of stride 1 are cut (fprop.cuh): how a problem's axes become those
// of the walk, the tiles of a plane and of the output channels, which part of all each block has,
// and what that costs.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_TILING_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_TILING_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/kernels/common/tensor_map.h"
#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_params.h"
#include "cuda/kernels/implicit_gemm/warpgroup/image.h"
#include "ffi/integers.h"

namespace jax_convgrad {

// Whether each position reads only its own along an axis, so that it may as well be of images.
inline bool FpropAxisIsFree(const ImplicitGemmProblem& p, size_t axis) {
  return p.kernel[axis] == 1 && p.padding_low[axis] == 0 && p.in[axis] == p.out[axis];
}

// Makes images, or what lies between them and `axis` and is of size 1, positions along the axis.
inline void FpropFoldImages(ImplicitGemmProblem* p, size_t axis) {
  p->in[axis] *= p->batch;
  p->out[axis] *= p->batch;
  p->dilation[axis] = 1;
  p->batch = 1;
}

// A problem whose axes are those of the walk.
struct FpropView {
  ImplicitGemmProblem problem;
  bool rows;  // planes are single rows
};

// The ways to walk. Through planes along z, or along the images if these do not share planes. Or
// through rows along y; if rows are not shared either, along the images, and then only so. `p` is
// an fprop.
inline std::vector<FpropView> FpropViews(const ImplicitGemmProblem& p) {
  FpropView planes{p, false};
  if (!FpropAxisIsFree(p, 0)) return {planes};
  FpropFoldImages(&planes.problem, 0);
  FpropView rows{p, true};
  ImplicitGemmProblem& q = rows.problem;
  q.batch = p.batch * p.in[0];
  for (ImplicitGemmProblem::PerAxis* of : {&q.in, &q.kernel, &q.out, &q.dilation}) {
    (*of)[0] = (*of)[1];
    (*of)[1] = 1;
  }
  q.padding_low = {p.padding_low[1], 0, p.padding_low[2]};
  if (!FpropAxisIsFree(q, 0)) return {planes, rows};
  FpropFoldImages(&q, 0);
  return {rows};
}

// A tile of warpgroups' parts.
struct FpropTile {
  FpropPart part;
  int64_t along_x, along_y;

  int64_t rows() const { return along_y * part.rows; }
  int64_t columns() const { return along_x * part.columns; }
  int64_t warpgroups() const { return along_x * along_y; }
};

// The tiles of 1 to 4 warpgroups; of as many, those with the longest rows first.
inline std::vector<FpropTile> FpropTiles(bool rows) {
  constexpr FpropPart kSquare{8, 8, 1, 2, 0}, kRow{1, 64, 1, 0, 16};
  std::vector<FpropTile> tiles;
  for (int64_t y = 1; y <= kFpropMaxWarpgroups; ++y) {
    for (int64_t x = 1; x * y <= kFpropMaxWarpgroups; ++x) {
      if (!rows) tiles.push_back({kSquare, x, y});
      if (!rows || y == 1) tiles.push_back({kRow, x, y});
    }
  }
  return tiles;
}

inline bool FpropIsOfFloats(const ImplicitGemmProblem& p) { return p.type == GemmType::kTf32; }
inline int64_t FpropElementBytes(const ImplicitGemmProblem& p) {
  return FpropIsOfFloats(p) ? 4 : kGemmElementBytes;
}

// The depth of products, by the image's channels.
inline int64_t FpropDepth(const ImplicitGemmProblem& p) {
  if (FpropIsOfFloats(p)) return p.in_channels <= 8 ? 8 : GemmLine(p.in_channels);
  return RoundUp(p.in_channels, int64_t{16});
}

// The channels of a line in shared memory, at most 128 bytes, and the lines of a pixel.
inline int64_t FpropLine(const ImplicitGemmProblem& p) {
  return FpropIsOfFloats(p) ? std::min<int64_t>(FpropDepth(p), 32) : GemmLine(p.in_channels);
}
inline int64_t FpropHalves(const ImplicitGemmProblem& p) {
  return CeilDivide(FpropDepth(p), FpropLine(p));
}

// The output channels of a block and the taps of the walk that a product has. There is one, or all.
struct FpropColumns {
  int64_t columns, taps;

  int64_t product() const { return taps * columns; }
};

// The most columns with which there is one for all taps of the walk; none if 0. Of floats there are
// fewer, since more taps of more channels do not fit into shared memory.
inline int64_t FpropMostColumns(const ImplicitGemmProblem& p) {
  const int64_t taps = p.kernel[0];
  if (taps == 3) return 32;
  if (FpropIsOfFloats(p)) {
    const int64_t depth = FpropDepth(p);
    return (taps == 5 || taps == 7) && (depth == 16 || depth == 32) ? 16 : 0;
  }
  return taps == 5 ? 32 : taps == 7 ? 16 : 0;
}

// The choices for a problem whose axes are those of the walk, those of the most columns first.
inline std::vector<FpropColumns> FpropColumnsOf(const ImplicitGemmProblem& p) {
  std::vector<FpropColumns> all;
  for (int64_t columns = GemmLine(p.out_channels); columns >= 16; columns /= 2) {
    all.push_back({columns, 1});
    if (columns <= FpropMostColumns(p)) all.push_back({columns, p.kernel[0]});
  }
  return all;
}

// The planes that a step reads from the ring.
inline int64_t FpropHeld(const ImplicitGemmProblem& p, const FpropColumns& of) {
  return of.taps > 1 ? 1 : p.kernel[0];
}

// Whether a device with enough memory has a plan for an fprop of 16-bit elements: a ring has slots
// for all planes that a step reads and one more; and what a tile of 8x8 positions reads of a plane,
// unless that is one row, is one box. A tile that is a row reads too much where that is not so.
inline bool FpropIsWithinLimits(const ImplicitGemmProblem& problem) {
  const std::vector<FpropView> views = FpropViews(problem);
  return std::any_of(views.begin(), views.end(), [](const FpropView& view) {
    const ImplicitGemmProblem& p = view.problem;
    const int64_t reach_y = (p.kernel[1] - 1) * p.dilation[1];
    const int64_t reach_x = (p.kernel[2] - 1) * p.dilation[2];
    return p.kernel[0] < kFpropMaxStages &&
           (reach_y == 0 || 8 + std::max(reach_y, reach_x) <= kTensorMaxBox);
  });
}

// Cycles of a multiprocessor, as on an H200: what a step takes a warpgroup beside its products,
// which the products of others hide; from the begin of a copy to its end; to begin a block's first
// step. Bytes that shared memory, the second cache and memory give it in a cycle. Only ratios
// matter here.
constexpr double kFpropStepCycles = 500, kFpropCopyCycles = 1500, kFpropStartCycles = 3000;
constexpr double kFpropSharedBytes = 128, kFpropCacheBytes = 44, kFpropMemoryBytes = 14;
// Bytes of floats that are rounded in a cycle; cycles in which each thread reads some of the
// weights, and how many bytes.
constexpr double kFpropRoundedBytes = 40, kFpropWeightsCycles = 900, kFpropWeightsBytes = 128;

// What a step takes; what it takes more to begin one that does not follow the last, and of this
// what a whole strip does not need.
struct FpropCycles {
  double step, begin, ends;
};

// Of the steps of all strips, which part each block has: equal ones, or whole strips and equal
// parts of them if then the last block is done earlier. Sets the blocks and returns the cycles.
inline double FpropShareSteps(int64_t multiprocessors, const FpropCycles& of, int64_t column_tiles,
                              GemmWalk* walk) {
  const int64_t most = std::max<int64_t>(1, multiprocessors / column_tiles);
  const int64_t strips = walk->steps / walk->length;
  const int64_t whole =
      strips >= most ? CeilDivide(strips, CeilDivide(strips, most)) : most / strips * strips;
  double best = 0;
  int64_t chosen = 0;
  for (const int64_t at_most : {most, whole}) {
    const int64_t blocks = std::min<int64_t>(at_most, walk->steps);
    const int64_t steps = CeilDivide(walk->steps, blocks);
    // Parts that are not whole strips, or whole parts of one, begin and end within strips.
    const bool even =
        walk->steps % blocks == 0 && (steps % walk->length == 0 || walk->length % steps == 0);
    const int64_t begun = CeilDivide(steps, walk->length) + (even ? 0 : 1);
    const int64_t ends = even ? steps / walk->length : begun - 1;
    const double cycles = static_cast<double>(steps) * of.step +
                          static_cast<double>(begun) * of.begin -
                          static_cast<double>(ends) * of.ends;
    if (chosen != 0 && cycles >= best) continue;
    chosen = blocks;
    best = cycles;
  }
  walk->blocks = static_cast<int>(chosen);
  return best * static_cast<double>(CeilDivide(chosen * column_tiles, multiprocessors));
}

// Shares the steps, and returns the cycles of all. `params` have all the rest.
inline double FpropCost(const ImplicitGemmProblem& p, const FpropTile& tile, const FpropColumns& of,
                        FpropParams* params) {
  GemmWalk& walk = params->walk;
  const double planes_tiles = static_cast<double>(walk.tiles_y) * walk.tiles_x;
  // A tile's warpgroups take turns at the tensor cores, those without positions left out. A product
  // takes as long as its columns, or as its operands are read from shared memory, 128 bytes in a
  // cycle; what is copied there, and from there, is in the way.
  const double product_columns = static_cast<double>(of.product());
  const double parts = static_cast<double>(CeilDivide(p.out[1], tile.part.rows) *
                                           CeilDivide(p.out[2], tile.part.columns)) /
                       planes_tiles;
  const int64_t element = FpropElementBytes(p);
  const bool floats = FpropIsOfFloats(p);
  const double products =
      parts * static_cast<double>(params->taps / of.taps * (FpropDepth(p) * element / 32));
  const double positions = static_cast<double>(p.out[1] * p.out[2]) / planes_tiles;
  const double loaded = static_cast<double>(params->slot_bytes);
  const double stored = positions * static_cast<double>(of.columns * element);
  const double bytes = positions * static_cast<double>(element * (p.in_channels + p.out_channels)) /
                       params->column_tiles;
  // What is loaded is read and written again to be rounded; results of floats are not there.
  const double passed = floats ? 3 * loaded + stored : loaded + 2 * stored;
  const double plane_cycles =
      std::max(products * product_columns / 2,
               products * (16 + product_columns / 4) + passed / kFpropSharedBytes);
  const double rounding = floats ? loaded / kFpropRoundedBytes : 0;
  FpropCycles cycles;
  cycles.step = std::max(
      {plane_cycles + kFpropStepCycles / static_cast<double>(tile.warpgroups()),
       (loaded + stored) / kFpropCacheBytes, bytes / kFpropMemoryBytes, rounding,
       (kFpropCopyCycles + rounding) / static_cast<double>(params->stages - FpropHeld(p, of))});
  // The planes that are read before the first step that is stored, unless they are outside.
  const double extra =
      std::max({of.taps > 1 ? plane_cycles : 0, loaded / kFpropCacheBytes, rounding});
  const FpropPlanes planes = FpropPlanesOf(*params, {0, 0, 0, 0, walk.length}, of.taps > 1);
  const int outside = walk.length + params->kernel[0] - 1 - (planes.end - planes.begin);
  cycles.begin = kFpropCopyCycles + rounding + (params->kernel[0] - 1) * extra;
  cycles.ends = outside * extra;
  const double weights =
      floats ? kFpropWeightsCycles *
                   std::ceil(static_cast<double>(int64_t{params->taps} * params->tap_bytes) /
                             (128 * static_cast<double>(tile.warpgroups()) * kFpropWeightsBytes))
             : 0;
  return kFpropStartCycles + weights +
         FpropShareSteps(p.device.multiprocessors, cycles, params->column_tiles, &walk);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_TILING_H_
