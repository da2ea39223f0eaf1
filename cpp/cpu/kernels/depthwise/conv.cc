#include "cpu/kernels/depthwise/conv.h"

#include <algorithm>
#include <cstddef>

#include "cpu/kernels/bfloat16.h"
#include "cpu/kernels/depthwise/kernels.h"
#include "cpu/kernels/depthwise/sizes.h"
#include "cpu/kernels/depthwise/weights.h"
#include "cpu/runtime/parallel_for.h"
#include "cpu/runtime/scratch.h"
#include "ffi/checked.h"

namespace jax_convgrad {
namespace {

namespace ffi = ::xla::ffi;

constexpr int64_t kTasksPerThread = 4;  // a thread may be late
// With fewer than fill a vector of AVX2, oneDNN's grouped convolutions are faster: with 2 channels
// 3 to 17 times. dispatch/rules_preparation.py has the number, too.
constexpr int64_t kMinChannels = 8;

// The elements of a phase that are computed at once, for all blocks of channels. What a block
// leaves of the lines that it reads must still be in the cache for the next: 1024x768 with 4 taps
// took 9 ms in pieces of 64 elements, 2 to 5 in pieces of 16 (AVX-512, two busy cores).
int64_t PieceOf(int64_t channels) {
  constexpr int64_t kNumbers = 1 << 14, kMin = 16, kMax = 256, kMultiple = 8;
  return std::clamp(kNumbers / channels / kMultiple * kMultiple, kMin, kMax);
}

template <typename T>
void Run(ffi::ThreadPool& pool, const ConvProblem& problem, const void* operand, const void* w,
         void* result) {
  const DepthwiseSizes g(problem.geometry);
  const DepthwiseKernels<T>& kernels = FindDepthwiseKernels<T>(g.channels);
  const bool forward = problem.kind == ConvKind::kFprop;
  const int64_t* const out = forward ? g.out : g.in;
  const DepthwiseBlocks blocks{g.channels, kernels.lanes};
  const Scratch packed(MultipliedBytes(
      MultipliedBytes(static_cast<size_t>(blocks.count()), static_cast<size_t>(g.taps())),
      static_cast<size_t>(blocks.lanes) * sizeof(float)));
  float* const weights = reinterpret_cast<float*>(packed.data());
  PackWeights(DepthwiseWeightPlaces(g, problem.geometry.spatial, problem.w_strides), blocks,
              g.taps(), static_cast<const T*>(w), weights);
  const int64_t piece = PieceOf(g.channels);
  const int64_t phases = forward ? 1 : std::min(g.strides[2], out[2]);
  const int64_t pieces_of_row = ((out[2] - 1) / phases) / piece + 1;
  const int64_t pieces = g.batch * out[0] * out[1] * pieces_of_row;
  const DepthwiseConvWork<T> work{g,
                                  forward,
                                  piece,
                                  pieces_of_row,
                                  static_cast<const T*>(operand),
                                  static_cast<T*>(result),
                                  weights};
  const int64_t workers =
      std::min(pieces, UsefulThreads(problem, ConvFlops(problem.geometry) / kMinThreadFlops));
  const int64_t tasks = std::min(pieces, workers * kTasksPerThread);
  ParallelFor(pool, workers, tasks, [&](int64_t task, int64_t) {
    const auto first_of = [&](int64_t at) {  // without overflow
      return pieces / tasks * at + pieces % tasks * at / tasks;
    };
    for (int64_t at = first_of(task); at < first_of(task + 1); ++at) kernels.conv(work, at);
  });
}

}  // namespace

bool IsDepthwiseConv(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  if (problem.kind == ConvKind::kWgrad || !IsDepthwise(g) || g.in_channels < kMinChannels ||
      problem.operand_type != problem.result_type) {
    return false;
  }
  const bool is_dilated = std::any_of(g.dilation.begin(), g.dilation.end(),
                                      [](int64_t dilation) { return dilation > 1; });
  return g.spatial != 2 || (problem.kind == ConvKind::kDgrad && is_dilated);
}

void DepthwiseConv(ffi::ThreadPool& pool, const ConvProblem& problem, const void* operand,
                   const void* w, void* result) {
  if (problem.operand_type == ffi::DataType::BF16) {
    Run<BFloat16>(pool, problem, operand, w, result);
  } else {
    Run<float>(pool, problem, operand, w, result);
  }
}

}  // namespace jax_convgrad
