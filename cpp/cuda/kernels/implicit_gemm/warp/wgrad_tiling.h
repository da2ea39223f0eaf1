// How wgrad by warps (wgrad.cuh) may be cut: how a problem's axes become those of the walk,
// which units a block has, how its warps share them, and the tile of a step. Arithmetic of the host
// alone; wgrad_search.h decides.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_TILING_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_TILING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/warp/planes.h"
#include "cuda/kernels/implicit_gemm/warp/wgrad_params.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace warp_wgrad {

// A problem whose axes are those of the walk.
struct View {
  ImplicitGemmProblem problem;
  bool rows;  // planes are single rows
};

// Whether each position reads only its own along an axis, so that it may as well be of images.
inline bool AxisIsFree(const ImplicitGemmProblem& p, size_t axis) {
  return p.kernel[axis] == 1 && p.strides[axis] == 1 && p.padding_low[axis] == 0 &&
         p.in[axis] == p.out[axis];
}

// Makes images, which are next to it, positions along z.
inline void FoldImages(ImplicitGemmProblem* p) {
  p->in[0] *= p->batch;
  p->out[0] *= p->batch;
  p->batch = 1;
}

// A single tap has no dilation, and a single position no stride.
inline ImplicitGemmProblem WithoutNeedless(ImplicitGemmProblem p) {
  for (size_t axis = 0; axis < 3; ++axis) {
    if (p.kernel[axis] == 1) p.dilation[axis] = 1;
    if (p.out[axis] == 1) p.strides[axis] = 1;
  }
  return p;
}

// The ways to walk: through planes along z, or along the images if these do not share planes; or
// through rows along y, or along the images if these do not share rows either.
inline std::vector<View> ViewsOf(const ImplicitGemmProblem& problem) {
  View planes{WithoutNeedless(problem), false};
  const ImplicitGemmProblem p = planes.problem;
  if (!AxisIsFree(p, 0)) return {planes};
  FoldImages(&planes.problem);
  View rows{p, true};
  ImplicitGemmProblem& q = rows.problem;
  q.batch = p.batch * p.in[0];
  for (ImplicitGemmProblem::PerAxis* of :
       {&q.in, &q.kernel, &q.out, &q.strides, &q.padding_low, &q.dilation}) {
    (*of)[0] = (*of)[1];
  }
  q.in[1] = q.kernel[1] = q.out[1] = q.strides[1] = q.dilation[1] = 1;
  q.padding_low[1] = 0;
  if (!AxisIsFree(q, 0)) return {planes, rows};
  FoldImages(&q);
  return {rows};
}

// The numbers of parts, each of another size, that something is cut into.
inline std::vector<WarpWgradCut> CutsOf(int64_t all) {
  std::vector<WarpWgradCut> cuts;
  for (int64_t tiles = 1; tiles <= all; ++tiles) {
    const int64_t each = CeilDivide(all, tiles);
    if (!cuts.empty() && cuts.back().each == each) continue;
    cuts.push_back(
        {static_cast<int>(all), static_cast<int>(each), static_cast<int>(CeilDivide(all, each))});
  }
  return cuts;
}

// Which units a block has.
struct Tile {
  WarpWgradCut taps[3], inputs, outputs;

  int64_t count() const {
    return int64_t{taps[0].tiles} * taps[1].tiles * taps[2].tiles * inputs.tiles * outputs.tiles;
  }
  // Of a block of output channels.
  int64_t units() const {
    return int64_t{taps[0].each} * taps[1].each * taps[2].each * inputs.each;
  }
};

// The tiles that a block may have, the largest first. Rows of taps are not cut while there are
// several planes of them, and columns not while there are several rows: then a block stages fewer
// planes, or rows.
inline std::vector<Tile> TilesOf(const ImplicitGemmProblem& p, int64_t outputs) {
  std::vector<Tile> tiles;
  for (const WarpWgradCut& z : CutsOf(p.kernel[0])) {
    for (const WarpWgradCut& y : CutsOf(p.kernel[1])) {
      if (y.tiles > 1 && z.each > 1) break;
      for (const WarpWgradCut& x : CutsOf(p.kernel[2])) {
        if (x.tiles > 1 && y.each > 1) break;
        for (const WarpWgradCut& in : CutsOf(CeilDivide(p.in_channels, kWarpWgradInputs))) {
          for (const WarpWgradCut& out : CutsOf(outputs)) tiles.push_back({{z, y, x}, in, out});
        }
      }
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const Tile& a, const Tile& b) { return a.count() < b.count(); });
  return tiles;
}

