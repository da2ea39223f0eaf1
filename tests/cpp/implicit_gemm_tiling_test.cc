// The tilings of the weight gradient, on the host: blocks walk through their steps as the kernel
// does, over random problems. Each position meets each of its taps once, in planes that are in the
// rings then; no block waits for what does not come; and each element of the result is stored once.
//
//   implicit_gemm_tiling_test SEED COUNT

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "check.h"
#include "conv_fuzz.h"
#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_params.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_search.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_tiling.h"

namespace jax_convgrad {
namespace {

using fuzz::Between;
using fuzz::Random;

using Place = std::array<int64_t, 4>;  // z, y, x, image

// Of planes in shared memory, each with the place of its first pixel.
class Ring {
 public:
  explicit Ring(int slots) : planes_(static_cast<size_t>(slots)) {}

  bool Load(const Place& first) {
    Plane& plane = planes_[next_++ % planes_.size()];
    if (plane.is_there) --next_;
    const bool free = !plane.is_there;
    if (free) plane = {true, first};
    return free;
  }
  void Release() { planes_[oldest_++ % planes_.size()].is_there = false; }
  bool Has(size_t number) const { return number < next_ && number >= oldest_; }
  const Place& At(size_t number) const { return planes_[number % planes_.size()].first; }
  int SlotOf(size_t number) const { return static_cast<int>(number % planes_.size()); }
  bool IsEmpty() const { return next_ == oldest_; }

 private:
  struct Plane {
    bool is_there = false;
    Place first{};
  };
  std::vector<Plane> planes_;
  size_t next_ = 0, oldest_ = 0;  // planes are numbered in the order in which they come
};

class TilingCheck {
 public:
  TilingCheck(const ImplicitGemmProblem& p, const WgradTiling& t)
      : p_(p),
        t_(t),
        taps_(GemmVolume(p.kernel)),
        in_{t.view.z.in, t.view.y.in, t.view.x.in, t.view.image.in},
        out_{t.view.z.out, t.view.y.out, t.view.x.out, t.view.image.out},
        positions_(out_[0] * out_[1] * out_[2] * out_[3]),
        met_(static_cast<size_t>(taps_ * positions_)) {
    const WgradView::Axis* const axes[] = {&t.view.z, &t.view.y, &t.view.x};
    for (size_t axis = 0; axis < 3; ++axis) {
      padding_[axis] = static_cast<int>(axes[axis]->padding);
      dilation_[axis] = static_cast<int>(axes[axis]->dilation);
    }
  }

  bool IsRight() {
    HOLDS(IsWithinLimits());
    HOLDS(GemmWalkBegin(t_.walk, 0) == 0);
    HOLDS(GemmWalkBegin(t_.walk, t_.walk.blocks) == t_.walk.steps);
    for (int part = 0; part < t_.walk.blocks; ++part) {
      for (int group = 0; group < t_.groups; ++group) HOLDS(BlockIsRight(part, group * t_.sets));
    }
    return MeetsEachTapOnce() && StoresEachElementOnce();
  }

 private:
  struct Load {
    bool of_y;
    Place first;
  };

  bool IsWithinLimits() const {
    const WgradInstance& instance = kWgradInstances[t_.instance];
    const WgradRings& r = t_.rings;
    const GemmWalk& w = t_.walk;
    HOLDS(t_.threads() <= WgradMaxWarpgroups(instance) * 128 + 32);
    HOLDS(t_.splits % t_.row_splits == 0);
    HOLDS(r.x_slots >= 2 && r.y_slots >= r.planes + 1);
    HOLDS(r.x_box_bytes <= r.x_slot_bytes && r.y_box_bytes <= r.y_slot_bytes);
    HOLDS(std::max({r.x_pitch, r.y_pitch, r.y_rows, w.rows}) <= kTensorMaxBox);
    HOLDS(t_.barrier_offset % 8 == 0);
    HOLDS(t_.barrier_offset + 16 * (r.x_slots + r.y_slots) <= t_.shared_bytes);
    HOLDS(t_.shared_bytes <= p_.device.block_shared_bytes);
    const int64_t blocks = int64_t{t_.groups} * w.blocks;
    HOLDS(blocks <= std::max<int64_t>(p_.device.multiprocessors, t_.groups));
    HOLDS(w.blocks * wgrad_tiling::PartBytes(t_) <= p_.workspace_limit);
    return true;
  }

