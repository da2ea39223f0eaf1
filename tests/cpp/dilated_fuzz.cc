// The dilated kernels on the processor, over random problems: exact against plain loops, inside
// their arrays, every element of the result written, the same bits again. And the geometry that
// they go by, against plain loops.
//
//   dilated_fuzz SEED COUNT

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cuda/kernels/dilated/plan.cu"
#include "cuda/kernels/dilated/work.cc"
#include "fuzz.h"

namespace {

using jax_convgrad::DilatedPlan;
using jax_convgrad::DilatedProblem;

using fuzz::Between;
using fuzz::Random;
using Array = fuzz::Array<float>;

DilatedProblem RandomProblem(Random* random) {
  DilatedProblem p;
  p.wgrad = Between(random, 0, 1) == 1;
  p.batch = Between(random, 1, 3);
  p.in_channels = 4 * Between(random, 1, Between(random, 0, 3) ? 12 : 80);
  p.out_channels = 4 * Between(random, 1, Between(random, 0, 3) ? 12 : 48);
  const int64_t axes = Between(random, 1, 3);
  for (size_t i = 3 - static_cast<size_t>(axes); i < 3; ++i) {
    p.kernel[i] = Between(random, 1, axes == 1 ? 7 : axes == 2 ? 4 : 3);
    p.dilation[i] = Between(random, 1, 6);
    const int64_t window = (p.kernel[i] - 1) * p.dilation[i] + 1;
    // Cropped here and there, and taps that never read.
    p.padding_low[i] = Between(random, -2, window + 1);
    const int64_t high = Between(random, -2, window + 1);
    const int64_t min_in = std::max<int64_t>(1, window - p.padding_low[i] - high);
    p.in[i] = min_in + Between(random, 0, axes == 3 ? 4 : 12);
    p.out[i] = p.in[i] + p.padding_low[i] + high - window + 1;
  }
  // The smaller one is enough for what y is copied to, and seldom for more.
  p.workspace_limit = Between(random, 0, 1) ? int64_t{1} << 40 : int64_t{1} << 23;
  p.multiprocessors = Between(random, 1, 9);
  return p;
}

int64_t Volume(const DilatedProblem::PerAxis& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

void Print(const DilatedProblem& p, const char* what) {
  const auto list = [](const char* name, const DilatedProblem::PerAxis& v) {
    std::printf(" %s %ld,%ld,%ld", name, long{v[0]}, long{v[1]}, long{v[2]});
  };
  std::printf("%s: %s batch %ld channels %ld to %ld", what, p.wgrad ? "wgrad" : "dgrad",
              long{p.batch}, long{p.in_channels}, long{p.out_channels});
  list("in", p.in);
  list("kernel", p.kernel);
  list("out", p.out);
  list("padding", p.padding_low);
  list("dilation", p.dilation);
  std::printf(" multiprocessors %ld\n", long{p.multiprocessors});
}

// Calls each(position of x, tap, window) for every tap of a window that reads x, images included.
template <typename Each>
void ForEachRead(const DilatedProblem& p, Each each) {
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t o = 0; o < Volume(p.out); ++o) {
      const int64_t at[] = {o / (p.out[1] * p.out[2]), o / p.out[2] % p.out[1], o % p.out[2]};
      for (int64_t k = 0; k < Volume(p.kernel); ++k) {
        const int64_t tap[] = {k / (p.kernel[1] * p.kernel[2]), k / p.kernel[2] % p.kernel[1],
                               k % p.kernel[2]};
        int64_t position = 0;
        bool inside = true;
        for (size_t axis = 0; axis < 3; ++axis) {
          const int64_t i = at[axis] + tap[axis] * p.dilation[axis] - p.padding_low[axis];
          inside = inside && i >= 0 && i < p.in[axis];
          position = position * p.in[axis] + i;
        }
        if (inside) each(n * Volume(p.in) + position, k, n * Volume(p.out) + o);
      }
    }
  }
}

