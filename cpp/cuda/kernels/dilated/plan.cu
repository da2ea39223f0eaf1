#include <algorithm>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <queue>
#include <type_traits>
#include <vector>

#include "cuda/kernels/common/load_kernel.h"
#include "cuda/kernels/dilated/matmul.cuh"
#include "cuda/kernels/dilated/plan.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

// Numbers of elements, and what is added to them, fit an int.
constexpr int64_t kMaxElements = int64_t{1} << 30;

int64_t Volume(const DilatedProblem::PerAxis& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

template <typename Params>
cudaError_t Launch(void (*kernel)(Params), int64_t blocks, int64_t threads, int64_t shared_bytes,
                   cudaStream_t stream, Params params) {
  void* arguments[] = {&params};
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)),
                          dim3(static_cast<unsigned>(threads)), arguments,
                          static_cast<size_t>(shared_bytes), stream);
}

// Appends the steps of `tiles` tiles. False if there are too many to count.
bool Append(int64_t tiles, int64_t steps, int64_t* all_tiles, DilatedParams* p) {
  p->run[p->runs] = {static_cast<int>(*all_tiles), p->steps, static_cast<int>(steps)};
  ++p->runs;
  *all_tiles += tiles;
  const int64_t all_steps = p->steps + tiles * steps;
  if (tiles > kMaxElements || steps > kMaxElements || *all_tiles > kMaxElements ||
      all_steps > kMaxElements) {
    return false;
  }
  p->steps = static_cast<int>(all_steps);
  return true;
}

// The steps of all tiles; false if they cannot be listed.
bool ListSteps(const DilatedProblem& problem, int64_t outer, int64_t depth, int64_t* tiles,
               DilatedDgradParams* p) {
  const int64_t positions = problem.batch * Volume(problem.in);
  const std::vector<DilatedRegion> regions = DilatedRegions(problem);
  if (regions.size() > kMaxDilatedRegions) return false;
  std::copy(regions.begin(), regions.end(), p->region);
  p->regions = static_cast<int>(regions.size());
  p->positions = static_cast<int>(positions);
  p->tap_steps = static_cast<int>(CeilDivide(problem.out_channels, depth));

  const std::vector<DilatedRun> runs = DilatedRuns(regions, positions, outer);
  for (const DilatedRun& run : runs) {
    p->run_taps[p->runs] = run.taps;
    p->run_outer[p->runs] = run.first_tile;
    // A tile that no tap reads is cleared in one step.
    const int64_t steps = std::max<int64_t>(1, int64_t{CountTaps(run.taps)} * p->tap_steps);
    if (!Append(int64_t{run.tiles} * p->inner_tiles, steps, tiles, p)) return false;
  }
  int tap = 0;
  for (int64_t z = 0; z < problem.kernel[0]; ++z) {
    for (int64_t y = 0; y < problem.kernel[1]; ++y) {
      for (int64_t x = 0; x < problem.kernel[2]; ++x, ++tap) {
        const int64_t along[] = {z, y, x};
        int64_t offset = 0;
        for (size_t axis = 0; axis < 3; ++axis) {
          const int64_t moved = problem.padding_low[axis] - along[axis] * problem.dilation[axis];
          offset = offset * problem.out[axis] + moved;
        }
        p->tap_offset[tap] = static_cast<int>(offset);
      }
    }
  }
  return true;
}

bool ListSteps(const DilatedProblem& problem, int64_t outer, int64_t depth, int64_t* tiles,
               DilatedWgradParams* p) {
  p->outer_tiles = static_cast<int>(CeilDivide(problem.out_channels, outer));
  for (const DilatedWindows& windows : DilatedTapWindows(problem)) {
    DilatedTapParams& tap = p->of_run[p->runs];
    tap.tap = windows.tap;
    tap.windows =
        static_cast<int>(problem.batch * windows.size[0] * windows.size[1] * windows.size[2]);
    tap.first_out = static_cast<int>(
        (windows.start_out[0] * problem.out[1] + windows.start_out[1]) * problem.out[2] +
        windows.start_out[2]);
    tap.first_in = static_cast<int>((windows.start_in[0] * problem.in[1] + windows.start_in[1]) *
                                        problem.in[2] +
                                    windows.start_in[2]);
    tap.by_z = Divider(std::max(1, windows.size[0]));
    tap.by_y = Divider(std::max(1, windows.size[1]));
    tap.by_x = Divider(std::max(1, windows.size[2]));
    const int64_t steps = std::max<int64_t>(1, CeilDivide(tap.windows, depth));
    tap.panel = p->panel_floats;
    p->panel_floats += steps * depth * problem.out_channels;
    if (!Append(int64_t{p->outer_tiles} * p->inner_tiles, steps, tiles, p)) return false;
  }
  return true;
}

template <typename Work, typename Tile>
class Plan : public DilatedPlan {
 public:
  using Params = typename Work::Params;

  explicit Plan(const Params& params) : params_(params), prepared_(Prepare()) {}

