#include "cpu/onednn/conv_limits.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <vector>

#include "cpu/kernels/depthwise/sizes.h"
#include "cpu/onednn/conv.h"
#include "cpu/onednn/staging.h"
#include "cpu/runtime/scratch.h"
#include "ffi/checked.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

namespace ffi = ::xla::ffi;

// NOTE [Long rows]. The code that oneDNN generates for some weight and input gradients grows with
// the innermost axis: that of an input gradient of 3 channels for AVX-512 by 2.5 KB a column, of a
// weight gradient for AVX2 by 600 bytes, until, at 2^25 columns of 4 channels, there is no
// primitive. A longer axis is cut. Where that is not the only one, pieces are copied.
constexpr int64_t kMaxColumns = 8192, kColumnsAtATime = 2048, kColumnsOfOneAxis = 16384;

// NOTE [Sums]. A float32 sum of n products in one accumulator loses sqrt(n) of its last digits. For
// a weight gradient oneDNN has one accumulator for all pixels where it takes channels singly or a
// few together, and without AVX-512 for any groups; elsewhere it adds sums of blocks of pixels. So
// the pixels are cut into pieces, and the sums of many pieces are added in float64. The smallest
// pieces lose as much as lax; of more pixels lax loses more, and larger pieces are faster.
constexpr int64_t kMaxChain[] = {512, 1024, 2048, 4096};
constexpr int64_t kMinPixels[] = {0, 1 << 17, 1 << 19, 1 << 22};  // of all, for pieces of so many
constexpr int64_t kMaxBlockedChain = 1 << 14, kMaxPointwiseChain = 1 << 17;
// Fewer channels have one accumulator.
constexpr int64_t kMinBlockedChannels = 8;

int64_t MaxSummedPixels(const ConvGeometry& g) {
  int64_t pixels = g.batch, taps = 1;
  for (int axis = 0; axis < g.spatial; ++axis) {
    pixels *= g.out[axis];
    taps *= g.kernel[axis];
  }
  if (taps == 1 && g.groups == 1) return kMaxPointwiseChain;
  const bool few = g.groups > 1 ? !OnednnHasAvx512()
                                : std::min(g.in_channels, g.out_channels) < kMinBlockedChannels;
  if (!few && !IsDepthwise(g)) return kMaxBlockedChain;
  size_t size = std::size(kMaxChain) - 1;
  while (pixels < kMinPixels[size]) --size;
  return kMaxChain[size];
}

// NOTE [Long sums]. In a forward pass or input gradient oneDNN has one accumulator for all channels
// and taps: the error of a result is 6.0e-7 for 1,152 random products, 1.1e-6 for 4,608. XLA's
// matrix products add sums of blocks, and lose 2.7e-7 of 1,000 products, 3.8e-7 of many. So the
// channels are cut into runs, whose results are added piece by piece. Kernels for windows of one
// tap add sums of blocks themselves, except those of an input gradient with strides.
constexpr int64_t kMaxProducts = 1152;
// Channels that oneDNN computes at once, and the fewest.
constexpr int64_t kChannelBlock = 64, kMinChannelBlock = 16;
// Memory for the copies and sums of the pieces that all threads have at once, and for one piece at
// least. Smaller pieces read the weights more often.
constexpr int64_t kMaxRunBytes = 8 << 20, kMinRunBytes = 128 << 10;

constexpr ConvGeometry::PerAxis kOnes{1, 1, 1};

// Channels of a group that a sum goes over, and the most taps.
int64_t SummedOf(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  return (problem.kind == ConvKind::kFprop ? g.in_channels : g.out_channels) / g.groups;
}

int64_t SummedTaps(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  int64_t taps = 1;
  for (int axis = 0; axis < g.spatial; ++axis) {
    const int64_t stride = problem.kind == ConvKind::kFprop ? 1 : g.strides[axis];
    taps *= CeilDivide(g.kernel[axis], stride);
  }
  return taps;
}

