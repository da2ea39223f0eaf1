// The walk of fprop and dgrad by warps, on the host: blocks copy and multiply their steps as the
// kernel does, over random problems and all tilings that fit. Blocks share all steps without gaps;
// each position of the result is stored once, and meets each of its taps once, in planes that are
// in the ring then.
//
//   implicit_gemm_walk_test SEED COUNT

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <vector>

#include "check.h"
#include "conv_fuzz.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warp/fprop.cuh"
#include "cuda/kernels/implicit_gemm/warp/fprop_plan.h"

namespace jax_convgrad {
namespace {

using fuzz::Between;
using fuzz::OneOf;
using fuzz::Random;

using Axes = ImplicitGemmProblem::PerAxis;
using Plane = std::array<int, 4>;  // image, z, and its first row and column

// Along an axis, in the view's order: what of a problem the walk has to compute.
struct Axis {
  int64_t image, result, kernel, dilation, stride, padding;
};

int64_t wrapped = 0, checked = 0;  // tilings

class WalkCheck {
 public:
  WalkCheck(const ImplicitGemmProblem& problem, const WarpView& view, const WarpFpropParams& params)
      : gradient_(problem.kind == GemmKind::kDgrad), batch_(view.batch), p_(params) {
    for (size_t i = 0; i < 3; ++i) {
      const WarpAxis& of = view.axes[i];
      axes_[i] = {of.image,  of.result, of.kernel, of.dilation, std::max(of.step, of.phases),
                  of.padding};
    }
  }

  bool IsRight() {
    HOLDS(ReadTaps());
    const GemmWalk& walk = p_.walk;
    HOLDS(walk.blocks >= 1 && walk.blocks <= walk.steps);
    HOLDS(GemmWalkBegin(walk, 0) == 0 && GemmWalkBegin(walk, walk.blocks) == walk.steps);
    int64_t groups = batch_;
    for (const int of_axis : p_.groups) groups *= of_axis;
    stored_.assign(static_cast<size_t>(groups), 0);
    bool reuses = false;
    for (int block = 0; block < walk.blocks; ++block) {
      HOLDS(GemmWalkBegin(walk, block) < GemmWalkBegin(walk, block + 1));
      HOLDS(BlockIsRight(block, &reuses));
    }
    for (const int times : stored_) HOLDS(times == 1);
    wrapped += reuses;
    const auto of_place = [this](const GemmPlace& place) {
      return p_.held + (int64_t{place.steps} * p_.parts + p_.lead - 1) * p_.advance;
    };
    HOLDS((GemmMostOfBlock(walk, of_place) > p_.slots) == reuses);
    return true;
  }

 private:
  // Of a tap: which one it is, the plane among those that its step holds, and its pixel there.
  struct Tap {
    Axes tap;
    int plane, row, column;
  };

  // Takes the tables of taps apart, and checks each tap's pixel and, of a walk of one plane a step,
  // its place among the products. Taps along z are checked where they meet their planes.
  bool ReadTaps() {
    const int64_t all = axes_[0].kernel * axes_[1].kernel * axes_[2].kernel;
    const int phases = p_.phases[0] * p_.phases[1] * p_.phases[2];
    HOLDS(p_.phase_taps[0] == 0 && p_.phase_taps[phases] == all);
    std::vector<int> met(static_cast<size_t>(all));
    // Pixels of a plane by where they lie.
    std::map<int, std::array<int, 2>> pixels;
    for (int row = 0; row < p_.image.rows; ++row) {
      for (int column = 0; column < p_.image.columns; ++column) {
        pixels[WarpPixel(p_.image, row, column)] = {row, column};
      }
    }
    HOLDS(pixels.rbegin()->first + p_.image.pixel_bytes <= p_.slot_bytes);
    taps_.resize(static_cast<size_t>(phases));
    for (int phase = 0; phase < phases; ++phase) {
      const Axes at{phase / (p_.phases[1] * p_.phases[2]), phase / p_.phases[2] % p_.phases[1],
                    phase % p_.phases[2]};
      for (int i = p_.phase_taps[phase]; i < p_.phase_taps[phase + 1]; ++i) {
        const int64_t place = p_.weights.places[i];
        HOLDS(place < all);
        ++met[static_cast<size_t>(place)];
        const auto pixel = pixels.find(p_.taps[i] % p_.slot_bytes);
        HOLDS(pixel != pixels.end());
        const Tap tap{{place / (axes_[1].kernel * axes_[2].kernel),
                       place / axes_[2].kernel % axes_[1].kernel, place % axes_[2].kernel},
                      p_.taps[i] / p_.slot_bytes,
                      pixel->second[0],
                      pixel->second[1]};
        // Of the first group and any other one, at the end of the tile.
        for (const int group : {0, p_.walk.rows - 1}) {
          HOLDS(Reads(1, group * p_.phases[1] + at[1], tap.tap[1],
                      group * p_.steps[1] + p_.first[1] + tap.row));
        }
        for (const int group : {0, p_.walk.columns - 1}) {
          HOLDS(Reads(2, group * p_.phases[2] + at[2], tap.tap[2],
                      group * p_.steps[2] + p_.first[2] + tap.column));
        }
        taps_[static_cast<size_t>(phase)].push_back(tap);
      }
    }
    for (const int times : met) HOLDS(times == 1);
    // The phases of a result's group are all that there are, and no tap is of another.
    for (size_t axis = 0; axis < 3; ++axis) {
      HOLDS(p_.phases[axis] == (gradient_ ? axes_[axis].stride : 1));
      HOLDS(int64_t{p_.groups[axis]} * p_.phases[axis] >= axes_[axis].result);
      HOLDS((int64_t{p_.groups[axis]} - 1) * p_.phases[axis] < axes_[axis].result);
    }
    return true;
  }