  // What the block's thread that loads does, as LoadWgrad.
  std::vector<Load> LoadsOf(int step, int end, int first_plane) const {
    std::vector<Load> loads;
    while (step < end) {
      const GemmPlace at = WgradPlaceOf(t_.walk, t_.first, dilation_[0], step, end);
      const int row = at.y + padding_[1] - (t_.taps.kernel[1] - 1) * dilation_[1];
      for (int i = 1 - t_.rings.planes; i < at.steps; ++i) {
        const int z = at.z + i * dilation_[0];
        if (i >= 0) loads.push_back({false, {z, at.y, at.x - padding_[2], at.image}});
        const int of_y = z + padding_[0] - first_plane * dilation_[0];
        loads.push_back({true, {of_y, row, at.x, at.image}});
      }
      step += at.steps;
    }
    return loads;
  }

  // The steps of a block, as MultiplyWgrad.
  bool BlockIsRight(int part, int first_set) {
    const int first_plane = WgradFirstPlane(t_.taps, t_.rings, first_set);
    HOLDS(first_plane >= 0);
    int step = GemmWalkBegin(t_.walk, part);
    const int end = GemmWalkBegin(t_.walk, part + 1);
    const std::vector<Load> loads = LoadsOf(step, end, first_plane);
    Ring x(t_.rings.x_slots), y(t_.rings.y_slots);
    size_t loaded = 0;
    // All that there is room for.
    const auto load = [&] {
      while (loaded < loads.size() && (loads[loaded].of_y ? y : x).Load(loads[loaded].first)) {
        ++loaded;
      }
    };
    size_t of_x = 0, newest = 0;  // numbers of planes
    while (step < end) {
      const int steps = GemmPlaceOf(t_.walk, step, end).steps;
      HOLDS(steps > 0);
      for (int i = 1; i < t_.rings.planes; ++i) {
        load();
        HOLDS(y.Has(newest++));
      }
      for (int i = 0; i < steps; ++i, ++of_x, ++newest) {
        load();
        HOLDS(x.Has(of_x) && y.Has(newest));
        for (int set = first_set; set < first_set + t_.sets; ++set) {
          for (int index = 0; index < Units(); ++index) {
            const WgradUnit unit = WgradUnitOf(t_.taps, set, index);
            HOLDS(UnitIsRight(unit, first_plane, x, of_x, y, newest));
          }
        }
        x.Release();
        y.Release();
      }
      for (int i = 1; i < t_.rings.planes; ++i) y.Release();
      step += steps;
    }
    HOLDS(loaded == loads.size() && x.IsEmpty() && y.IsEmpty());
    return true;
  }

  int Units() const { return t_.taps.set_units + (t_.taps.extra_pixels > 0 ? 1 : 0); }

  // A unit's products of one step, by all warpgroups that share them.
  bool UnitIsRight(const WgradUnit& unit, int first_plane, const Ring& x, size_t of_x,
                   const Ring& y, size_t newest) {
    const WgradOffsets o = WgradOffsetsOf(t_.taps, dilation_, t_.rings, unit, first_plane);
    HOLDS(o.back >= 0 && o.back < t_.rings.planes);
    const size_t of_y = newest - static_cast<size_t>(o.back);
    HOLDS(y.Has(of_y));
    HOLDS(std::min({o.y_at, o.y_step, o.x_at, o.x_step}) >= 0);
    // Operands have 14 bits for the distance, in pieces of 16 bytes.
    HOLDS(o.y_step * t_.out_line / 8 < 1 << 14 && o.x_step * t_.in_line / 8 < 1 << 14);
    const int64_t x_slot = int64_t{x.SlotOf(of_x)} * t_.rings.x_slot_bytes;
    const int64_t y_slot = int64_t{t_.rings.x_slots} * t_.rings.x_slot_bytes +
                           int64_t{y.SlotOf(of_y)} * t_.rings.y_slot_bytes;
    const int column_splits = t_.splits / t_.row_splits;
    for (int split = 0; split < t_.splits; ++split) {
      for (int row = split % t_.row_splits; row < t_.walk.rows; row += t_.row_splits) {
        for (int column = split / t_.row_splits; column < t_.walk.columns / kWgradDepth;
             column += column_splits) {
          for (int shift = 0; shift < t_.taps.shifts; ++shift) {
            for (int pixel = 0; pixel < unit.pixels; ++pixel) {
              const int along = column * kWgradDepth;
              const int y_at = o.y_at + shift * o.y_step + row * t_.rings.y_pitch + along;
              const int x_at = o.x_at + pixel * o.x_step + row * t_.rings.x_pitch + along;
              // Also what is multiplied for no tap is read.
              HOLDS(y_slot + (y_at + kWgradDepth) * t_.out_line * 2 <= t_.barrier_offset);
              HOLDS(x_slot + (x_at + kWgradDepth) * t_.in_line * 2 <= t_.barrier_offset);
              const int tap = WgradTapOf(t_.taps, unit, shift, pixel);
              for (int k = 0; tap >= 0 && k < kWgradDepth; ++k) {
                HOLDS(ProductIsRight(tap, x.At(of_x), x_at + k, y.At(of_y), y_at + k));
              }
            }
          }
        }
      }
    }
    return true;
  }