// The most pixels of a result whose copies and sums take no more memory, channels cut into so many
// runs.
int64_t MaxPixelsOfRuns(const ConvProblem& problem, int64_t runs) {
  const ConvGeometry& g = problem.geometry;
  const bool fprop = problem.kind == ConvKind::kFprop;
  double source = static_cast<double>(fprop ? g.in_channels : g.out_channels);
  for (int axis = 0; axis < g.spatial; ++axis) {
    const double in = static_cast<double>(g.in[axis]), out = static_cast<double>(g.out[axis]);
    source *= fprop ? in / out : out / in;
  }
  const double result = static_cast<double>(fprop ? g.out_channels : g.in_channels);
  const double bytes = sizeof(float) * (source / static_cast<double>(runs) + result);
  const int64_t max_bytes = std::max(kMinRunBytes, kMaxRunBytes / problem.threads);
  return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(max_bytes) / bytes));
}

// oneDNN's kernels keep sizes in 32 bits and do not check what they are given.
bool FitsOnednn(const ConvGeometry& g) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (std::max({g.batch, g.in_channels, g.out_channels}) > kMax) return false;
  for (int axis = 0; axis < g.spatial; ++axis) {
    const std::optional<int64_t> windows = CheckedMultiply(g.out[axis], g.strides[axis]);
    if (!windows || *windows > kMax || g.WindowSize(axis) > kMax) return false;
    if (g.in[axis] + g.padding_low[axis] + g.padding_high[axis] > kMax) return false;
  }
  return true;
}

// Whether x with its padding is many times larger than x, and a copy of the fewest channels that
// are worth computing together would not fit into a call's scratch memory.
bool IsMostlyPadding(const ConvGeometry& g) {
  constexpr int64_t kTimes = 16, kChannels = 16;
  ConvGeometry part = g;
  part.batch = 1;
  part.in_channels = std::min(g.in_channels, kChannels);
  const std::optional<size_t> padded = StagedBytes(part, sizeof(float));
  if (!padded) return true;
  int64_t bytes = part.in_channels * static_cast<int64_t>(sizeof(float));
  for (int axis = 0; axis < g.spatial; ++axis) bytes *= g.in[axis];
  return *padded > kMaxScratchBytes && *padded / kTimes > static_cast<size_t>(bytes);
}

}  // namespace

bool NeedsDirectConv(const ConvGeometry& geometry) {
  return !FitsOnednn(geometry) || IsMostlyPadding(geometry);
}

std::vector<ChannelRun> SummedChannels(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  const bool fprop = problem.kind == ConvKind::kFprop;
  const int64_t channels = SummedOf(problem);
  const bool blocked = g.kernel == kOnes && (fprop || g.strides == kOnes);
  if (problem.kind == ConvKind::kWgrad || problem.result_type != ffi::DataType::F32 || blocked) {
    return {{0, channels}};
  }
  const int64_t most = kMaxProducts / SummedTaps(problem);
  const int64_t block = most < kChannelBlock ? kMinChannelBlock : kChannelBlock;
  const int64_t runs = CeilDivide(channels, std::max(block, most / block * block));
  const int64_t step = RoundUp(CeilDivide(channels, runs), kMinChannelBlock);
  std::vector<ChannelRun> all;
  for (int64_t first = 0; first < channels; first += step) {
    all.push_back({first, std::min(step, channels - first)});
  }
  return all;
}

ConvGeometry WithSummed(ConvKind kind, ConvGeometry geometry, const ChannelRun& channels) {
  if (kind == ConvKind::kFprop) geometry.in_channels = channels.count * geometry.groups;
  if (kind == ConvKind::kDgrad) geometry.out_channels = channels.count * geometry.groups;
  return geometry;
}

int64_t MaxPixels(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  int64_t most = std::numeric_limits<int64_t>::max();
  const int64_t columns = std::max(g.in[g.spatial - 1], g.out[g.spatial - 1]);
  if (columns > kMaxColumns) most = g.spatial == 1 ? kColumnsOfOneAxis : kColumnsAtATime;
  const int64_t runs = static_cast<int64_t>(SummedChannels(problem).size());
  if (runs > 1) most = std::min(most, MaxPixelsOfRuns(problem, runs));
  if (problem.kind != ConvKind::kWgrad || problem.operand_type != ffi::DataType::F32) return most;
  return std::min(most, MaxSummedPixels(g));
}

}  // namespace jax_convgrad
