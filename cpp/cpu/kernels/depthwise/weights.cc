#include "cpu/kernels/depthwise/weights.h"

#include <algorithm>

#include "cpu/kernels/bfloat16.h"

namespace jax_convgrad {

DepthwiseWeightPlaces::DepthwiseWeightPlaces(
    const DepthwiseSizes& sizes, int spatial_axes,
    const std::array<int64_t, kMaxSpatialAxes + 2>& w_strides)
    : channel_stride_(w_strides[0]), taps_(static_cast<size_t>(sizes.taps()), 0) {
  for (int64_t tap = 0; tap < sizes.taps(); ++tap) {
    int64_t rest = tap;
    for (int axis = 2; axis >= 0; --axis) {
      const int from = axis - (3 - spatial_axes);
      const int64_t stride = from >= 0 ? w_strides[static_cast<size_t>(from) + 2] : 0;
      taps_[static_cast<size_t>(tap)] += rest % sizes.kernel[axis] * stride;
      rest /= sizes.kernel[axis];
    }
  }
}

int64_t DepthwiseBlocks::channel(int64_t block, int64_t lane) const {
  return std::max<int64_t>(0, std::min(block * lanes, channels - lanes)) + lane;
}

template <typename T>
void PackWeights(const DepthwiseWeightPlaces& places, const DepthwiseBlocks& blocks, int64_t taps,
                 const T* w, float* packed) {
  for (int64_t block = 0; block < blocks.count(); ++block) {
    for (int64_t tap = 0; tap < taps; ++tap) {
      for (int64_t lane = 0; lane < blocks.lanes; ++lane) {
        const int64_t channel = blocks.channel(block, lane);
        packed[(block * taps + tap) * blocks.lanes + lane] =
            channel < blocks.channels ? Widen(w[places.at(channel, tap)]) : 0.0f;
      }
    }
  }
}

template void PackWeights(const DepthwiseWeightPlaces&, const DepthwiseBlocks&, int64_t,
                          const float*, float*);
template void PackWeights(const DepthwiseWeightPlaces&, const DepthwiseBlocks&, int64_t,
                          const BFloat16*, float*);

}  // namespace jax_convgrad
