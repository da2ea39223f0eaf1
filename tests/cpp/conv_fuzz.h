// Convolutions on the processor, as the programs that run kernels over random problems have them:
// printed, computed by plain loops, and compared with every plan for a problem.
//
// A problem is a kernel family's own struct. All have the same sizes under the same names: batch,
// channels, and in, kernel, out, strides, padding_low and dilation of z, y and x.

#ifndef JAX_CONVGRAD_TESTS_CONV_FUZZ_H_
#define JAX_CONVGRAD_TESTS_CONV_FUZZ_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <vector>

#include "cuda/kernels/common/elements.cuh"
#include "fuzz.h"

namespace fuzz {

inline int64_t OneOf(Random* random, std::initializer_list<int64_t> values) {
  return values.begin()[Between(random, 0, static_cast<int64_t>(values.size()) - 1)];
}

template <typename PerAxis>
int64_t Volume(const PerAxis& sizes) {
  return sizes[0] * sizes[1] * sizes[2];
}

template <typename Problem>
int64_t Products(const Problem& p) {
  return p.batch * Volume(p.out) * Volume(p.kernel) * p.in_channels * p.out_channels;
}

template <typename Problem>
void Print(const Problem& p, const std::string& what) {
  const auto list = [](const char* name, const typename Problem::PerAxis& v) {
    std::printf(" %s %ld,%ld,%ld", name, long{v[0]}, long{v[1]}, long{v[2]});
  };
  std::printf("%s: kind %d type %d weights %d batch %ld channels %ld to %ld", what.c_str(),
              static_cast<int>(p.kind), static_cast<int>(p.type), static_cast<int>(p.weights),
              long{p.batch}, long{p.in_channels}, long{p.out_channels});
  list("in", p.in);
  list("kernel", p.kernel);
  list("out", p.out);
  list("strides", p.strides);
  list("padding", p.padding_low);
  list("dilation", p.dilation);
  std::printf(" limit %ld multiprocessors %ld shared %ld\n", long{p.workspace_limit},
              long{p.device.multiprocessors}, long{p.device.shared_bytes});
}

// Calls each(first element of x, tap, first element of y) for each tap of each window.
template <typename Problem, typename Each>
void ForEachTap(const Problem& p, Each each) {
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t o = 0; o < Volume(p.out); ++o) {
      const int64_t at[] = {o / (p.out[1] * p.out[2]), o / p.out[2] % p.out[1], o % p.out[2]};
      for (int64_t k = 0; k < Volume(p.kernel); ++k) {
        const int64_t tap[] = {k / (p.kernel[1] * p.kernel[2]), k / p.kernel[2] % p.kernel[1],
                               k % p.kernel[2]};
        int64_t position = 0;
        bool inside = true;
        for (size_t axis = 0; axis < 3; ++axis) {
          const int64_t i =
              at[axis] * p.strides[axis] + tap[axis] * p.dilation[axis] - p.padding_low[axis];
          inside = inside && i >= 0 && i < p.in[axis];
          position = position * p.in[axis] + i;
        }
        if (!inside) continue;
        each((n * Volume(p.in) + position) * p.in_channels, k,
             (n * Volume(p.out) + o) * p.out_channels);
      }
    }
  }
}

template <typename T>
std::vector<T> Narrowed(const std::vector<float>& numbers) {
  std::vector<T> narrow(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) jax_convgrad::Narrow(numbers[i], &narrow[i]);
  return narrow;
}

// Whether these plans for a problem are exact, in arrays of T. With `with_nan` an element of x may
// be a NaN, which then belongs to the results of its own windows and to no other. `may_be_refused`:
// there may be no plan. `as_tf32`: kernels multiply floats rounded to TF32, so that elements may be
// a quarter of its last bit beside the numbers that they stand for; left out, as the tensor cores
// do it, it would make most of those that are smaller wrong.
template <typename T, typename Arrays, typename Plans, typename Problem>
bool PlansAreExact(const Problem& p, const Plans& plans, Random* random, bool with_nan,
                   bool may_be_refused, bool as_tf32 = false) {
  using Kind = decltype(p.kind);
  using Weights = decltype(p.weights);
  // Sums are exact in float32; what is rounded to 16 bits is rounded once. Sums beyond the largest
  // __half do not occur.
  const auto numbers = [&](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(Between(random, -2, 2));
    return values;
  };
  std::vector<float> x = numbers(p.batch * Volume(p.in) * p.in_channels),
                     w = numbers(Volume(p.kernel) * p.in_channels * p.out_channels),
                     y = numbers(p.batch * Volume(p.out) * p.out_channels);
  if (with_nan && Between(random, 0, 1)) {
    x[static_cast<size_t>(Between(random, 0, static_cast<int64_t>(x.size()) - 1))] = std::nanf("");
  }
  const auto elements = [&](std::vector<float> values) {
    for (float& value : values) {
      if (as_tf32) value *= 1 + static_cast<float>(Between(random, -1, 1)) / 8192;
    }
    return Narrowed<T>(values);
  };
  const Array<T> x_array(elements(x)), w_array(elements(w)), y_array(elements(y));
  const Array<T>& result = p.kind == Kind::kFprop   ? y_array
                           : p.kind == Kind::kDgrad ? x_array
                                                    : w_array;
  std::vector<float>& expected = p.kind == Kind::kFprop ? y : p.kind == Kind::kDgrad ? x : w;
  std::fill(expected.begin(), expected.end(), 0.0f);
  const bool in_out = p.weights == Weights::kInOut;
  ForEachTap(p, [&](int64_t at_x, int64_t tap, int64_t at_y) {
    for (int64_t o = 0; o < p.out_channels; ++o) {
      for (int64_t c = 0; c < p.in_channels; ++c) {
        const int64_t at_w = in_out ? (tap * p.in_channels + c) * p.out_channels + o
                                    : (o * Volume(p.kernel) + tap) * p.in_channels + c;
        float& xi = x[static_cast<size_t>(at_x + c)];
        float& wi = w[static_cast<size_t>(at_w)];
        float& yi = y[static_cast<size_t>(at_y + o)];
        if (p.kind == Kind::kFprop) yi += xi * wi;
        if (p.kind == Kind::kDgrad) xi += yi * wi;
        if (p.kind == Kind::kWgrad) wi += xi * yi;
      }
    }
  });

  if (plans.empty() && !may_be_refused) {
    Print(p, "not taken");
    return false;
  }
  for (const auto& plan : plans) {
    if (plan->workspace_bytes() > p.workspace_limit) {
      Print(p, plan->name() + " takes more workspace than the limit");
      return false;
    }
    if (!RunsExactly(
            *plan, Arrays{x_array.data(), w_array.data(), y_array.data(), nullptr}, result,
            Narrowed<T>(expected), [](T value) { return jax_convgrad::Widen(value); },
            [&](const char* what) { Print(p, plan->name() + " " + what); })) {
      return false;
    }
  }
  return true;
}

}  // namespace fuzz

#endif  // JAX_CONVGRAD_TESTS_CONV_FUZZ_H_
