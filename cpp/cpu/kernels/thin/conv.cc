#include "cpu/kernels/thin/conv.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "cpu/kernels/thin/kernels.h"
#include "cpu/kernels/thin/work.h"
#include "cpu/runtime/job.h"
#include "cpu/runtime/processor.h"

namespace jax_convgrad {
namespace {

namespace ffi = ::xla::ffi;

// How much work is small: the fixed cost of oneDNN's calls counts, two changes of format, code and
// tables that other calls have driven out of the caches, threads that wait for each other.
constexpr double kSmallFlops = 16e6, kSmallFlopsZen4 = 100e6;

bool IsZen4() {
  static const bool is = IsAmdFamily19h() && FindThinKernels() == &thin_avx512::kKernels;
  return is;
}

// What small work allows beyond the bounds that always hold.
struct Allowed {
  bool thin_operand = false, large_weights = false;
};

bool IsWithin(Allowed allowed, const ConvProblem& problem) {
  constexpr int64_t kMaxChannels = 96, kMaxKernel = 128, kMaxStride = 64;
  constexpr int64_t kMaxWeights = 1 << 14, kMaxLargeWeights = 1 << 16;
  constexpr int64_t kMaxWeightGradients = 1 << 20;
  const ConvGeometry& g = problem.geometry;
  if (std::max(g.in_channels, g.out_channels) > kMaxChannels) return false;
  int64_t weights = g.in_channels * g.out_channels;
  bool strided = false;
  for (int axis = 0; axis < g.spatial; ++axis) {
    if (g.kernel[axis] > kMaxKernel || g.strides[axis] > kMaxStride) return false;
    weights *= g.kernel[axis];
    strided = strided || g.strides[axis] > 1;
  }
  const bool wgrad = problem.kind == ConvKind::kWgrad, dgrad = problem.kind == ConvKind::kDgrad;
  const bool thin = (dgrad ? g.out_channels : g.in_channels) < 4 && (wgrad || g.spatial > 1);
  if (thin && !allowed.thin_operand) return false;
  if (wgrad) return weights <= kMaxWeightGradients && ThinWgrad::Supports(problem);
  const bool large = (dgrad && strided) || allowed.large_weights;
  return weights <= (large ? kMaxLargeWeights : kMaxWeights) && ThinGather::Supports(problem);
}

}  // namespace

const ThinKernels* FindThinKernels() {
  if (HasAvx512()) return &thin_avx512::kKernels;
  return HasAvx2() ? &thin_avx2::kKernels : nullptr;
}

// How many times slower oneDNN is, on two processors with AVX-512 (survey_cpu.py; 1-D and 2-D
// layers of 1 to 100 MFLOP unless said otherwise):
//
//   4 to 4 channels 2.1 to 3.2, 8 to 8 1.3 to 1.6, 16 to 16 and more 0.97 to 1.1, and 1.1 to 3.4
//   below 5 MFLOP; results of 1 to 3 channels 1.1 to 7; dx with a stride 1.1 to 4, also of 64
//   channels; dw 1.0 to 10, the more the larger the kernel.
//
// And where it is the faster one: activations of 1 to 3 channels along 2 and 3 axes as operands of
// y and dx 0.6 to 0.95; weights that leave the innermost cache 0.6 to 1.0, 64 to 64 k3 0.94.
//
// For dw of 1 to 3 channels it sums all pixels in one accumulator, and loses digits. Cut into
// pieces that do not it is 1.05 to 1.6 times slower than that, these kernels are 0.5 to 1.3 times
// with AVX-512 and 0.1 to 1.15 times with AVX2.
//
// That is less so on Zen 4, which multiplies at half the rate and reads its second cache as fast.
// There 32 to 64 and 64 to 32 k3 are 1.1 to 1.5 at 19 MFLOP, 1.01 to 1.13 at 75 and 0.97 to 1.0 at
// 151; 3 to 16 k3 of 7 MFLOP 1.05, dw 0.6. Training steps gain more, as no thread waits for these
// kernels: a U-Net's 3% by the larger weights, 2% by its first layer of 3 channels.
bool IsThinConv(const ConvProblem& problem) {
  if (FindThinKernels() == nullptr) return false;
  if (problem.operand_type != ffi::DataType::F32 || problem.result_type != ffi::DataType::F32) {
    return false;
  }
  if (problem.geometry.groups != 1) return false;
  const double flops = ConvFlops(problem.geometry);
  const bool small = flops <= (IsZen4() ? kSmallFlopsZen4 : kSmallFlops);
  const bool wgrad = problem.kind == ConvKind::kWgrad;
  return IsWithin(Allowed{wgrad || (IsZen4() && flops <= kSmallFlops), small}, problem);
}

bool IsThinConvAtAnySize(const ConvProblem& problem) {
  return FindThinKernels() != nullptr && IsWithin({}, problem);
}

void BeginThinConv(ffi::ThreadPool& pool, const ConvProblem& problem, float* x, float* w, float* y,
                   const ffi::Promise& promise) {
  const ThinKernels& kernels = *FindThinKernels();
  const char* const op = ConvName(problem.kind);
  const auto sizes = [geometry = problem.geometry] { return geometry.ToString(); };
  // Nothing waits for a thread that is woken, and where all are busy none is.
  const int64_t threads = UsefulThreads(problem, ConvFlops(problem.geometry) / kMinThreadFlops);
  if (problem.kind == ConvKind::kWgrad) {
    const auto job =
        std::make_shared<Job<ThinWgrad>>(op, sizes, promise, problem, kernels, threads, x, y, w);
    if (ScheduleJob(pool, job, threads) == 0) job->Run();
    return;
  }
  const bool fprop = problem.kind == ConvKind::kFprop;
  const auto job = std::make_shared<Job<ThinGather>>(op, sizes, promise, problem, kernels, threads,
                                                     fprop ? x : y, w, fprop ? y : x);
  ScheduleJob(pool, job, threads - 1);
  job->Run();
}

}  // namespace jax_convgrad
