// How fprop and dgrad for warps are cut (fprop.cuh): the forms of the kernel, the tiles of a
// plane, and what a choice of these takes of shared memory and of time.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_TILING_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_TILING_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/warp/fprop_axes.h"
#include "cuda/kernels/implicit_gemm/warp/fprop_params.h"
#include "cuda/kernels/implicit_gemm/warp/planes.h"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_tiling.h"
#include "ffi/integers.h"

namespace jax_convgrad {

// What a kernel is compiled for.
struct WarpFpropForm {
  int64_t fragments, columns, planes;
};

// Those with more planes are of floats: of 16 bits, the warpgroups' kernels do that.
inline std::vector<WarpFpropForm> WarpFpropForms(bool floats) {
  if (floats) return {{4, 16, 1}, {4, 32, 1}, {2, 64, 1}, {4, 16, 3}, {2, 32, 3}};
  return {{4, 16, 1}, {4, 32, 1}, {2, 64, 1}};
}

// A choice, and what follows from it.
struct WarpFpropTiling {
  WarpFpropForm form;
  int64_t threads, blocks;  // of a multiprocessor at once
  int64_t rows, columns;    // of a tile, in groups
  // What a tile reads of a plane.
  int64_t box_rows, box_columns, slot_bytes;
  int64_t slots;
  WarpAxisPlanes planes;
  // Steps of the same groups, each with planes of its own, and the products of each (params.h). Of
  // more than one chunk, the weights are not all in shared memory.
  int64_t parts, products, chunks, chunk_products, chunk_slots;

  int64_t product_weights() const { return form.planes * form.columns * kWarpDepthBytes; }
  int64_t column_tile_bytes() const { return parts * products * product_weights(); }
  bool streams() const { return chunks > 1; }
  // In shared memory.
  int64_t weights_bytes() const {
    return streams() ? chunk_slots * chunk_products * product_weights() : column_tile_bytes();
  }

  int64_t shared_bytes() const {
    return kWarpFpropStepsBytes + weights_bytes() + slots * slot_bytes;
  }
};

struct WarpFpropChannels {
  int64_t image, result;
  int64_t element_bytes;

