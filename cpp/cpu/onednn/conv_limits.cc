#include "cpu/onednn/conv_limits.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "cpu/kernels/depthwise.h"
#include "cpu/onednn/conv.h"

namespace jax_convgrad {
namespace {

namespace ffi = ::xla::ffi;

// NOTE [Long rows]. The code that oneDNN generates for some weight and input gradients grows with
// the innermost axis: that of an input gradient of 3 channels for AVX-512 by 2.5 KB a column, of a
// weight gradient for AVX2 by 600 bytes, until, at 2^25 columns of 4 channels, there is no
// primitive. A longer axis is cut. Where that is not the only one, pieces are copied.
constexpr int64_t kMaxColumns = 8192, kColumnsAtATime = 2048, kColumnsOfOneAxis = 16384;

// NOTE [Sums]. A float32 sum of n products in one accumulator loses sqrt(n) of its last digits. For
// a weight gradient oneDNN has one accumulator for all pixels where it takes few channels or single
// ones, and without AVX-512 for any groups; elsewhere it adds sums of blocks of pixels. So the
// pixels are cut into pieces, and the sums of many pieces are added in float64. The smallest pieces
// lose as much as lax; of more pixels lax loses more, and larger pieces are faster.
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

}  // namespace

int64_t MaxPixels(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  int64_t most = std::numeric_limits<int64_t>::max();
  const int64_t columns = std::max(g.in[g.spatial - 1], g.out[g.spatial - 1]);
  if (columns > kMaxColumns) most = g.spatial == 1 ? kColumnsOfOneAxis : kColumnsAtATime;
  if (problem.kind != ConvKind::kWgrad || problem.operand_type != ffi::DataType::F32) return most;
  return std::min(most, MaxSummedPixels(g));
}

}  // namespace jax_convgrad
