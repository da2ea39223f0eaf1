// The kernels of thin convolutions, each set that this processor runs, over random problems: exact
// against plain loops on small integers, within the rounding of float32 on others, inside their
// arrays, every element of the result written, the same bits whatever the number of threads and the
// order of the tasks.
//
//   thin_fuzz SEED COUNT

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <vector>

#include "cpu/kernels/thin/kernels.h"
#include "cpu/kernels/thin/work.h"
#include "ffi/conv.h"
#include "fuzz.h"

namespace {

using jax_convgrad::ConvGeometry;
using jax_convgrad::ConvKind;
using jax_convgrad::ConvProblem;
using jax_convgrad::ThinGather;
using jax_convgrad::ThinKernels;
using jax_convgrad::ThinWgrad;

using fuzz::Array;
using fuzz::Between;
using fuzz::Random;

constexpr int64_t kMaxProducts = 3000000;

int64_t OneOf(Random* random, std::initializer_list<int64_t> values) {
  return values.begin()[Between(random, 0, static_cast<int64_t>(values.size()) - 1)];
}

int64_t Volume(const ConvGeometry::PerAxis& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

int64_t Channels(Random* random, bool in_fours) {
  const int64_t any = Between(random, 1, 40), few = OneOf(random, {1, 1, 2, 3, 4, 8, 16, 32});
  const int64_t channels = Between(random, 0, 1) ? any : few;
  return in_fours ? (channels + 3) / 4 * 4 : channels;
}

ConvProblem RandomProblem(Random* random) {
  ConvProblem p{};
  p.kind = static_cast<ConvKind>(Between(random, 0, 2));
  p.operand_type = p.result_type = ::xla::ffi::DataType::F32;
  ConvGeometry& g = p.geometry;
  g.spatial = static_cast<int>(Between(random, 1, 3));
  g.batch = Between(random, 1, 3);
  const int64_t fours = Between(random, 0, 2);  // of x, of y, or of both
  g.in_channels = Channels(random, fours != 1);
  g.out_channels = Channels(random, fours != 0);
  for (size_t i = 0; i < static_cast<size_t>(g.spatial); ++i) {
    g.kernel[i] = g.spatial == 1 ? Between(random, 1, 17) : Between(random, 1, 4);
    g.strides[i] = Between(random, 0, 1) ? 1 : Between(random, 1, 9);
    g.dilation[i] = Between(random, 0, 1) ? 1 : Between(random, 1, 6);
    const int64_t window = g.WindowSize(static_cast<int>(i));
    g.padding_low[i] = Between(random, 0, 1) ? window / 2 : Between(random, 0, window + 2);
    g.padding_high[i] = Between(random, 0, window + 2);
    const int64_t min_in = std::max<int64_t>(1, window - g.padding_low[i] - g.padding_high[i]);
    g.in[i] = min_in + Between(random, 0, g.spatial == 1 ? 700 : 40);
    g.out[i] = (g.in[i] + g.padding_low[i] + g.padding_high[i] - window) / g.strides[i] + 1;
  }
  // Axes of the weights in any order.
  std::vector<size_t> order(static_cast<size_t>(g.spatial) + 2);
  std::iota(order.begin(), order.end(), size_t{0});
  if (Between(random, 0, 2) > 0) {
    std::shuffle(order.begin(), order.end(), *random);
  } else {
    std::rotate(order.begin(), order.begin() + 2, order.end());  // the taps first
    if (Between(random, 0, 1)) std::swap(order[order.size() - 1], order[order.size() - 2]);
  }
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    p.w_strides[order[i]] = stride;
    stride *= order[i] == 0   ? g.out_channels
              : order[i] == 1 ? g.in_channels
                              : g.kernel[order[i] - 2];
  }
  p.threads = 1;
  return p;
}

bool IsSupported(const ConvProblem& p) {
  return p.kind == ConvKind::kWgrad ? ThinWgrad::Supports(p) : ThinGather::Supports(p);
}

int64_t Products(const ConvGeometry& g) {
  return g.batch * g.in_channels * g.out_channels * Volume(g.out) * Volume(g.kernel);
}

// Calls each(x index, w index, y index) for every product of the convolution.
template <typename Each>
void ForEachProduct(const ConvProblem& p, Each each) {
  const ConvGeometry& g = p.geometry;
  std::array<int64_t, 3> tap_strides{};
  for (size_t i = 0; i < static_cast<size_t>(g.spatial); ++i) tap_strides[i] = p.w_strides[i + 2];
  for (int64_t n = 0; n < g.batch; ++n) {
    for (int64_t o = 0; o < Volume(g.out); ++o) {
      const std::array<int64_t, 3> out{o / g.out[2] / g.out[1], o / g.out[2] % g.out[1],
                                       o % g.out[2]};
      for (int64_t k = 0; k < Volume(g.kernel); ++k) {
        const std::array<int64_t, 3> tap{k / g.kernel[2] / g.kernel[1],
                                         k / g.kernel[2] % g.kernel[1], k % g.kernel[2]};
        int64_t at_x = 0, at_w = 0;
        bool inside = true;
        for (size_t i = 0; i < 3; ++i) {
          const int64_t at = out[i] * g.strides[i] + tap[i] * g.dilation[i] - g.padding_low[i];
          inside = inside && at >= 0 && at < g.in[i];
          at_x = at_x * g.in[i] + at;
          at_w += tap[i] * tap_strides[i];
        }
        if (!inside) continue;
        for (int64_t ci = 0; ci < g.in_channels; ++ci) {
          for (int64_t co = 0; co < g.out_channels; ++co) {
            each((n * Volume(g.in) + at_x) * g.in_channels + ci,
                 at_w + ci * p.w_strides[1] + co * p.w_strides[0],
                 (n * Volume(g.out) + o) * g.out_channels + co);
          }
        }
      }
    }
  }
}

template <typename Work>
void RunTasks(Random* random, Work* work) {
  std::vector<int64_t> tasks(static_cast<size_t>(work->task_count()));
  std::iota(tasks.begin(), tasks.end(), int64_t{0});
  std::shuffle(tasks.begin(), tasks.end(), *random);
  for (int64_t task : tasks) work->RunTask(task);
}

void Run(const ConvProblem& p, const ThinKernels& kernels, int64_t threads, float* x, float* w,
         float* y, Random* random) {
  if (p.kind == ConvKind::kWgrad) {
    ThinWgrad work(p, kernels, threads, x, y, w);
    RunTasks(random, &work);
    work.Finish();
    return;
  }
  const bool fprop = p.kind == ConvKind::kFprop;
  ThinGather work(p, kernels, threads, fprop ? x : y, w, fprop ? y : x);
  RunTasks(random, &work);
}

bool Check(const ConvProblem& p, const char* set, const ThinKernels& kernels, bool integers,
           Random* random) {
  const ConvGeometry& g = p.geometry;
  const auto fail = [&](const char* what) {
    std::printf("%s: %s, kind %d, %s, w strides", what, set, static_cast<int>(p.kind),
                g.ToString().c_str());
    for (int64_t stride : p.w_strides) std::printf(" %ld", long{stride});
    std::printf("\n");
    return false;
  };
  const auto numbers = [&](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    std::uniform_real_distribution<float> real(-1, 1);
    for (float& value : values) {
      value = integers ? static_cast<float>(Between(random, -2, 2)) : real(*random);
    }
    return values;
  };
  const Array<float> x(numbers(g.batch * Volume(g.in) * g.in_channels));
  const Array<float> w(numbers(Volume(g.kernel) * g.in_channels * g.out_channels));
  const Array<float> y(numbers(g.batch * Volume(g.out) * g.out_channels));
  const Array<float>& result = p.kind == ConvKind::kFprop ? y : p.kind == ConvKind::kDgrad ? x : w;
  const size_t count = result.bytes() / sizeof(float);

  std::vector<double> expected(count), magnitude(count);
  std::vector<int64_t> terms(count);
  ForEachProduct(p, [&](int64_t at_x, int64_t at_w, int64_t at_y) {
    const double xi = x.data()[at_x], wi = w.data()[at_w], yi = y.data()[at_y];
    const auto add = [&](int64_t at, double product) {
      expected[static_cast<size_t>(at)] += product;
      magnitude[static_cast<size_t>(at)] += std::fabs(product);
      ++terms[static_cast<size_t>(at)];
    };
    if (p.kind == ConvKind::kFprop) add(at_y, xi * wi);
    if (p.kind == ConvKind::kDgrad) add(at_x, yi * wi);
    if (p.kind == ConvKind::kWgrad) add(at_w, xi * yi);
  });

  std::vector<float> first;
  for (int64_t threads : {int64_t{1}, Between(random, 2, 5), Between(random, 6, 40)}) {
    std::fill_n(result.data(), count, std::numeric_limits<float>::quiet_NaN());
    Run(p, kernels, threads, x.data(), w.data(), y.data(), random);
    const std::vector<float> got(result.data(), result.data() + count);
    for (size_t i = 0; i < count; ++i) {
      // A sum of n products in any order is off by at most n units of rounding of the sum of their
      // magnitudes, and a bit more; integers are exact.
      const double unit = std::numeric_limits<float>::epsilon() / 2;
      const double max_error =
          integers ? 0 : 1.01 * static_cast<double>(terms[i]) * unit * magnitude[i];
      if (!(std::fabs(got[i] - expected[i]) <= max_error)) {
        std::printf("element %zu: %.9g, expected %.9g\n", i, static_cast<double>(got[i]),
                    expected[i]);
        return fail("wrong");
      }
    }
    if (first.empty()) first = got;
    if (std::memcmp(first.data(), got.data(), result.bytes()) != 0) {
      return fail("other bits with other threads");
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  std::printf("AVX2 %d, AVX-512 %d\n", has_avx2, has_avx512);
  return fuzz::Main(argc, argv, "thin_fuzz", [&](Random* random) {
    ConvProblem problem = RandomProblem(random);
    while (!IsSupported(problem) || problem.geometry.IsAllZero() ||
           Products(problem.geometry) > kMaxProducts) {
      problem = RandomProblem(random);
    }
    const bool integers = Between(random, 0, 1);
    return (!has_avx2 ||
            Check(problem, "AVX2", jax_convgrad::thin_avx2::kKernels, integers, random)) &&
           (!has_avx512 ||
            Check(problem, "AVX-512", jax_convgrad::thin_avx512::kKernels, integers, random));
  });
}