  int64_t image_bytes() const { return image * element_bytes; }
  int64_t units() const { return CeilDivide(image_bytes(), int64_t{kWarpDepthBytes}); }
};

inline int64_t WarpFpropTaps(const WarpView& view) {
  return view.axes[0].kernel * view.axes[1].kernel * view.axes[2].kernel;
}

// Whether a form multiplies the taps of this view.
inline bool WarpFpropFormServes(const WarpView& view, const WarpFpropForm& form) {
  const auto strided = [](const WarpAxis& axis) { return axis.phases > 1; };
  return form.planes == 1 || (form.planes == view.axes[0].kernel && view.axes[0].step == 1 &&
                              std::none_of(view.axes.begin(), view.axes.end(), strided));
}

// The first planes in front of a block, and as many steps more as are worth their room.
constexpr int64_t kWarpFpropMostAhead = 4;
constexpr int64_t kWarpBlockBytes = 1024;  // of shared memory that a device takes for each block

// Of weights that come in chunks: bytes, about, and how many chunks there is room for.
constexpr int64_t kWarpChunkBytes = 12 * 1024, kWarpChunkSlots = 4;

// Cuts the products of a part into chunks.
inline void SetWarpFpropChunks(bool streams, WarpFpropTiling* t) {
  t->chunks = 1;
  t->chunk_products = t->products;
  if (!streams) return;
  const int64_t most = std::min(kWarpChunkBytes / t->product_weights(), CeilDivide(t->products, 2));
  t->chunks = CeilDivide(t->products, std::max<int64_t>(1, most));
  t->chunk_products = CeilDivide(t->products, t->chunks);
  t->chunks = CeilDivide(t->products, t->chunk_products);
  // A step's planes are begun with its predecessor's first chunk, and wait for those before it.
  t->chunk_slots = std::min(kWarpChunkSlots, t->chunks + 1);
}

// Fills in what follows from the form, the blocks, the tile and the parts; false if that does not
// fit.
inline bool FitWarpFprop(const WarpView& view, const WarpFpropChannels& channels,
                         const GemmDevice& device, bool streams, WarpFpropTiling* t) {
  const WarpAxis &y = view.axes[1], &x = view.axes[2];
  t->planes = WarpAxisPlanesOf(view.axes[0]);
  if (t->form.planes > 1 || t->parts > 1) t->planes.held = t->planes.advance = 1;
  t->box_rows = (t->rows - 1) * y.step + y.span();
  t->box_columns = (t->columns - 1) * x.step + x.span();
  t->products = WarpFpropTaps(view) / t->form.planes / t->parts * channels.units();
  SetWarpFpropChunks(streams, t);
  if (t->streams() != streams) return false;
  const int64_t room =
      std::min(device.block_shared_bytes, device.shared_bytes / t->blocks - kWarpBlockBytes) -
      kWarpFpropStepsBytes - t->weights_bytes();
  // Each factor is below 2^31, the first product below 2^53.
  const int64_t pixels = t->box_rows * RoundUp(t->box_columns, x.step);
  if (room <= 0 || pixels > room / kWarpDepthBytes) return false;
  t->slot_bytes = WarpPlaneBytes(t->box_rows, t->box_columns, x.step, channels.image_bytes());
  const int64_t ahead = streams ? 1 : kWarpFpropMostAhead;
  t->slots = std::min(room / t->slot_bytes, t->planes.held + ahead * t->planes.advance);
  return t->slots >= t->planes.held;
}

// Columns of tiles of up to `positions` groups: powers of two, and equal parts of the result.
inline std::vector<int64_t> WarpFpropColumns(int64_t groups_x, int64_t positions) {
  std::vector<int64_t> all;
  for (int64_t columns = 8; columns <= positions && columns < groups_x; columns *= 2) {
    all.push_back(columns);
  }
  constexpr int64_t kMaxParts = 6;
  for (int64_t parts = 1; parts <= kMaxParts; ++parts) {
    const int64_t columns = CeilDivide(groups_x, parts);
    if (columns <= positions) all.push_back(columns);
  }
  if (all.empty()) all.push_back(std::min(groups_x, positions));
  return all;
}

// Cycles of a multiprocessor, as on an H200. A product of 16 positions, 8 columns and 32 bytes of
// depth; from reading operands to their products; a barrier with what is around it. Only ratios
// matter here.
constexpr double kWarpProductCycles = 1.55, kWarpLatencyCycles = 45, kWarpBarrierCycles = 200;
constexpr double kWarpStagingBytes = 8;    // of weights that are staged in a cycle
constexpr double kWarpPieceCycles = 0.13;  // to begin a copy of 16 bytes
constexpr double kWarpCacheBytes = 32;     // that the second cache gives in a cycle
constexpr double kWarpSchedulers = 4;
constexpr double kWarpArrangeCycles = 5000;  // of the kernel that lays weights out

// Shares the walk's steps among the blocks, and returns the cycles of all.
inline double WarpFpropCost(const WarpView& view, const WarpFpropChannels& channels,
                            const GemmDevice& device, const WarpFpropTiling& t,
                            int64_t column_tiles, GemmWalk* walk) {
  const double blocks = static_cast<double>(t.blocks);
  const double taps = static_cast<double>(WarpFpropTaps(view));
  const double units = taps * static_cast<double>(channels.units());
  // Warps with groups, of which those at the result's end have none.
  const double tiles = static_cast<double>(walk->tiles_y) * walk->tiles_x;
  const double rows = static_cast<double>(t.form.fragments * kWarpFragmentRows);
  const double groups = static_cast<double>(view.axes[1].groups() * view.axes[2].groups()) / tiles;
  const double tile_warps =
      static_cast<double>(CeilDivide(t.rows * t.columns, t.form.fragments * kWarpFragmentRows));
  const double warps = std::min(tile_warps, groups / rows + 0.25);
  const double fragments = static_cast<double>(t.form.fragments);
  const double pairs = static_cast<double>(t.form.columns) / 16;  // reads of weights, of a tap
  const double products = units * fragments * pairs * 2;
  // Of one plane's taps, a pixel is read once for all planes of results.
  const double reads = units * (fragments / static_cast<double>(t.form.planes) + pairs);
  const double converts =
      channels.element_bytes == 4 ? units * fragments * 4 / static_cast<double>(t.form.planes) : 0;
  const double parts = static_cast<double>(t.parts);
  const double loaded = parts * static_cast<double>(t.planes.advance * t.slot_bytes);
  const double streamed = t.streams() ? static_cast<double>(t.column_tile_bytes()) : 0;
  const double phases =
      static_cast<double>(view.axes[0].phases * view.axes[1].phases * view.axes[2].phases);
  const double pixel = static_cast<double>(channels.result * channels.element_bytes) /
                       static_cast<double>(column_tiles);
  const double stored = groups * phases * pixel;
  // Neighboring rows that end within 8 positions meet in the same banks.
  const double conflicts = t.columns < 8 ? 2 : 1;
  const double shared = (warps * reads * 512 * conflicts + loaded + streamed) / kFpropSharedBytes;
  const double issued = warps *
                            (products + reads + converts +
                             units * 6 / static_cast<double>(t.form.planes) + phases * rows) /
                            kWarpSchedulers +
                        (loaded + streamed / 2) / kWarpPieceBytes * kWarpPieceCycles;
  const double tensor = warps * products * kWarpProductCycles;
  // Of one warp alone.
  const double alone = products * kWarpProductCycles * kWarpSchedulers +
                       units / static_cast<double>(t.form.planes) * kWarpLatencyCycles +
                       phases * rows * 2;
  const double plane_step = std::max({tensor, shared, issued, alone / blocks}) * 1.1;
  // What memory gives: each byte of the image once, with what blocks beside each other read twice
  // from the second cache.
  const double image = static_cast<double>(view.batch * view.axes[0].image * view.axes[1].image *
                                           view.axes[2].image * channels.image_bytes()) /
                       walk->steps / static_cast<double>(column_tiles);
  const double bytes = std::max((image + stored) / kFpropMemoryBytes,
                                (loaded + streamed + stored) / kWarpCacheBytes);
  const double ahead =
      static_cast<double>((t.slots - t.planes.held) / t.planes.advance) * blocks / parts;
  const double barriers = parts * static_cast<double>(t.chunks) * kWarpBarrierCycles;
  const double step = std::max(plane_step + barriers / blocks, bytes) +
                      (ahead > 0 ? std::max(0.0, kFpropCopyCycles / ahead - plane_step)
                                 : parts * kFpropCopyCycles / blocks + loaded / kWarpCacheBytes);
  FpropCycles cycles;
  cycles.step = step * blocks;
  const double lead = static_cast<double>(t.form.planes - 1) * plane_step * blocks;
  cycles.begin = lead +
                 static_cast<double>((t.planes.held - t.planes.advance) * t.slot_bytes) * blocks /
                     kWarpCacheBytes +
                 (t.slots >= 2 * t.planes.held ? 0 : kFpropCopyCycles);
  cycles.ends = 0;
  const double weights = t.streams()
                             ? kWarpArrangeCycles
                             : static_cast<double>(t.weights_bytes()) * blocks / kWarpStagingBytes;
  return kFpropStartCycles + weights +
         FpropShareSteps(device.multiprocessors * t.blocks, cycles, column_tiles, walk);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_TILING_H_
