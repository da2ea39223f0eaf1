// The depthwise kernels on the processor, over random problems: exact against plain loops, inside
// their arrays, every element of the result written, the same bits again.
//
//   depthwise_fuzz SEED COUNT

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "cuda/kernels/depthwise/plan.cu"
#include "fuzz.h"

namespace {

using jax_convgrad::DepthwiseArrays;
using jax_convgrad::DepthwiseKind;
using jax_convgrad::DepthwisePlan;
using jax_convgrad::DepthwiseProblem;
using jax_convgrad::DepthwiseType;

using fuzz::Array;
using fuzz::Between;
using fuzz::Random;
using Numbers = std::vector<double>;

int64_t OneOf(Random* random, std::initializer_list<int64_t> values) {
  return values.begin()[Between(random, 0, static_cast<int64_t>(values.size()) - 1)];
}

int64_t Volume(const DepthwiseProblem::PerAxis& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

DepthwiseProblem RandomProblem(Random* random) {
  DepthwiseProblem p;
  p.kind = static_cast<DepthwiseKind>(Between(random, 0, 2));
  p.type = static_cast<DepthwiseType>(Between(random, 0, 3));
  p.batch = Between(random, 1, 3);
  p.channels = Between(random, 0, 1) ? 4 * Between(random, 1, 14) : Between(random, 1, 40);
  const int64_t axes = Between(random, 1, 3);
  const int64_t same = Between(random, 0, 1);  // the same window and stride along all axes
  const int64_t kernel = OneOf(random, {1, 2, 3, 3, 4, 4, 5, 6, 7, 7, 9, 11, 16});
  const int64_t stride = OneOf(random, {1, 1, 1, 2, 2, 3, 4, 8});
  for (size_t i = 3 - static_cast<size_t>(axes); i < 3; ++i) {
    const int64_t max_extra = i == 0 ? 5 : 24;
    p.kernel[i] = same ? kernel : Between(random, 1, i == 0 ? 4 : 9);
    p.strides[i] = same ? stride : Between(random, 1, 6);
    p.dilation[i] = Between(random, 0, 2) ? 1 : Between(random, 1, 6);
    const int64_t window = (p.kernel[i] - 1) * p.dilation[i] + 1;
    p.padding_low[i] = Between(random, 0, window + 1);
    const int64_t high = Between(random, 0, window + 1);
    p.in[i] =
        Between(random, std::max<int64_t>(1, window - p.padding_low[i] - high), window + max_extra);
    p.out[i] = (p.in[i] + p.padding_low[i] + high - window) / p.strides[i] + 1;
  }
  p.alignment = OneOf(random, {2, 4, 8, 16});
  const int64_t weights = 8 * p.channels * Volume(p.kernel);
  p.workspace_limit = OneOf(random, {weights, 2 * weights, 100 * weights});
  p.multiprocessors = Between(random, 1, 6);
  return p;
}

constexpr int64_t kMaxProducts = 2000000;

int64_t Products(const DepthwiseProblem& p) {
  return p.batch * p.channels * Volume(p.out) * Volume(p.kernel);
}

void Print(const DepthwiseProblem& p, const char* what) {
  const auto list = [](const char* name, const DepthwiseProblem::PerAxis& v) {
    std::printf(" %s %ld,%ld,%ld", name, long{v[0]}, long{v[1]}, long{v[2]});
  };
  std::printf("%s: kind %d type %d batch %ld channels %ld", what, static_cast<int>(p.kind),
              static_cast<int>(p.type), long{p.batch}, long{p.channels});
  list("in", p.in);
  list("kernel", p.kernel);
  list("out", p.out);
  list("strides", p.strides);
  list("padding", p.padding_low);
  list("dilation", p.dilation);
  std::printf(" alignment %ld limit %ld multiprocessors %ld\n", long{p.alignment},
              long{p.workspace_limit}, long{p.multiprocessors});
}

// Calls each(x index, w index, y index) for every product of the convolution.
template <typename Each>
void ForEachProduct(const DepthwiseProblem& p, Each each) {
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t o = 0; o < Volume(p.out); ++o) {
      const int64_t oz = o / (p.out[1] * p.out[2]), oy = o / p.out[2] % p.out[1], ox = o % p.out[2];
      for (int64_t k = 0; k < Volume(p.kernel); ++k) {
        const int64_t kz = k / (p.kernel[1] * p.kernel[2]), ky = k / p.kernel[2] % p.kernel[1],
                      kx = k % p.kernel[2];
        const int64_t iz = oz * p.strides[0] + kz * p.dilation[0] - p.padding_low[0];
        const int64_t iy = oy * p.strides[1] + ky * p.dilation[1] - p.padding_low[1];
        const int64_t ix = ox * p.strides[2] + kx * p.dilation[2] - p.padding_low[2];
        if (iz < 0 || iz >= p.in[0] || iy < 0 || iy >= p.in[1] || ix < 0 || ix >= p.in[2]) continue;
        const int64_t i = (iz * p.in[1] + iy) * p.in[2] + ix;
        for (int64_t c = 0; c < p.channels; ++c) {
          each((n * Volume(p.in) + i) * p.channels + c, c * Volume(p.kernel) + k,
               (n * Volume(p.out) + o) * p.channels + c);
        }
      }
    }
  }
}

