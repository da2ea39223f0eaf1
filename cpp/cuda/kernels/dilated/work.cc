#include "cuda/kernels/dilated/work.h"

#include <algorithm>
#include <utility>

namespace jax_convgrad {
namespace {

// Positions of x that tap `tap` of some window reads, along one axis: from first to last - 1.
std::pair<int64_t, int64_t> ReadBy(const DilatedProblem& p, size_t axis, int64_t tap) {
  const int64_t shift = tap * p.dilation[axis] - p.padding_low[axis];
  const int64_t first = std::clamp<int64_t>(shift, 0, p.in[axis]);
  return {first, std::clamp<int64_t>(shift + p.out[axis], first, p.in[axis])};
}

// The ends of the stretches of x that the same taps read, along one axis, with 0 in front.
std::vector<int64_t> Bounds(const DilatedProblem& p, size_t axis) {
  std::vector<int64_t> bounds{0, p.in[axis]};
  for (int64_t tap = 0; tap < p.kernel[axis]; ++tap) {
    const auto [first, last] = ReadBy(p, axis, tap);
    bounds.insert(bounds.end(), {first, last});
  }
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  return bounds;
}

uint64_t TapsThatRead(const DilatedProblem& p, const int (&position)[3]) {
  uint64_t taps = 0;
  int bit = 0;
  const auto reads = [&](size_t axis, int64_t tap) {
    const auto [first, last] = ReadBy(p, axis, tap);
    return first <= position[axis] && position[axis] < last;
  };
  for (int64_t z = 0; z < p.kernel[0]; ++z) {
    for (int64_t y = 0; y < p.kernel[1]; ++y) {
      for (int64_t x = 0; x < p.kernel[2]; ++x, ++bit) {
        if (reads(0, z) && reads(1, y) && reads(2, x)) taps |= uint64_t{1} << bit;
      }
    }
  }
  return taps;
}

}  // namespace

int CountTaps(uint64_t taps) {
  int count = 0;
  for (; taps != 0; taps &= taps - 1) ++count;
  return count;
}

std::vector<DilatedRegion> DilatedRegions(const DilatedProblem& problem) {
  const std::vector<int64_t> bounds[] = {Bounds(problem, 0), Bounds(problem, 1),
                                         Bounds(problem, 2)};
  std::vector<DilatedRegion> found;
  for (size_t z = 1; z < bounds[0].size(); ++z) {
    for (size_t y = 1; y < bounds[1].size(); ++y) {
      for (size_t x = 1; x < bounds[2].size(); ++x) {
        DilatedRegion region{};
        const size_t end[] = {z, y, x};
        for (size_t axis = 0; axis < 3; ++axis) {
          const int64_t start = bounds[axis][end[axis] - 1];
          region.start[axis] = static_cast<int>(start);
          region.size[axis] = static_cast<int>(bounds[axis][end[axis]] - start);
        }
        region.taps = TapsThatRead(problem, region.start);
        found.push_back(region);
      }
    }
  }
  std::vector<DilatedRegion> ordered;
  int64_t first = 0;
  while (!found.empty()) {
    const uint64_t last = ordered.empty() ? 0 : ordered.back().taps;
    const auto next = std::max_element(
        found.begin(), found.end(), [&](const DilatedRegion& a, const DilatedRegion& b) {
          return std::pair(CountTaps(a.taps), CountTaps(a.taps & last)) <
                 std::pair(CountTaps(b.taps), CountTaps(b.taps & last));
        });
    ordered.push_back(*next);
    found.erase(next);
    ordered.back().first = static_cast<int>(first);
    const int (&size)[3] = ordered.back().size;
    first += problem.batch * size[0] * size[1] * size[2];
  }
  return ordered;
}

std::vector<DilatedRun> DilatedRuns(const std::vector<DilatedRegion>& regions, int64_t positions,
                                    int64_t tile) {
  std::vector<DilatedRun> runs;
  size_t region = 0;
  for (int64_t first = 0; first < positions; first += tile) {
    const int64_t last = std::min(first + tile, positions) - 1;
    while (region + 1 < regions.size() && regions[region + 1].first <= first) ++region;
    uint64_t taps = 0;
    for (size_t i = region; i < regions.size() && regions[i].first <= last; ++i) {
      taps |= regions[i].taps;
    }
    if (runs.empty() || runs.back().taps != taps) {
      runs.push_back({taps, static_cast<int>(first / tile), 0});
    }
    ++runs.back().tiles;
  }
  std::stable_sort(runs.begin(), runs.end(), [](const DilatedRun& a, const DilatedRun& b) {
    return CountTaps(a.taps) > CountTaps(b.taps);
  });
  return runs;
}

std::vector<DilatedWindows> DilatedTapWindows(const DilatedProblem& problem) {
  std::vector<DilatedWindows> all;
  int tap = 0;
  for (int64_t z = 0; z < problem.kernel[0]; ++z) {
    for (int64_t y = 0; y < problem.kernel[1]; ++y) {
      for (int64_t x = 0; x < problem.kernel[2]; ++x, ++tap) {
        DilatedWindows windows{};
        windows.tap = tap;
        const int64_t along[] = {z, y, x};
        for (size_t axis = 0; axis < 3; ++axis) {
          const auto [first, last] = ReadBy(problem, axis, along[axis]);
          const int64_t shift = along[axis] * problem.dilation[axis] - problem.padding_low[axis];
          windows.start_in[axis] = static_cast<int>(first);
          windows.start_out[axis] = static_cast<int>(first - shift);
          windows.size[axis] = static_cast<int>(last - first);
        }
        all.push_back(windows);
      }
    }
  }
  const auto volume = [](const DilatedWindows& w) {
    return int64_t{w.size[0]} * w.size[1] * w.size[2];
  };
  std::stable_sort(all.begin(), all.end(), [&](const DilatedWindows& a, const DilatedWindows& b) {
    return volume(a) > volume(b);
  });
  return all;
}

}  // namespace jax_convgrad