  // Whether a position of the result meets one of the image at a tap, by the definition.
  bool Reads(size_t axis, int64_t result, int64_t tap, int64_t image) const {
    const Axis& a = axes_[axis];
    const int64_t of_tap = tap * a.dilation - a.padding;
    return gradient_ ? image * a.stride + of_tap == result : result * a.stride + of_tap == image;
  }

  // As the kernel's loop over steps.
  bool BlockIsRight(int block, bool* reuses) {
    std::vector<Plane> ring(static_cast<size_t>(p_.slots));
    std::deque<WarpFpropStep> pending;
    WarpFpropSteps copied(p_, block);
    int64_t planes = 0;
    const auto copy = [&](unsigned oldest) {
      while (pending.size() < kWarpFpropMaxPending && copied.exists()) {
        const WarpFpropStep step = copied.step(p_);
        if (static_cast<int>(step.planes - oldest) + p_.held > p_.slots) break;
        for (int plane = step.begins ? 0 : p_.held - p_.advance; plane < p_.held; ++plane) {
          ring[static_cast<size_t>((step.slot + plane) % p_.slots)] = PlaneOf(step, plane);
          ++planes;
        }
        pending.push_back(step);
        copied.Next(p_);
      }
    };
    copy(0);
    walked_.clear();
    while (!pending.empty() || copied.exists()) {
      if (pending.empty()) copy(copied.step(p_).planes);
      HOLDS(!pending.empty());
      const WarpFpropStep step = pending.front();
      pending.pop_front();
      copy(step.planes);
      HOLDS(StepIsRight(step, ring));
    }
    *reuses = *reuses || planes > p_.slots;
    return true;
  }

  Plane PlaneOf(const WarpFpropStep& step, int plane) const {
    return {step.image, step.z * p_.steps[0] + p_.first[0] + (step.part + plane) * p_.spacing,
            step.y * p_.steps[1] + p_.first[1], step.x * p_.steps[2] + p_.first[2]};
  }

  bool StepIsRight(const WarpFpropStep& step, const std::vector<Plane>& ring) {
    // What lies there is what the step wants, and of its tile.
    std::vector<Plane> held;
    for (int plane = 0; plane < p_.held; ++plane) {
      held.push_back(ring[static_cast<size_t>((step.slot + plane) % p_.slots)]);
      HOLDS(held.back() == PlaneOf(step, plane));
    }
    if (step.begins) walked_.clear();
    // Steps that follow each other until results are complete: parts, or those of a lead.
    const bool one_plane = p_.parts > 1 || p_.lead > 0;
    if (one_plane) walked_.push_back(held[0][1]);
    if (!step.stores) return true;
    const int z = step.z - p_.lead * p_.next_z;
    HOLDS(z >= 0 && step.image >= 0 && step.image < batch_);
    const size_t window = static_cast<size_t>(p_.parts > 1 ? p_.parts : p_.lead + 1);
    HOLDS(!one_plane || walked_.size() >= window);
    for (size_t phase = 0; phase < taps_.size(); ++phase) {
      const int of_z = static_cast<int>(phase) / (p_.phases[1] * p_.phases[2]);
      const int64_t result = int64_t{z} * p_.phases[0] + of_z;
      for (size_t i = 0; i < taps_[phase].size(); ++i) {
        const Tap& tap = taps_[phase][i];
        int64_t image;
        if (!one_plane) {
          HOLDS(tap.plane < p_.held);
          image = held[static_cast<size_t>(tap.plane)][1];
        } else {
          HOLDS(tap.plane == 0);
          // Parts come in the order of taps. Of those that are multiplied with the same pixels, the
          // first is of the results that are complete with this step, the next of later ones.
          const size_t back =
              p_.parts > 1 ? window - 1 - i / (taps_[phase].size() / window) : i % window;
          image = walked_[walked_.size() - 1 - back];
        }
        HOLDS(Reads(0, result, tap.tap[0], image));
      }
    }
    if (z >= p_.groups[0]) return true;
    for (int y = step.y; y < std::min(step.y + p_.walk.rows, p_.groups[1]); ++y) {
      for (int x = step.x; x < std::min(step.x + p_.walk.columns, p_.groups[2]); ++x) {
        ++stored_[static_cast<size_t>(
            ((int64_t{step.image} * p_.groups[0] + z) * p_.groups[1] + y) * p_.groups[2] + x)];
      }
    }
    return true;
  }