template <typename T>
std::vector<T> Narrowed(const Numbers& numbers) {
  std::vector<T> narrow(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    jax_convgrad::Narrow(static_cast<jax_convgrad::Sum<T>>(numbers[i]), &narrow[i]);
  }
  return narrow;
}

template <typename T>
bool Check(const DepthwiseProblem& problem, Random* random) {
  DepthwiseProblem p = problem;
  p.alignment = std::max<int64_t>(p.alignment, sizeof(T));
  const int64_t offset = p.alignment % 16;
  const auto numbers = [&](int64_t count) {
    Numbers values(static_cast<size_t>(count));
    for (double& value : values) value = static_cast<double>(Between(random, -2, 2));
    return values;
  };
  Numbers x = numbers(p.batch * Volume(p.in) * p.channels),
          w = numbers(Volume(p.kernel) * p.channels),
          y = numbers(p.batch * Volume(p.out) * p.channels);
  const Array<T> x_array(Narrowed<T>(x), offset), w_array(Narrowed<T>(w), offset),
      y_array(Narrowed<T>(y), offset);
  const Array<T>& result = p.kind == DepthwiseKind::kFprop   ? y_array
                           : p.kind == DepthwiseKind::kDgrad ? x_array
                                                             : w_array;
  Numbers& expected = p.kind == DepthwiseKind::kFprop ? y : p.kind == DepthwiseKind::kDgrad ? x : w;
  std::fill(expected.begin(), expected.end(), 0);
  ForEachProduct(p, [&](int64_t at_x, int64_t at_w, int64_t at_y) {
    double& xi = x[static_cast<size_t>(at_x)];
    double& wi = w[static_cast<size_t>(at_w)];
    double& yi = y[static_cast<size_t>(at_y)];
    if (p.kind == DepthwiseKind::kFprop) yi += xi * wi;
    if (p.kind == DepthwiseKind::kDgrad) xi += yi * wi;
    if (p.kind == DepthwiseKind::kWgrad) wi += xi * yi;
  });

  const auto plan = DepthwisePlan::Make(p);
  if (plan == nullptr) {
    Print(p, "not taken");
    return false;
  }
  if (plan->workspace_bytes() > p.workspace_limit) {
    Print(p, "more workspace than the limit");
    return false;
  }
  return fuzz::RunsExactly(
      *plan, DepthwiseArrays{x_array.data(), w_array.data(), y_array.data(), nullptr}, result,
      Narrowed<T>(expected), [](T value) { return jax_convgrad::Widen(value); },
      [&](const char* what) { Print(p, what); });
}

bool Check(const DepthwiseProblem& problem, Random* random) {
  switch (problem.type) {
    case DepthwiseType::kF16:
      return Check<__half>(problem, random);
    case DepthwiseType::kBF16:
      return Check<__nv_bfloat16>(problem, random);
    case DepthwiseType::kF32:
      return Check<float>(problem, random);
    case DepthwiseType::kF64:
      return Check<double>(problem, random);
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::Main(argc, argv, "depthwise_fuzz", [](Random* random) {
    DepthwiseProblem problem = RandomProblem(random);
    while (Products(problem) > kMaxProducts) problem = RandomProblem(random);
    return Check(problem, random);
  });
}