  // The product of a pixel of a plane of x and one of y. If both exist the tap joins them.
  bool ProductIsRight(int tap, const Place& of_x, int x_pixel, const Place& of_y, int y_pixel) {
    const WgradRings& r = t_.rings;
    const int x_row = x_pixel / r.x_pitch, y_row = y_pixel / r.y_pitch;
    HOLDS(x_row < t_.walk.rows && y_row < r.y_rows);
    const Place x{of_x[0], of_x[1] + x_row, of_x[2] + x_pixel % r.x_pitch, of_x[3]};
    const Place y{of_y[0], of_y[1] + y_row, of_y[2] + y_pixel % r.y_pitch, of_y[3]};
    if (!IsIn(x, in_) || !IsIn(y, out_)) return true;
    HOLDS(ReadBy(tap, y) == x);
    const int64_t position = ((y[3] * out_[0] + y[0]) * out_[1] + y[1]) * out_[2] + y[2];
    ++met_[static_cast<size_t>(tap * positions_ + position)];
    return true;
  }

  static bool IsIn(const Place& place, const Place& sizes) {
    for (size_t axis = 0; axis < 4; ++axis) {
      if (place[axis] < 0 || place[axis] >= sizes[axis]) return false;
    }
    return true;
  }

  // The place of x that a tap reads for one of y.
  Place ReadBy(int64_t tap, const Place& y) const {
    const int* const kernel = t_.taps.kernel;
    const int64_t taps[] = {tap / (kernel[1] * kernel[2]), tap / kernel[2] % kernel[1],
                            tap % kernel[2]};
    Place x = y;
    for (size_t axis = 0; axis < 3; ++axis)
      x[axis] += taps[axis] * dilation_[axis] - padding_[axis];
    return x;
  }

  bool MeetsEachTapOnce() const {
    for (int64_t i = 0; i < positions_; ++i) {
      const Place y{i / (out_[2] * out_[1]) % out_[0], i / out_[2] % out_[1], i % out_[2],
                    i / (out_[0] * out_[1] * out_[2])};
      for (int64_t tap = 0; tap < taps_; ++tap) {
        HOLDS(met_[static_cast<size_t>(tap * positions_ + i)] ==
              (IsIn(ReadBy(tap, y), in_) ? 1 : 0));
      }
    }
    return true;
  }

  // The place of a thread's sums, as the tensor cores have them, is that of their packs.
  bool StoresEachElementOnce() const {
    const WgradInstance& instance = kWgradInstances[t_.instance];
    const int sums = WgradSums(instance), of_unit = instance.columns / 2;
    GemmWgradSumParams packs{};
    packs.set_packs = sums / kWgradPack;
    packs.unit_packs = of_unit / kWgradPack;
    packs.taps = t_.taps;
    packs.in_line = t_.in_line;
    packs.out_line = t_.out_line;
    const int sets = t_.groups * t_.sets;
    HOLDS(wgrad_tiling::PartPacks(t_) == sets * packs.set_packs * 128);
    std::vector<int> stored(static_cast<size_t>(taps_ * p_.in_channels * p_.out_channels));
    for (int number = 0; number < sets * 128 * sums; ++number) {
      const int set = number / (128 * sums), thread = number / sums % 128, sum = number % sums;
      const int index = std::min(sum / of_unit, instance.units), i = sum - index * of_unit;
      const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
      const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      const WgradUnit unit = WgradUnitOf(t_.taps, set, index);
      HOLDS(column < unit.pixels * t_.in_line);
      const int tap = WgradTapOf(t_.taps, unit, row / t_.out_line, column / t_.in_line);
      const int output = row % t_.out_line, input = column % t_.in_line, of_pack = sum % kWgradPack;
      const WgradPackPlace place =
          WgradPackPlaceOf(packs, (set * packs.set_packs + sum / kWgradPack) * 128 + thread);
      HOLDS(place.tap == tap);
      HOLDS(place.input + of_pack % 2 == input && place.output + of_pack / 2 * 8 == output);
      if (tap < 0 || output >= p_.out_channels || input >= p_.in_channels) continue;
      ++stored[static_cast<size_t>((tap * p_.in_channels + input) * p_.out_channels + output)];
    }
    for (const int times : stored) HOLDS(times == 1);
    return true;
  }