// How a block's warps share its units.
struct Warps {
  int64_t all, output_groups, groups, depth;
};

// All ways that leave a warp no more units than it has sums for, with fewer groups first.
inline std::vector<Warps> WarpsOf(const Tile& tile, int64_t all, int64_t fragments) {
  std::vector<Warps> ways;
  const int64_t units = tile.units();
  const int64_t least = CeilDivide(units, WarpWgradUnits(static_cast<int>(fragments)));
  for (int64_t depth = all; depth >= 1; --depth) {
    const int64_t of_outputs = std::min(all / depth / tile.outputs.each, units);
    if (of_outputs < least) continue;
    if (!ways.empty() && ways.back().output_groups == of_outputs) continue;
    ways.push_back({all, of_outputs, of_outputs * tile.outputs.each, depth});
  }
  return ways;
}

// Sizes of a tile along an axis, at most `most`: those that are wanted, and what makes as many
// tiles of equal parts.
inline std::vector<int64_t> SizesOf(int64_t out, int64_t most) {
  std::vector<int64_t> sizes;
  for (const int64_t wanted : {1,  2,  3,  4,   6,   8,   10,  12,  16,  24,  32,  48,
                               64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024}) {
    if (wanted > most) break;
    sizes.push_back(std::min(wanted, out));
    sizes.push_back(CeilDivide(out, CeilDivide(out, wanted)));
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

// One way to compute a problem.
struct Tiling {
  View view;
  int64_t fragments = 1;
  int64_t warps = 0;
  WarpWgradParams params{};
  int64_t shared_bytes = 0;
  double cycles = 0;

  int64_t blocks() const { return int64_t{params.walk.blocks} * params.result_tiles; }
  // Of a multiprocessor, at once.
  int64_t residents() const { return kWarpWgradMaxThreads / (warps * 32); }
};

// Elements of the result.
inline int64_t ResultCount(const ImplicitGemmProblem& p) {
  return GemmVolume(p.kernel) * p.in_channels * p.out_channels;
}

inline void SetTile(const Tile& tile, const Warps& warps, int64_t fragments, Tiling* t) {
  const ImplicitGemmProblem& p = t->view.problem;
  WarpWgradParams& params = t->params;
  t->fragments = fragments;
  t->warps = warps.all;
  for (size_t axis = 0; axis < 3; ++axis) {
    params.out[axis] = static_cast<int>(p.out[axis]);
    params.strides[axis] = static_cast<int>(p.strides[axis]);
    params.padding[axis] = static_cast<int>(p.padding_low[axis]);
    params.dilation[axis] = static_cast<int>(p.dilation[axis]);
    params.taps[axis] = tile.taps[axis];
  }
  params.inputs = tile.inputs;
  params.outputs = tile.outputs;
  params.in_channels = static_cast<int>(p.in_channels);
  params.out_channels = static_cast<int>(p.out_channels);
  params.result_tiles = static_cast<int>(tile.count());
  params.groups = static_cast<int>(warps.groups);
  params.output_groups = static_cast<int>(warps.output_groups);
  params.depth_warps = static_cast<int>(warps.depth);
  // Steps that follow each other share planes if windows do: those of a phase, or, with a stride,
  // those that are a multiple of the dilation apart.
  const int held = tile.taps[0].each;
  const int64_t stride = p.strides[0], dilation = p.dilation[0];
  params.held = held;
  if (stride == 1) {
    params.advance = 1;
  } else {
    params.advance = stride % dilation == 0
                         ? static_cast<int>(std::min<int64_t>(stride / dilation, held))
                         : held;
  }
}

// Bytes of shared memory that a block may take, so that as many are there at once as there is room
// for their registers.
inline int64_t SharedRoom(const GemmDevice& device, int64_t residents) {
  constexpr int64_t kReserved = 1024;  // of each block
  return std::min(device.block_shared_bytes, device.shared_bytes / residents - kReserved);
}

// The planes that are staged, as many as there is room for, and where everything lies; false if
// there is room for too few.
inline bool SetRings(int64_t element_bytes, int64_t rows, int64_t columns, Tiling* t) {
  const ImplicitGemmProblem& p = t->view.problem;
  WarpWgradParams& params = t->params;
  const int64_t in_bytes = p.in_channels * element_bytes,
                out_bytes = p.out_channels * element_bytes;
  const int64_t x_bytes = std::min(in_bytes, params.inputs.each * kWarpWgradInputs * element_bytes);
  const int64_t y_bytes =
      std::min(out_bytes, params.outputs.each * t->fragments * kWarpWgradOutputs * element_bytes);
  const int64_t x_rows = (rows - 1) * p.strides[1] + (params.taps[1].each - 1) * p.dilation[1] + 1;
  const int64_t x_columns =
      (columns - 1) * p.strides[2] + (params.taps[2].each - 1) * p.dilation[2] + 1;
  const int64_t chunks = CeilDivide(rows * columns, int64_t{kWarpWgradChunk});
  const int64_t room = SharedRoom(p.device, t->residents());
  if (x_rows * x_columns > room) return false;  // and what follows is countable
  const int64_t x_slot = WarpPlaneBytes(x_rows, x_columns, p.strides[2], x_bytes);
  const int64_t y_slot = chunks * kWarpWgradChunk * WarpPixelBytes(y_bytes);

  // Behind the rings lie the tables, at least as long as what is read behind a pixel's channels.
  const int64_t units = int64_t{params.groups} * WarpWgradUnits(static_cast<int>(t->fragments));
  const int64_t tables = chunks * kWarpWgradChunk * 4 +
                         RoundUp(units * int64_t{sizeof(WarpWgradOperand)}, int64_t{16}) +
                         int64_t{sizeof(WarpWgradBlock)};
  const int64_t ahead =
      std::min<int64_t>(kWarpWgradMaxAhead, (room - tables - params.held * x_slot - y_slot) /
                                                (params.advance * x_slot + y_slot));
  if (room - tables < params.held * x_slot + y_slot || ahead < 1) return false;
  params.x_slots = static_cast<int>(params.held + ahead * params.advance);
  params.y_slots = static_cast<int>(1 + ahead);
  params.x_slot_bytes = static_cast<int>(x_slot);
  params.y_slot_bytes = static_cast<int>(y_slot);
  params.y_at = static_cast<int>(params.x_slots * x_slot);
  params.offsets_at = static_cast<int>(params.y_at + params.y_slots * y_slot);
  params.block_at = static_cast<int>(params.offsets_at + chunks * kWarpWgradChunk * 4);
  params.units_at = static_cast<int>(params.block_at + int64_t{sizeof(WarpWgradBlock)});
  // In the end, the sums that half of the warps hand over.
  const int64_t sums = params.depth_warps / 2 * params.groups * 128 *
                       WarpWgradUnits(static_cast<int>(t->fragments)) * t->fragments * 8;
  t->shared_bytes = std::max(params.offsets_at + tables, sums);
  if (t->shared_bytes > room) return false;

  const int in[] = {static_cast<int>(p.in[0]), static_cast<int>(p.in[1]),
                    static_cast<int>(p.in[2])};
  params.x = MakeWarpPlanes(in, in_bytes, x_rows, x_columns, p.strides[2], x_bytes);
  params.y = MakeWarpPlanes(params.out, out_bytes, rows, columns, 1, y_bytes);
  params.positions = static_cast<int>(rows * columns);
  params.chunks = static_cast<int>(chunks);
  return true;
}

// Fills in the steps and how blocks share them; false if the workspace is too small, or there are
// too many to count.
inline bool SetWalk(int64_t rows, int64_t columns, Tiling* t) {
  const ImplicitGemmProblem& p = t->view.problem;
  GemmWalk& walk = t->params.walk;
  const int64_t tiles_y = CeilDivide(p.out[1], rows), tiles_x = CeilDivide(p.out[2], columns);
  const int64_t phases = p.strides[0] == 1 ? std::min(p.dilation[0], p.out[0]) : 1;
  const int64_t length = CeilDivide(p.out[0], phases);
  // Each step has a position, or is the last of a phase that has one.
  const int64_t steps = p.batch * tiles_y * tiles_x * phases * length;
  const int64_t most = p.workspace_limit / (ResultCount(p) * int64_t{sizeof(float)});
  if (steps > kGemmMaxPositions || most < 1) return false;
  const int64_t places = p.device.multiprocessors * t->residents();
  const int64_t parts =
      std::min({std::max<int64_t>(1, places / t->params.result_tiles), most, steps});
  walk.rows = static_cast<int>(rows);
  walk.columns = static_cast<int>(columns);
  walk.tiles_y = static_cast<int>(tiles_y);
  walk.tiles_x = static_cast<int>(tiles_x);
  walk.phases = static_cast<int>(phases);
  walk.length = static_cast<int>(length);
  walk.steps = static_cast<int>(steps);
  // No more than are needed so that none has more steps.
  walk.blocks = static_cast<int>(CeilDivide(steps, CeilDivide(steps, parts)));
  return true;
}

}  // namespace warp_wgrad
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_TILING_H_