int64_t CountReads(const DilatedProblem& p) {
  int64_t reads = 0;
  ForEachRead(p, [&](int64_t, int64_t, int64_t) { ++reads; });
  return reads;
}

bool CheckGeometry(const DilatedProblem& p) {
  int64_t reads = 0, positions = 0;
  const std::vector<jax_convgrad::DilatedRegion> regions = jax_convgrad::DilatedRegions(p);
  for (const jax_convgrad::DilatedRegion& region : regions) {
    if (region.first != positions) return false;
    const int64_t size = p.batch * region.size[0] * region.size[1] * region.size[2];
    positions += size;
    reads += size * jax_convgrad::CountTaps(region.taps);
  }
  if (positions != p.batch * Volume(p.in) || reads != CountReads(p)) return false;
  for (const jax_convgrad::DilatedWindows& windows : jax_convgrad::DilatedTapWindows(p)) {
    reads -= p.batch * windows.size[0] * windows.size[1] * windows.size[2];
  }
  return reads == 0;
}

bool CheckPlan(const DilatedProblem& p, const DilatedPlan* plan, Random* random) {
  if (plan == nullptr) {
    Print(p, "not taken");
    return false;
  }
  const auto numbers = [&](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(Between(random, -3, 3));
    return values;
  };
  std::vector<float> x = numbers(p.batch * Volume(p.in) * p.in_channels),
                     w = numbers(p.out_channels * Volume(p.kernel) * p.in_channels),
                     y = numbers(p.batch * Volume(p.out) * p.out_channels);
  const Array x_array(x), w_array(w), y_array(y);
  const Array& result = p.wgrad ? w_array : x_array;
  std::vector<float>& expected = p.wgrad ? w : x;
  std::fill(expected.begin(), expected.end(), 0.0f);
  ForEachRead(p, [&](int64_t position, int64_t tap, int64_t window) {
    for (int64_t o = 0; o < p.out_channels; ++o) {
      const float of_y = y[static_cast<size_t>(window * p.out_channels + o)];
      float* const of_x = &x[static_cast<size_t>(position * p.in_channels)];
      float* const of_w = &w[static_cast<size_t>((o * Volume(p.kernel) + tap) * p.in_channels)];
      for (int64_t c = 0; c < p.in_channels; ++c) {
        if (p.wgrad) {
          of_w[c] += of_x[c] * of_y;
        } else {
          of_x[c] += of_w[c] * of_y;
        }
      }
    }
  });
  return fuzz::RunsExactly(
      *plan, jax_convgrad::DilatedArrays{x_array.data(), w_array.data(), y_array.data(), nullptr},
      result, expected, [](float value) { return value; },
      [&](const char* what) { Print(p, what); });
}

bool Check(const DilatedProblem& p, Random* random) {
  if (!CheckGeometry(p)) {
    Print(p, "wrong geometry");
    return false;
  }
  using Tile = jax_convgrad::DilatedTile<4>;
  const auto sharing = static_cast<jax_convgrad::Sharing>(Between(random, 0, 2));
  if (p.wgrad) {
    const auto plan = jax_convgrad::MakeOf<jax_convgrad::DilatedWgrad<Tile>, Tile>(p, sharing);
    return CheckPlan(p, plan.get(), random);
  }
  const auto plan = jax_convgrad::MakeOf<jax_convgrad::DilatedDgrad<Tile>, Tile>(p, sharing);
  return CheckPlan(p, plan.get(), random);
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::Main(argc, argv, "dilated_fuzz", [](Random* random) {
    const auto too_large = [](const DilatedProblem& p) {
      return jax_convgrad::DilatedRegions(p).size() > jax_convgrad::kMaxDilatedRegions ||
             CountReads(p) * p.in_channels * p.out_channels > 20000000;
    };
    DilatedProblem problem = RandomProblem(random);
    while (too_large(problem)) problem = RandomProblem(random);
    return Check(problem, random);
  });
}
