// What oneDNN is not asked for: whole problems, pieces that are too large to compute at once, and
// sums that are too long.

#ifndef JAX_CONVGRAD_CPU_ONEDNN_CONV_LIMITS_H_
#define JAX_CONVGRAD_CPU_ONEDNN_CONV_LIMITS_H_

#include <cstdint>
#include <vector>

#include "cpu/conv_problem.h"
#include "ffi/conv.h"

namespace jax_convgrad {

// Whether DirectConv (cpu/kernels/direct.h) computes the problem, instead of oneDNN: it is larger
// than oneDNN can count, or mostly padding. Windows may be much further apart than x is long, as
// with a stride of 2**30: oneDNN walks through the padding between them, or needs a copy of x that
// contains it.
bool NeedsDirectConv(const ConvGeometry& geometry);

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