  int64_t workspace_bytes() const override {
    int64_t floats = params_.streamed ? int64_t{params_.workers} * Tile::kOuter * Tile::kInner : 0;
    if constexpr (kWgrad) floats += params_.panel_floats;
    return 4 * floats;
  }

  cudaError_t Run(const DilatedArrays& arrays, cudaStream_t stream) const override {
    Params params = params_;
    params.x = static_cast<const float*>(arrays.x);
    params.w = static_cast<const float*>(arrays.w);
    params.y = static_cast<const float*>(arrays.y);
    params.result = static_cast<float*>(kWgrad ? arrays.w : arrays.x);
    params.partial = static_cast<float*>(arrays.workspace);
    cudaError_t status = prepared_;
    if (status != cudaSuccess) return status;
    if constexpr (kWgrad) {
      params.panels = params.transposed = params.partial;
      params.partial += params.panel_floats;
      const int64_t steps = params.panel_floats / (Tile::kDepth * params.out_channels);
      const int64_t parts = CeilDivide(params.out_channels, kTransposeChannels);
      status = Launch(DilatedTranspose<Params>, steps * parts, kTransposeThreads,
                      Tile::kDepth * (kTransposeChannels + 1) * 4, stream, params);
      if (status != cudaSuccess) return status;
    }
    status = Launch(DilatedSum<Work, Tile>, params_.workers, Tile::kThreads,
                    kDilatedSharedBytes<Work, Tile>, stream, params);
    if (status != cudaSuccess || !params_.streamed || params_.workers == 1) return status;
    constexpr int kParts = Tile::kOuter / kDilatedAddOuter;
    return Launch(DilatedAdd<Work, Tile>, (params_.workers - 1) * kParts, kDilatedAddThreads, 0,
                  stream, params);
  }

 private:
  static constexpr bool kWgrad = std::is_same_v<Params, DilatedWgradParams>;

  static cudaError_t Prepare() {
    cudaError_t status =
        cudaFuncSetAttribute(DilatedSum<Work, Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kDilatedSharedBytes<Work, Tile>);
    if (status != cudaSuccess) (void)cudaGetLastError();
    if (status == cudaSuccess) status = LoadKernel(DilatedAdd<Work, Tile>);
    if constexpr (kWgrad) {
      if (status == cudaSuccess) status = LoadKernel(DilatedTranspose<Params>);
    }
    return status;
  }

  const Params params_;
  const cudaError_t prepared_;
};

// The cost of a tile beside its steps, and of sharing steps, in steps' time on an H100.
constexpr int64_t kTileCost = 4;
constexpr int64_t kSharingCost = 45;

// The time, in steps, until the last of `workers` is done, each taking the next tile when it is
// free.
int64_t TimeOfTiles(const DilatedParams& p, int64_t tiles, int64_t workers) {
  int64_t longest = 0;
  for (int run = 0; run < p.runs; ++run) longest = std::max<int64_t>(longest, p.run[run].steps);
  constexpr int64_t kMaxSimulated = 16384;
  if (tiles > kMaxSimulated) return (p.steps + tiles * kTileCost) / workers + longest;
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<int64_t>> free_at;
  for (int64_t i = 0; i < workers; ++i) free_at.push(0);
  int64_t last = 0;
  for (int run = 0; run < p.runs; ++run) {
    const int64_t end = run + 1 < p.runs ? p.run[run + 1].first_tile : tiles;
    for (int64_t tile = p.run[run].first_tile; tile < end; ++tile) {
      const int64_t done = free_at.top() + p.run[run].steps + kTileCost;
      free_at.pop();
      free_at.push(done);
      last = std::max(last, done);
    }
  }
  return last;
}

void CopyRun(const DilatedDgradParams& from, int run, DilatedDgradParams* p) {
  p->run_taps[p->runs] = from.run_taps[run];
  p->run_outer[p->runs] = from.run_outer[run];
}

void CopyRun(const DilatedWgradParams& from, int run, DilatedWgradParams* p) {
  const DilatedTapParams& tap = from.of_run[run];
  const int64_t end = run + 1 < from.runs ? from.of_run[run + 1].panel : from.panel_floats;
  if (p->runs == 0) p->panel_floats = 0;
  p->of_run[p->runs] = tap;
  p->of_run[p->runs].panel = p->panel_floats;  // panels lie in the order of their runs
  p->panel_floats += end - tap.panel;
}