  const bool gradient_;
  const int64_t batch_;
  const WarpFpropParams& p_;
  Axis axes_[3];
  std::vector<std::vector<Tap>> taps_;  // of each phase
  std::vector<int> walked_;             // planes of a strip, one a step
  std::vector<int> stored_;             // how often, by image, z, y and x in groups
};

ImplicitGemmProblem RandomProblem(Random* random) {
  ImplicitGemmProblem p;
  p.kind = static_cast<GemmKind>(Between(random, 0, 1));
  p.type = Between(random, 0, 1) ? GemmType::kTf32 : GemmType::kBF16;
  const int64_t axes = Between(random, 1, 3);
  p.batch = Between(random, 1, axes == 1 ? 12 : 3);
  p.in_channels = 8 * Between(random, 1, 8);
  p.out_channels = 8 * Between(random, 1, 8);
  const bool strided = Between(random, 0, 1);
  for (size_t axis = static_cast<size_t>(3 - axes); axis < 3; ++axis) {
    p.kernel[axis] = Between(random, 0, 1) ? 3 : Between(random, 1, 5);
    p.dilation[axis] = Between(random, 0, 1) ? 1 : Between(random, 2, 4);
    if (strided) p.strides[axis] = Between(random, 1, 3);
    const int64_t window = (p.kernel[axis] - 1) * p.dilation[axis] + 1;
    p.padding_low[axis] = Between(random, -2, window);
    const int64_t high = Between(random, -2, window);
    const int64_t least = std::max<int64_t>(1, window - p.padding_low[axis] - high);
    p.in[axis] = least + Between(random, 0, axis == 0 ? 30 : axes == 1 ? 200 : 20);
    p.out[axis] = (p.in[axis] + p.padding_low[axis] + high - window) / p.strides[axis] + 1;
  }
  p.workspace_limit = OneOf(random, {0, 1, 64}) << 18;
  const int64_t kilobytes = OneOf(random, {164, 100, 228, 48});
  p.device = {Between(random, 1, 40), kilobytes * 1024, (kilobytes - 1) * 1024, false};
  return p;
}

bool WalksAreRight(Random* random) {
  const ImplicitGemmProblem p = RandomProblem(random);
  const bool gradient = p.kind == GemmKind::kDgrad;
  const WarpFpropChannels channels{gradient ? p.out_channels : p.in_channels,
                                   gradient ? p.in_channels : p.out_channels,
                                   p.type == GemmType::kTf32 ? 4 : 2};
  const std::vector<WarpView> views = WarpViews(p);
  const int64_t divisor = OneOf(random, {1, 1, 2, 8});
  for (const WarpFpropChoice& choice :
       WarpFpropChoices(views, channels, p.device, p.workspace_limit, divisor)) {
    if (Between(random, 0, 3) != 0) continue;
    const WarpFpropParams params = WarpFpropParamsOf(choice, channels, p);
    ++checked;
    if (WalkCheck(p, *choice.view, params).IsRight()) continue;
    fuzz::Print(p, WarpFpropName(choice, gradient));
    return false;
  }
  return true;
}

}  // namespace
}  // namespace jax_convgrad

int main(int argc, char** argv) {
  const int status = fuzz::Main(argc, argv, "implicit_gemm_walk_test", jax_convgrad::WalksAreRight);
  std::printf("%lld tilings, of which %lld use slots again\n",
              static_cast<long long>(jax_convgrad::checked),
              static_cast<long long>(jax_convgrad::wrapped));
  return status;
}