  const ImplicitGemmProblem& p_;
  const WgradTiling& t_;
  const int64_t taps_;
  const Place in_, out_;
  const int64_t positions_;
  int padding_[3], dilation_[3];
  std::vector<int> met_;  // how often, by tap and position
};

ImplicitGemmProblem RandomProblem(Random* random) {
  ImplicitGemmProblem p;
  p.kind = GemmKind::kWgrad;
  const int64_t axes = Between(random, 1, 3);
  p.batch = Between(random, 1, axes == 1 ? 9 : 3);
  p.in_channels = 8 * Between(random, 1, 8);
  p.out_channels = 8 * Between(random, 1, 8);
  const int64_t most_kernel = axes == 3 ? 4 : 7, most = axes == 3 ? 12 : axes == 2 ? 24 : 120;
  for (size_t axis = static_cast<size_t>(3 - axes); axis < 3; ++axis) {
    p.kernel[axis] = Between(random, 1, Between(random, 0, 2) ? 4 : most_kernel);
    p.dilation[axis] = Between(random, 0, 2) ? 1 : Between(random, 1, 4);
    const int64_t window = (p.kernel[axis] - 1) * p.dilation[axis] + 1;
    const auto padding = [&] {
      return Between(random, 0, 1) ? window / 2 : Between(random, -2, window);
    };
    p.padding_low[axis] = padding();
    const int64_t high = padding();
    const int64_t least = std::max<int64_t>(1, window - p.padding_low[axis] - high);
    p.in[axis] = std::max(least, Between(random, 1, axis == 2 && axes > 1 ? 40 : most));
    p.out[axis] = p.in[axis] + p.padding_low[axis] + high - window + 1;
  }
  p.workspace_limit = Between(random, 0, 3) ? int64_t{1} << 30 : Between(random, 1, 400) * 10000;
  p.device = {Between(random, 1, 30), 228 * 1024, 227 * 1024, true};
  if (Between(random, 0, 1)) p.device.block_shared_bytes = Between(random, 40, 220) * 1024;
  return p;
}

// Those that are offered, and a few of those that are not.
std::vector<WgradTiling> TilingsOf(const ImplicitGemmProblem& p, Random* random) {
  std::vector<WgradTiling> tilings = WgradTilings(p, GemmWanted::kFastest);
  WgradTiling with;
  with.in_line = static_cast<int>(GemmLine(p.in_channels));
  with.out_line = static_cast<int>(GemmLine(p.out_channels));
  for (const WgradView& view : wgrad_tiling::ViewsOf(p)) {
    with.view = view;
    for (with.instance = 0; with.instance < kWgradInstanceCount; ++with.instance) {
      for (const WgradTaps& taps : wgrad_tiling::TapsOf(view, kWgradInstances[with.instance],
                                                        with.in_line, with.out_line)) {
        with.taps = taps;
        if (Between(random, 0, 2) != 0) continue;
        const std::vector<WgradTiling> best = wgrad_tiling::BestOf(p, with);
        if (best.empty()) continue;
        const int64_t last = static_cast<int64_t>(best.size()) - 1;
        tilings.push_back(best[static_cast<size_t>(Between(random, 0, last))]);
      }
    }
  }
  return tilings;
}

int64_t checked = 0;

bool TilingsAreRight(Random* random) {
  const ImplicitGemmProblem p = RandomProblem(random);
  for (const WgradTiling& t : TilingsOf(p, random)) {
    ++checked;
    if (TilingCheck(p, t).IsRight()) continue;
    const WgradInstance& i = kWgradInstances[t.instance];
    std::printf("walk %s, %dx%d, %d units of %d columns and %d more, %s, sets %d, splits %d\n",
                t.view.walk, t.walk.rows, t.walk.columns, i.units, i.columns, i.extra_columns,
                t.taps.by_pixels ? "pixels" : "rows", t.sets, t.splits);
    fuzz::Print(p, "tiling");
    return false;
  }
  return true;
}

}  // namespace
}  // namespace jax_convgrad

int main(int argc, char** argv) {
  const int status =
      fuzz::Main(argc, argv, "implicit_gemm_tiling_test", jax_convgrad::TilingsAreRight);
  std::printf("%lld tilings\n", static_cast<long long>(jax_convgrad::checked));
  return status;
}
