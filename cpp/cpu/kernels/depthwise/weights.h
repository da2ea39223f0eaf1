// The weights of a depthwise convolution as the kernels read them.

#ifndef JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_WEIGHTS_H_
#define JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_WEIGHTS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "cpu/kernels/depthwise/sizes.h"
#include "ffi/conv.h"

namespace jax_convgrad {

// Where the weights lie in w or dw, whose strides are those of ConvProblem::w_strides.
class DepthwiseWeightPlaces {
 public:
  DepthwiseWeightPlaces(const DepthwiseSizes& sizes, int spatial_axes,
                        const std::array<int64_t, kMaxSpatialAxes + 2>& w_strides);

  // Taps are counted row by row.
  int64_t at(int64_t channel, int64_t tap) const {
    return channel * channel_stride_ + taps_[static_cast<size_t>(tap)];
  }

 private:
  int64_t channel_stride_;
  std::vector<int64_t> taps_;
};

// The channels in blocks of a vector's lanes. The last block overlaps the one before it where the
// channels do not fill it; lanes beyond the channels are left over where they are fewer than lanes.
struct DepthwiseBlocks {
  int64_t channels, lanes;

  int64_t count() const { return (channels - 1) / lanes + 1; }
  int64_t channel(int64_t block, int64_t lane) const;
};

// The weights in float32, [block][tap][lane], zero in lanes that are left over. T is float or
// BFloat16.
template <typename T>
void PackWeights(const DepthwiseWeightPlaces& places, const DepthwiseBlocks& blocks, int64_t taps,
                 const T* w, float* packed);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_DEPTHWISE_WEIGHTS_H_
