// What a plan of the weight gradient decides: which axis blocks walk along, how taps are shared
// among products, which tile a step has, and how long rings of such tiles a block's shared memory
// has. Arithmetic of the host alone; wgrad_search.h decides.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_TILING_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_TILING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/kernels/common/tensor_map.h"
#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warpgroup/image.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_params.h"
#include "ffi/integers.h"

namespace jax_convgrad {

// The products that there are kernels for: columns of a unit and units of a set, and columns of an
// extra unit.
struct WgradInstance {
  int columns, units, extra_columns;
};
constexpr WgradInstance kWgradInstances[] = {
    {16, 1, 0}, {16, 3, 0}, {32, 1, 0}, {32, 3, 0},  {48, 1, 0},  {48, 3, 0},  {64, 1, 0},
    {64, 3, 0}, {96, 1, 0}, {96, 2, 0}, {96, 1, 64}, {128, 1, 0}, {192, 1, 0},
};
constexpr int kWgradInstanceCount = sizeof(kWgradInstances) / sizeof(kWgradInstances[0]);

// Of a thread.
constexpr int WgradSums(const WgradInstance& i) {
  return (i.columns * i.units + i.extra_columns) / 2;
}
// The warpgroups of a block, at most: the registers of a multiprocessor have room for them and the
// warp that loads. More than four would not wait less.
constexpr int WgradMaxWarpgroups(const WgradInstance& i) { return WgradSums(i) > 64 ? 3 : 4; }

// A problem's arrays as the kernel sees them: an axis may take another's place.
struct WgradView {
  struct Axis {
    int64_t in = 1, out = 1, kernel = 1, padding = 0, dilation = 1;
    int64_t in_step = 0, out_step = 0;  // pixels between neighbors
  };
  Axis image, z, y, x;
  const char* walk = "";  // how blocks walk, for names
};

struct WgradTiling {
  WgradView view;
  int instance = 0;
  WgradTaps taps{};
  int first[3] = {};  // position
  GemmWalk walk{};
  WgradRings rings{};
  int sets = 1, splits = 1, row_splits = 1;  // of a block
  int groups = 1;                            // of blocks
  int in_line = 16, out_line = 16;
  int64_t barrier_offset = 0;  // behind the rings and what is read beyond them
  int64_t shared_bytes = 0;
  double cycles = 0;

