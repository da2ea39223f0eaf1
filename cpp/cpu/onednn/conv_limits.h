// How large a piece of a convolution may be that oneDNN computes at once, and how long a sum.

#ifndef JAX_CONVGRAD_CPU_ONEDNN_CONV_LIMITS_H_
#define JAX_CONVGRAD_CPU_ONEDNN_CONV_LIMITS_H_

#include <cstdint>
#include <vector>

#include "cpu/conv_problem.h"

namespace jax_convgrad {

// The most pixels of a piece, of x for dgrad and else of y: as many as keep the code that oneDNN
// generates small, and the digits of a weight gradient.
int64_t MaxPixels(const ConvProblem& problem);

// Some of the channels of each group that the sums of a forward pass or input gradient go over.
struct ChannelRun {
  int64_t first, count;
};

// All of those channels, in runs whose sums are short enough to keep their digits. One run for a
// weight gradient, which sums over pixels.
std::vector<ChannelRun> SummedChannels(const ConvProblem& problem);

// The pieces' convolutions with a run of those channels alone.
ConvGeometry WithSummed(ConvKind kind, ConvGeometry geometry, const ChannelRun& channels);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_ONEDNN_CONV_LIMITS_H_
