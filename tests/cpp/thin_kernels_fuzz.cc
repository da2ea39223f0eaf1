// The thin kernels on the processor, over random problems: exact against plain loops, inside their
// arrays, every element of the result written, the same bits again. Every plan for a problem.
//
//   thin_kernels_fuzz SEED COUNT
//   thin_kernels_fuzz large          arrays of more than 2^31 elements, and extreme problems

#include <algorithm>
#include <string>
#include <vector>

#include "conv_fuzz.h"
#include "cuda/kernels/thin/image_warpgroup.cu"
#include "cuda/kernels/thin/plan.cu"
#include "cuda/kernels/thin/windows_warpgroup.cu"
#include "thin_large.h"

namespace {

using jax_convgrad::ThinArrays;
using jax_convgrad::ThinKind;
using jax_convgrad::ThinPlan;
using jax_convgrad::ThinProblem;
using jax_convgrad::ThinType;
using jax_convgrad::ThinWeights;

using fuzz::Between;
using fuzz::OneOf;
using fuzz::Products;
using fuzz::Random;
using fuzz::Volume;

// A device of compute capability 8.0, 8.6 or 9.0, with few multiprocessors.
jax_convgrad::ThinDevice RandomDevice(Random* random) {
  const int64_t kilobytes = OneOf(random, {164, 100, 228});
  return {Between(random, 1, 6), kilobytes * 1024, (kilobytes - 1) * 1024, kilobytes == 228};
}

int64_t RandomFew(Random* random) { return OneOf(random, {1, 1, 2, 3, 3, 3, 4, 5, 8, 12, 16}); }

// Channels of the other side, any number of them.
int64_t RandomMany(Random* random) {
  if (Between(random, 0, 2) == 0) return Between(random, 1, 70);
  return 8 * Between(random, 1, Between(random, 0, 3) ? 8 : 17);
}

// fprop of a thin image.
ThinProblem RandomImage(Random* random) {
  ThinProblem p;
  p.type = static_cast<ThinType>(Between(random, 0, 2));
  p.weights = static_cast<ThinWeights>(Between(random, 0, 1));
  p.batch = Between(random, 1, 3);
  p.in_channels = RandomFew(random);
  p.out_channels = RandomMany(random);
  const int64_t axes = Between(random, 1, 3);
  const bool pointwise = Between(random, 0, 5) == 0;
  if (pointwise && Between(random, 0, 1)) p.in_channels = OneOf(random, {17, 21, 30});
  for (size_t i = 3 - static_cast<size_t>(axes); i < 3; ++i) {
    p.kernel[i] = pointwise   ? 1
                  : axes == 1 ? Between(random, 1, 19)
                  : axes == 2 ? Between(random, 1, 9)
                              : Between(random, 1, 4);
    p.strides[i] = OneOf(random, {1, 1, 2, 2, 3, 4, 5});
    p.dilation[i] = i == 2 || Between(random, 0, 2) ? 1 : Between(random, 1, 4);
    const int64_t window = (p.kernel[i] - 1) * p.dilation[i] + 1;
    // Cropped here and there, and windows that read nothing.
    p.padding_low[i] = Between(random, -2, window + 1);
    const int64_t high = Between(random, -2, window + 1);
    const int64_t extra = Between(random, 0, axes == 1 ? 900 : axes == 2 ? 60 : 12);
    p.in[i] = std::max<int64_t>(1, window - p.padding_low[i] - high) + extra;
    p.out[i] = (p.in[i] + p.padding_low[i] + high - window) / p.strides[i] + 1;
  }
  p.device = RandomDevice(random);
  return p;
}

// The problem of which an image is y: a thin y, and stride 1.
ThinProblem OfImage(ThinProblem p, Random* random) {
  for (size_t i = 0; i < 3; ++i) {
    const int64_t window = (p.kernel[i] - 1) * p.dilation[i] + 1;
    p.strides[i] = 1;
    p.out[i] = p.in[i];
    const int64_t high = Between(random, 0, window);
    p.in[i] = std::max<int64_t>(1, p.out[i] + window - 1 - p.padding_low[i] - high);
  }
  std::swap(p.in_channels, p.out_channels);
  return p;
}

// fprop or wgrad of windows that read many rows: these fill the shared memory, and a tile's planes
// come one after the other.
ThinProblem RandomDeepImage(Random* random) {
  ThinProblem p;
  p.type = static_cast<ThinType>(Between(random, 0, 2));
  p.weights = static_cast<ThinWeights>(Between(random, 0, 1));
  p.in_channels = Between(random, 1, 4);
  p.out_channels = Between(random, 1, 12);
  const int64_t kernel_x = Between(random, 0, 1) ? 1 : Between(random, 2, 7);
  p.kernel = {Between(random, 5, 7), Between(random, 5, 7), kernel_x};
  p.strides[2] = Between(random, 1, 3);
  p.dilation[0] = Between(random, 1, 2);
  p.padding_low[0] = Between(random, 0, 2);
  p.out[0] = Between(random, 1, 2);
  p.out[2] = kernel_x == 1 ? Between(random, 200, 384) : Between(random, 30, 200);
  p.in = {(p.kernel[0] - 1) * p.dilation[0] + p.out[0] - p.padding_low[0], p.kernel[1],
          (p.out[2] - 1) * p.strides[2] + kernel_x};
  p.device = RandomDevice(random);
  if (Between(random, 0, 2) == 0) {
    p.kind = ThinKind::kWgrad;
    p.workspace_limit = 400 * p.in_channels * p.out_channels * Volume(p.kernel);
  }
  return p;
}

ThinProblem RandomDeepImageDgrad(Random* random) {
  ThinProblem p = OfImage(RandomDeepImage(random), random);
  p.kind = ThinKind::kDgrad;
  return p;
}

// wgrad of a thin image.
ThinProblem RandomImageWgrad(Random* random) {
  ThinProblem p = RandomImage(random);
  p.kind = ThinKind::kWgrad;
  const int64_t weights = 4 * p.in_channels * p.out_channels * Volume(p.kernel);
  p.workspace_limit = OneOf(random, {weights, 3 * weights, 100 * weights});
  return p;
}

ThinProblem RandomFewOutputsWgrad(Random* random) {
  return OfImage(RandomImageWgrad(random), random);
}

ThinProblem RandomImageDgrad(Random* random) {
  ThinProblem p = OfImage(RandomImage(random), random);
  p.kind = ThinKind::kDgrad;
  return p;
}

// fprop or dgrad with a thin result.
ThinProblem RandomFewOutputs(Random* random) {
  ThinProblem p = RandomImage(random);
  p.kind = Between(random, 0, 1) ? ThinKind::kFprop : ThinKind::kDgrad;
  p.dilation[2] = Between(random, 0, 2) ? 1 : Between(random, 1, 4);
  int64_t few = Between(random, 1, 32 / p.kernel[2]);
  while (!jax_convgrad::IsThin(p, few)) --few;
  const int64_t channels = 8 * Between(random, 1, 9);
  p.in_channels = p.kind == ThinKind::kFprop ? channels : few;
  p.out_channels = p.kind == ThinKind::kFprop ? few : channels;
  // The window may have grown.
  const int64_t window = (p.kernel[2] - 1) * p.dilation[2] + 1;
  p.in[2] = std::max(p.in[2], window - p.padding_low[2]);
  p.out[2] = (p.in[2] + p.padding_low[2] - window) / p.strides[2] + 1 + Between(random, 0, 2);
  return p;
}

// Windows side by side.
ThinProblem RandomWindows(Random* random) {
  ThinProblem p;
  p.kind = static_cast<ThinKind>(Between(random, 0, 2));
  p.type = static_cast<ThinType>(Between(random, 0, 1));
  p.weights = static_cast<ThinWeights>(Between(random, 0, 1));
  p.batch = Between(random, 1, 4);
  p.out_channels = 8 * Between(random, 1, Between(random, 0, 3) ? 12 : 40);
  const int64_t axes = Between(random, 1, 3);
  for (size_t i = 3 - static_cast<size_t>(axes); i < 3; ++i) {
    p.kernel[i] = axes == 1 ? OneOf(random, {1, 2, 3, 4, 8, 16}) : OneOf(random, {1, 2, 2, 3, 4});
    p.strides[i] = p.kernel[i];
    p.out[i] = Between(random, 1, axes == 1 ? 200 : axes == 2 ? 16 : 6);
    p.in[i] = p.out[i] * p.kernel[i];
    // What no window reads. A gradient there is not the kernel's.
    if (p.kind != ThinKind::kDgrad && Between(random, 0, 2) == 0) {
      p.in[i] += Between(random, 0, p.kernel[i] - 1);
    }
  }
  p.in_channels = Between(random, 0, 2) ? 8 * Between(random, 1, 16) : Between(random, 1, 12);
  // Copied by 4 bytes: elements of a run, and of a line, are even in number.
  if (p.kernel[2] * p.in_channels % 2 != 0 || p.in[2] * p.in_channels % 2 != 0) ++p.in_channels;
  const int64_t weights = 4 * p.in_channels * p.out_channels * Volume(p.kernel);
  p.workspace_limit = OneOf(random, {weights, 3 * weights, 100 * weights});
  p.device = RandomDevice(random);
  return p;
}

// Windows side by side whose sums take many steps, more than a ring of stages has, in a tile that
// is mostly empty.
ThinProblem RandomLongWindows(Random* random) {
  ThinProblem p;
  p.kind = static_cast<ThinKind>(Between(random, 0, 2));
  p.type = static_cast<ThinType>(Between(random, 0, 1));
  p.weights = static_cast<ThinWeights>(Between(random, 0, 1));
  const bool wgrad = p.kind == ThinKind::kWgrad;
  p.kernel = p.strides = {1, 2, 4};
  p.out = {1, wgrad ? Between(random, 16, 30) : 1, wgrad ? Between(random, 20, 40) : 3};
  p.in = {1, p.out[1] * 2, p.out[2] * 4};
  const int64_t few = 8 * Between(random, 1, 2), some = Between(random, 9, 20),
                many = 8 * Between(random, 40, 60);
  p.in_channels = p.kind == ThinKind::kFprop ? many / 8 : some;
  p.out_channels = p.kind == ThinKind::kFprop ? 8 * some : wgrad ? few : many;
  p.workspace_limit = 4 * 8 * p.in_channels * p.out_channels;  // one part
  p.device = {Between(random, 1, 6), 228 * 1024, 227 * 1024, true};
  return p;
}

// Whether a row of windows, and all weights of 64 output channels, fill most of the shared memory:
// then the problem may be refused.
bool IsLarge(const ThinProblem& problem) {
  const bool exchanged = problem.kind == ThinKind::kDgrad && !HasStrides(problem);
  const ThinProblem p = exchanged ? Exchanged(problem) : problem;
  const int64_t rows = p.kernel[0] * ((p.kernel[1] - 1) * p.dilation[1] + 1);
  const int64_t windows = std::min<int64_t>(p.out[2], p.out[1] > 1 ? 128 : 512);
  const int64_t run = p.kernel[2] * p.in_channels;
  int64_t staged = 4 * rows * (windows * p.strides[2] * p.in_channels + run);
  const int64_t element_bytes = p.type == ThinType::kTf32 ? 4 : 2;
  int64_t weights = 64 * element_bytes * p.kernel[0] * (p.kernel[1] * (run + 8) + 8);
  if (HasFewOutputs(problem)) {
    // 32 channels of as many pixels as a pixel of the result takes, of a plane.
    const int64_t pixels = std::max<int64_t>(64, 2 * (p.kernel[2] * p.dilation[2] + p.strides[2]));
    staged = 128 * rows / p.kernel[0] * pixels + 128 * pixels;
    weights = 64 * p.kernel[0] * p.kernel[1] * (std::max(p.in_channels, p.out_channels) + 8);
  }
  return p.kind != ThinKind::kWgrad && staged + weights > p.device.block_shared_bytes * 3 / 4;
}

template <typename T>
bool Check(const ThinProblem& p, Random* random) {
  // wgrad with few outputs multiplies all of x by what lies around y's gradient, zeros.
  const bool every_tap =
      p.kind == ThinKind::kDgrad ||
      (p.kind == ThinKind::kWgrad && jax_convgrad::IsThin(p, p.out_channels) && !HasStrides(p));
  const bool with_nan = !every_tap && p.type != ThinType::kF16;
  return fuzz::PlansAreExact<T, ThinArrays>(p, ThinPlan::Candidates(p), random, with_nan,
                                            IsLarge(p));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "large") {
    thin_large::Test();
    return 0;
  }
  return fuzz::Main(argc, argv, "thin_kernels_fuzz", [](Random* random) {
    constexpr int64_t kMaxProducts = 1000000;
    ThinProblem (*const draws[])(Random*) = {
        RandomWindows,    RandomImage,           RandomImageWgrad,
        RandomImageDgrad, RandomFewOutputsWgrad, RandomFewOutputs,
        RandomDeepImage,  RandomDeepImageDgrad,  RandomLongWindows};
    const auto draw = draws[Between(random, 0, 8)];
    ThinProblem problem = draw(random);
    while (Products(problem) > kMaxProducts) problem = draw(random);
    if (problem.type == ThinType::kTf32) return Check<float>(problem, random);
    return problem.type == ThinType::kF16 ? Check<__half>(problem, random)
                                          : Check<__nv_bfloat16>(problem, random);
  });
}