// Shares the steps among `workers`. A tile with roughly as many steps as a share has a worker of
// its own, so that no partial sums of it are added afterwards. Such tiles come first.
template <typename Params>
void ShareSteps(int64_t tiles, int64_t workers, Params* p) {
  const Params from = *p;
  const int64_t share = CeilDivide(from.steps, workers), max_share = share + share / 64 + 1;
  const auto tiles_of = [&](int run) {
    return (run + 1 < from.runs ? from.run[run + 1].first_tile : tiles) - from.run[run].first_tile;
  };
  const auto alone = [&](int run) {
    return from.run[run].steps >= share && from.run[run].steps <= max_share;
  };
  int64_t tiles_alone = 0;
  for (int run = 0; run < from.runs; ++run) tiles_alone += alone(run) ? tiles_of(run) : 0;
  if (tiles_alone > 0 && tiles_alone < std::min(tiles, workers)) {
    p->runs = p->steps = 0;
    int64_t all = 0;
    for (const bool first : {true, false}) {
      for (int run = 0; run < from.runs; ++run) {
        if (alone(run) != first) continue;
        CopyRun(from, run, p);
        (void)Append(tiles_of(run), from.run[run].steps, &all, p);  // was counted before
      }
      if (first) p->steps_alone = p->steps;
    }
    p->tiles_alone = static_cast<int>(tiles_alone);
  }
  const int64_t steps = p->steps - p->steps_alone;
  const int64_t sharing = std::min<int64_t>(steps, workers - p->tiles_alone);
  p->streamed = true;
  p->workers = static_cast<int>(p->tiles_alone + sharing);
  p->share = static_cast<int>(steps / sharing);
  p->larger_shares = static_cast<int>(steps % sharing);
}

enum class Sharing { kTiles, kSteps, kBest };

// `sharing` says how workers share the work; kBest: in the way that is likely to be faster, if the
// workspace allows.
template <typename Work, typename Tile>
std::unique_ptr<const DilatedPlan> MakeOf(const DilatedProblem& problem, Sharing sharing) {
  typename Work::Params p{};
  p.in_channels = static_cast<int>(problem.in_channels);
  p.out_channels = static_cast<int>(problem.out_channels);
  p.taps = static_cast<int>(Volume(problem.kernel));
  for (size_t axis = 0; axis < 3; ++axis) {
    p.in[axis] = static_cast<int>(problem.in[axis]);
    p.out[axis] = static_cast<int>(problem.out[axis]);
  }
  p.inner_tiles = static_cast<int>(CeilDivide(problem.in_channels, Tile::kInner));
  int64_t tiles = 0;
  if (!ListSteps(problem, Tile::kOuter, Tile::kDepth, &tiles, &p)) return nullptr;
  const int64_t workers = problem.multiprocessors;
  if (sharing == Sharing::kBest) {
    const int64_t shared = CeilDivide(p.steps, workers) + kSharingCost;
    sharing = shared < TimeOfTiles(p, tiles, workers) ? Sharing::kSteps : Sharing::kTiles;
  }
  std::unique_ptr<const Plan<Work, Tile>> plan;
  if (sharing == Sharing::kSteps) {
    typename Work::Params shared = p;
    ShareSteps(tiles, workers, &shared);
    plan = std::make_unique<Plan<Work, Tile>>(shared);
  }
  if (plan == nullptr || plan->workspace_bytes() > problem.workspace_limit) {
    p.workers = static_cast<int>(tiles);
    plan = std::make_unique<Plan<Work, Tile>>(p);
  }
  if (plan->workspace_bytes() > problem.workspace_limit) return nullptr;
  return plan;
}

bool Countable(const DilatedProblem& problem) {
  if (problem.alignment < 16 || problem.in_channels % 4 != 0 || problem.out_channels % 4 != 0) {
    return false;
  }
  const auto product = [](std::initializer_list<int64_t> factors) {
    int64_t result = 1;
    for (int64_t factor : factors) {
      if (factor > kMaxElements) return kMaxElements + 1;
      result *= factor;
      if (result > kMaxElements) return kMaxElements + 1;
    }
    return result;
  };
  DilatedProblem::PerAxis reach;  // how far positions and what their taps read are apart, at most
  for (size_t axis = 0; axis < 3; ++axis) {
    if (std::max({problem.in[axis], problem.out[axis], problem.kernel[axis], problem.dilation[axis],
                  problem.padding_low[axis]}) > kMaxElements ||
        problem.padding_low[axis] < -kMaxElements) {
      return false;
    }
    reach[axis] = problem.in[axis] + problem.out[axis] + std::abs(problem.padding_low[axis]) +
                  problem.kernel[axis] * problem.dilation[axis];
  }
  const int64_t taps = product({problem.kernel[0], problem.kernel[1], problem.kernel[2]});
  return taps <= kMaxDilatedTaps &&
         product({taps, problem.in_channels, problem.out_channels + 64}) <= kMaxElements &&
         product({problem.batch + 1, reach[0], reach[1], reach[2],
                  std::max(problem.in_channels, problem.out_channels) + 512}) <= kMaxElements;
}

}  // namespace

std::unique_ptr<const DilatedPlan> DilatedPlan::Make(const DilatedProblem& problem) {
  if (!Countable(problem)) return nullptr;
  using Tile = DilatedTile<4>;
  return problem.wgrad ? MakeOf<DilatedWgrad<Tile>, Tile>(problem, Sharing::kBest)
                       : MakeOf<DilatedDgrad<Tile>, Tile>(problem, Sharing::kBest);
}

}  // namespace jax_convgrad