  int64_t threads() const { return int64_t{sets} * splits * 128 + 32; }
};

namespace wgrad_tiling {

constexpr int64_t kMaxTaps = 512;
constexpr int64_t kMaxAhead = 8;  // planes that are loaded before their step
constexpr int64_t kBarrierBytes = 8;

inline WgradView::Axis AxisOf(const ImplicitGemmProblem& p, size_t axis) {
  WgradView::Axis a{
      p.in[axis], p.out[axis], p.kernel[axis], p.padding_low[axis], p.dilation[axis], 1, 1};
  if (a.kernel == 1) a.dilation = 1;
  for (size_t inner = axis + 1; inner < 3; ++inner) {
    a.in_step *= p.in[inner];
    a.out_step *= p.out[inner];
  }
  return a;
}

// An axis that is not there.
inline bool IsNeutral(const WgradView::Axis& a) {
  return a.in == 1 && a.out == 1 && a.kernel == 1 && a.padding == 0;
}

// Of arrays without z, blocks may walk along y over rows of several images, in place of tiles of
// one; of those with x alone, tiles are rows of several images.
inline std::vector<WgradView> ViewsOf(const ImplicitGemmProblem& p) {
  const WgradView::Axis z = AxisOf(p, 0), y = AxisOf(p, 1), x = AxisOf(p, 2);
  WgradView::Axis image, none;
  image.in = image.out = p.batch;
  image.in_step = z.in * z.in_step;
  image.out_step = z.out * z.out_step;
  if (!IsNeutral(z)) return {{image, z, y, x, "z"}};
  if (IsNeutral(y)) return {{none, none, image, x, "x"}};
  return {{image, none, y, x, "xy"}, {none, y, image, x, "y"}};
}

// Whether a device with enough memory and workspace has a plan: for the taps, and for boxes of what
// the smallest tile reads of a plane.
inline bool IsWithinLimits(const ImplicitGemmProblem& p) {
  if (GemmVolume(p.kernel) > kMaxTaps) return false;
  const std::vector<WgradView> views = ViewsOf(p);
  return std::any_of(views.begin(), views.end(), [](const WgradView& view) {
    return kWgradDepth + (view.x.kernel - 1) * view.x.dilation <= kTensorMaxBox &&
           1 + (view.y.kernel - 1) * view.y.dilation <= kTensorMaxBox;
  });
}

struct Range {
  int64_t begin, end;
};

// Of all positions along an axis, planes and rows of x, those whose pixels some tap reads.
inline Range RangeOfSource(const WgradView::Axis& a) {
  return {std::max<int64_t>(0, -a.padding),
          std::min(a.in, a.out - a.padding + (a.kernel - 1) * a.dilation)};
}

// Of all positions along x, those at which any product of two pixels of x and y is of a tap.
inline Range RangeOfColumns(const WgradView::Axis& a, const WgradTaps& taps) {
  Range all{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
  const int units = taps.set_units + (taps.extra_pixels > 0 ? 1 : 0);
  for (int set = 0; set < WgradSets(taps); ++set) {
    for (int index = 0; index < units; ++index) {
      const WgradUnit unit = WgradUnitOf(taps, set, index);
      for (int shift = 0; shift < taps.shifts; ++shift) {
        for (int pixel = 0; pixel < unit.pixels; ++pixel) {
          const int tap = WgradTapOf(taps, unit, shift, pixel);
          if (tap < 0) continue;
          const int64_t first = a.padding - tap % taps.kernel[2] * a.dilation;
          const Range of_y{std::max<int64_t>(0, first), std::min(a.out, a.in + first)};
          if (of_y.begin >= of_y.end) continue;
          const int64_t moved = unit.by_pixels ? shift * unit.pixel_step * a.dilation : 0;
          all.begin = std::min(all.begin, of_y.begin - moved);
          all.end = std::max(all.end, of_y.end - moved);
        }
      }
    }
  }
  return all;
}

// All ways to share taps among products of an instance.
inline std::vector<WgradTaps> TapsOf(const WgradView& view, const WgradInstance& instance,
                                     int64_t in_line, int64_t out_line) {
  std::vector<WgradTaps> all;
  WgradTaps t{};
  t.kernel[0] = static_cast<int>(view.z.kernel);
  t.kernel[1] = static_cast<int>(view.y.kernel);
  t.kernel[2] = static_cast<int>(view.x.kernel);
  t.shifts = static_cast<int>(kWgradRows / out_line);
  t.set_units = instance.units;
  if (instance.columns % in_line != 0 || instance.extra_columns % in_line != 0) return all;
  t.pixels = static_cast<int>(instance.columns / in_line);
  t.extra_pixels = static_cast<int>(instance.extra_columns / in_line);
  const auto has_row = [&](int pixels) { return pixels * t.shifts >= t.kernel[2]; };
  if (t.extra_pixels > 0) {
    if (t.shifts > 1 && t.kernel[1] == t.shifts + 1 && t.pixels >= t.kernel[2] &&
        has_row(t.extra_pixels)) {
      all.push_back(t);
    }
    return all;
  }
  all.push_back(t);
  t.by_pixels = true;
  if (t.shifts > 1 && has_row(t.pixels)) all.push_back(t);
  return all;
}

// Bytes behind a plane that products read whose sums are not stored.
inline int64_t BytesBeyond(const WgradTiling& t) {
  const WgradTaps& taps = t.taps;
  const int64_t units_y = WgradUnitsAlongY(taps), units_x = WgradUnitsAlongX(taps);
  const int64_t pixels = std::max<int64_t>(units_x * taps.pixels, taps.extra_pixels);
  const int64_t beyond_x = (pixels - taps.kernel[2]) * t.view.x.dilation;
  int64_t beyond_y = 0;
  if (!taps.by_pixels && taps.extra_pixels == 0) {
    beyond_y = (units_y * taps.shifts - taps.kernel[1]) * t.view.y.dilation * t.rings.y_pitch;
  }
  return std::max<int64_t>({0, beyond_x * t.in_line * 2, beyond_y * t.out_line * 2});
}

// Packs of sums of a part of the steps.
inline int64_t PartPacks(const WgradTiling& t) {
  return int64_t{t.groups} * t.sets * 128 * WgradSums(kWgradInstances[t.instance]) / kWgradPack;
}
inline int64_t PartBytes(const WgradTiling& t) {
  return PartPacks(t) * kWgradPack * static_cast<int64_t>(sizeof(float));
}

// Fills in the strips, and how blocks share them. False if the workspace is too small, or there are
// too many steps to count.
inline bool ShareSteps(const ImplicitGemmProblem& p, const Range (&range)[3], WgradTiling* t) {
  GemmWalk& w = t->walk;
  int64_t steps = 0;
  w.phases = w.length = w.tiles_y = w.tiles_x = 1;
  const bool any = std::all_of(range, range + 3, [](const Range& r) { return r.begin < r.end; });
  if (any) {
    const int64_t depth = range[0].end - range[0].begin;
    const int64_t phases = std::min(t->view.z.dilation, depth);
    const int64_t length = CeilDivide(depth, phases);
    const int64_t tiles_y = CeilDivide(range[1].end - range[1].begin, w.rows);
    const int64_t tiles_x = CeilDivide(range[2].end - range[2].begin, w.columns);
    steps = 1;
    for (const int64_t factor : {tiles_x, tiles_y, phases, length, t->view.image.in}) {
      steps *= factor;  // of numbers that IsCountableGemm has bounded
      if (steps > kGemmMaxPositions) return false;
    }
    for (int axis = 0; axis < 3; ++axis) t->first[axis] = static_cast<int>(range[axis].begin);
    w.phases = static_cast<int>(phases);
    w.length = static_cast<int>(length);
    w.tiles_y = static_cast<int>(tiles_y);
    w.tiles_x = static_cast<int>(tiles_x);
  }
  w.steps = static_cast<int>(steps);
  t->groups = static_cast<int>(CeilDivide(WgradSets(t->taps), t->sets));
  int64_t parts = std::max<int64_t>(1, p.device.multiprocessors / t->groups);
  parts = std::min(parts, p.workspace_limit / PartBytes(*t));
  if (parts < 1) return false;
  // No more of them than are needed so that none has more steps.
  parts = steps == 0 ? 1 : CeilDivide(steps, CeilDivide(steps, parts));
  w.blocks = static_cast<int>(parts);
  return true;
}

// Fills in the rings, as long as the block's shared memory admits; false if it does not.
inline bool FillRings(const ImplicitGemmProblem& p, WgradTiling* t) {
  const WgradView& view = t->view;
  WgradRings& r = t->rings;
  const int dilation[] = {static_cast<int>(view.z.dilation), static_cast<int>(view.y.dilation),
                          static_cast<int>(view.x.dilation)};
  int pixel_halo = 0;
  if (t->taps.by_pixels || t->taps.extra_pixels > 0) {
    const int pixels = t->taps.by_pixels ? t->taps.pixels : t->taps.extra_pixels;
    pixel_halo = (t->taps.shifts - 1) * WgradPixelStep(t->taps, pixels) * dilation[2];
  }
  r.x_pitch = t->walk.columns + (t->taps.kernel[2] - 1) * dilation[2];
  r.y_pitch = t->walk.columns + pixel_halo;
  r.y_rows = t->walk.rows + (t->taps.kernel[1] - 1) * dilation[1];
  if (std::max({r.x_pitch, r.y_pitch, r.y_rows}) > kTensorMaxBox) return false;
  r.x_box_bytes = r.x_pitch * t->walk.rows * t->in_line * 2;
  r.y_box_bytes = r.y_pitch * r.y_rows * t->out_line * 2;
  r.x_slot_bytes = static_cast<int>(RoundUp(int64_t{r.x_box_bytes}, 1024));
  r.y_slot_bytes = static_cast<int>(RoundUp(int64_t{r.y_box_bytes}, 1024));

  const int64_t beyond = BytesBeyond(*t);
  // Two of each slot, and two of the block.
  const int64_t barriers = 2 * kBarrierBytes * (2 * kMaxAhead + 1 + r.planes);
  const int64_t room = p.device.block_shared_bytes - RoundUp(beyond, 16) - barriers;
  const int64_t ahead =
      std::min(kMaxAhead, (room - r.x_slot_bytes - int64_t{r.planes} * r.y_slot_bytes) /
                              (int64_t{r.x_slot_bytes} + r.y_slot_bytes));
  if (ahead < 1) return false;
  r.x_slots = static_cast<int>(1 + ahead);
  r.y_slots = static_cast<int>(r.planes + ahead);
  const int64_t rings =
      int64_t{r.x_slots} * r.x_slot_bytes + int64_t{r.y_slots} * r.y_slot_bytes + beyond;
  // Sums that are to be added take the place of the rings at the end.
  const int64_t set_sums = t->splits > 1 ? 128 * 4 * WgradSums(kWgradInstances[t->instance]) : 0;
  const int64_t sums = int64_t{t->sets} * t->splits * set_sums;
  t->barrier_offset = RoundUp(std::max(rings, sums), 16);
  t->shared_bytes = t->barrier_offset + barriers;
  return t->shared_bytes <= p.device.block_shared_bytes;
}

// As many planes of y as units of a block have taps along z.
inline int PlanesOf(const WgradTaps& taps, int sets) {
  int planes = 1;
  for (int set = 0; set < WgradSets(taps); set += sets) {
    const int last = std::min(set + sets, WgradSets(taps)) - 1;
    const int first_z = WgradUnitOf(taps, set, 0).z;
    planes = std::max(planes, WgradUnitOf(taps, last, taps.set_units - 1).z - first_z + 1);
  }
  return planes;
}

}  // namespace wgrad_tiling

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_TILING_H_
