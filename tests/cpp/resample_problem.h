// Random resample problems with their answer in double, for the tests of the compiled code.

#ifndef JAX_CONVGRAD_TESTS_NATIVE_RESAMPLE_PROBLEM_H_
#define JAX_CONVGRAD_TESTS_NATIVE_RESAMPLE_PROBLEM_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "ffi/resample.h"

namespace resample_test {

namespace ffi = ::xla::ffi;
using Shape = std::vector<int64_t>;

inline int64_t Count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

struct Band {
  int64_t taps = 1;
  std::vector<int32_t> start;
  std::vector<double> weights;  // all are floats as well
};

struct Problem {
  Shape x, y;
  std::vector<int64_t> axes;
  std::vector<Band> bands;

  std::string ToString() const {
    std::ostringstream text;
    const auto list = [&text](const char* name, const auto& values) {
      text << name << " (";
      for (const auto& value : values) text << value << ",";
      text << ") ";
    };
    list("x", x);
    list("y", y);
    list("axes", axes);
    for (const Band& band : bands) text << "taps " << band.taps << " ";
    return text.str();
  }
};

// Applies the bands, and their absolute values to |x| for a bound of what rounding may do.
inline std::vector<double> Reference(const Problem& problem, std::vector<double> x, bool absolute) {
  Shape shape = problem.x;
  for (size_t k = 0; k < problem.axes.size(); ++k) {
    const size_t axis = static_cast<size_t>(problem.axes[k]);
    const Band& band = problem.bands[k];
    const int64_t out = problem.y[axis], in = shape[axis];
    int64_t outer = 1, inner = 1;
    for (size_t i = 0; i < axis; ++i) outer *= shape[i];
    for (size_t i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
    std::vector<double> y(static_cast<size_t>(outer * out * inner), 0.0);
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < out; ++i) {
        for (int64_t t = 0; t < band.taps; ++t) {
          double weight = band.weights[static_cast<size_t>(i * band.taps + t)];
          if (weight == 0) continue;  // not read, so that it may be infinite
          if (absolute) weight = std::abs(weight);
          const int64_t at = band.start[static_cast<size_t>(i)] + t;
          for (int64_t c = 0; c < inner; ++c) {
            double value = x[static_cast<size_t>((o * in + at) * inner + c)];
            if (absolute) value = std::abs(value);
            y[static_cast<size_t>((o * out + i) * inner + c)] += weight * value;
          }
        }
      }
    }
    x = std::move(y);
    shape[axis] = out;
  }
  return x;
}

// Evenly spaced starts as resizes have them, clamped ones at the ends, and now and then any order,
// or what the gradient of an upsampling by a whole number is: no weight is zero but at the ends. As
// `regular` as images are, there is no other order, and whole numbers are that.
template <typename Random>
Band RandomBand(Random& random, int64_t in, int64_t out, int64_t taps, bool integers,
                bool regular = false) {
  Band band;
  band.taps = taps;
  const double step = static_cast<double>(in) / static_cast<double>(out);
  const int kind = regular ? 6 : static_cast<int>(random() % 8);
  const double slope = kind == 1 ? 2.0 * step : kind == 2 ? 0.3 * step : kind == 3 ? -step : step;
  const double origin = kind == 3 ? static_cast<double>(in) : -0.5 * static_cast<double>(taps);
  if (kind >= 6 && in % out == 0 && taps >= in / out) {
    const int64_t before = (taps - in / out) / 2;
    for (int64_t i = 0; i < out; ++i) {
      const int64_t first = i * (in / out) - before;
      const int64_t start = std::clamp<int64_t>(first, 0, in - taps);
      band.start.push_back(static_cast<int32_t>(start));
      for (int64_t at = start; at < start + taps; ++at) {
        const double weight = integers ? static_cast<double>(random() % 3) + 1.0
                                       : static_cast<double>(random() % 10000 + 1) / 10000.0;
        band.weights.push_back(at < first || at >= first + taps ? 0 : static_cast<float>(weight));
      }
    }
    return band;
  }
  if (kind >= 6 && out % in == 0 && out > in && taps <= 2) {
    for (int64_t i = 0; i < out; ++i) {
      const double place = (static_cast<double>(i) + 0.5) * step - (taps == 2 ? 0.5 : 0.0);
      const int64_t first = static_cast<int64_t>(std::floor(place));
      const int64_t start = std::clamp<int64_t>(first, 0, in - taps);
      band.start.push_back(static_cast<int32_t>(start));
      for (int64_t at = start; at < start + taps; ++at) {
        const bool inside = at >= first && at < first + taps;
        band.weights.push_back(!inside || random() % 8 == 0 ? 0.0
                               : integers ? static_cast<double>(random() % 3) + 1.0
                                          : static_cast<double>(static_cast<float>(
                                                static_cast<double>(random() % 10000) / 10000.0)));
      }
    }
    return band;
  }
  for (int64_t i = 0; i < out; ++i) {
    const int64_t max_start = in - taps;
    int64_t start = static_cast<int64_t>(origin + slope * static_cast<double>(i));
    if (kind == 0) start = static_cast<int64_t>(random() % static_cast<uint64_t>(max_start + 1));
    band.start.push_back(static_cast<int32_t>(std::clamp<int64_t>(start, 0, max_start)));
    const bool zero = random() % 16 == 0;
    for (int64_t t = 0; t < taps; ++t) {
      double weight = integers ? static_cast<double>(random() % 7) - 3.0
                               : static_cast<double>(random() % 20001) / 10000.0 - 1.0;
      if (zero || random() % 8 == 0) weight = 0;
      band.weights.push_back(static_cast<float>(weight));
    }
  }
  return band;
}

template <typename Random>
Problem RandomProblem(Random& random, int64_t max_elements, bool integers) {
  const auto pick = [&random](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  for (;;) {
    Problem problem;
    const int count = 1 + static_cast<int>(random() % 3);
    const size_t rank = static_cast<size_t>(count) + random() % 4;
    for (size_t i = 0; i < rank; ++i) {
      problem.x.push_back(pick({1, 2, 3, 4, 5, 7, 8, 12, 16, 21, 24, 32, 33, 48, 64, 100, 130}));
    }
    std::vector<int64_t> places;
    for (size_t i = 0; i < rank; ++i) places.push_back(static_cast<int64_t>(i));
    std::shuffle(places.begin(), places.end(), random);
    places.resize(static_cast<size_t>(count));
    std::sort(places.begin(), places.end());
    problem.axes = places;
    problem.y = problem.x;
    for (int64_t axis : problem.axes) {
      const size_t at = static_cast<size_t>(axis);
      if (random() % 16 == 0) problem.x[at] = pick({300, 700, 1500});
      const int64_t in = problem.x[at];
      const int64_t outs[] = {2 * in, in / 2, 4 * in,     in / 4,     8 * in,
                              in / 8, in,     in * 5 / 2, in * 2 / 5, pick({1, 2, 3, 9, 17, 40})};
      problem.y[at] = std::max<int64_t>(1, outs[random() % 10]);
    }
    if (Count(problem.x) > max_elements || Count(problem.y) > max_elements) continue;
    for (int64_t axis : problem.axes) {
      const size_t at = static_cast<size_t>(axis);
      const int64_t in = problem.x[at], out = problem.y[at];
      const int64_t reach = std::max<int64_t>(1, in / out);
      int64_t taps = pick({1, 2, 3, 4, 6, 8, reach, 2 * reach, 4 * reach, 7 * reach});
      if (random() % 20 == 0) taps = in;
      problem.bands.push_back(
          RandomBand(random, in, out, std::clamp<int64_t>(taps, 1, in), integers));
    }
    return problem;
  }
}

// Images, whose height and width become about as much larger or smaller. Their sizes are such as
// the kernels for them have.
template <typename Random>
Problem ImageProblem(Random& random, int64_t max_elements, bool integers) {
  const auto pick = [&random](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  for (;;) {
    Problem problem;
    problem.x = {pick({1, 2, 3, 5})};
    const int count = random() % 4 == 0 ? 3 : 2;
    const bool grow = random() % 2 == 0, odd = grow && random() % 2 == 0;
    const int64_t factor = pick({2, 2, 2, 4, 8, 0}), taps = pick({1, 2, 2, 2, 3, 6});
    problem.y = problem.x;
    for (int k = 0; k < count; ++k) {
      const int64_t in = pick({8, 16, 16, 24, 32, 32, 65, 96});
      const int64_t out =
          factor == 0 ? (grow ? in * 16 / 7 : in * 7 / 16) : (grow ? in * factor : in / factor);
      problem.axes.push_back(k + 1);
      problem.x.push_back(in);
      problem.y.push_back(std::max<int64_t>(1, out + (odd ? 1 : 0)));
    }
    const int64_t inner = pick({1, 1, 1, 3});
    if (inner > 1) {
      problem.x.push_back(inner);
      problem.y.push_back(inner);
    }
    if (Count(problem.x) > max_elements || Count(problem.y) > max_elements) continue;
    const bool regular = random() % 4 != 0;
    for (int64_t axis : problem.axes) {
      const int64_t in = problem.x[static_cast<size_t>(axis)];
      const int64_t out = problem.y[static_cast<size_t>(axis)];
      const int64_t reach = grow ? taps : std::max<int64_t>(1, taps * in / out);
      problem.bands.push_back(
          RandomBand(random, in, out, std::clamp<int64_t>(reach, 1, in), integers, regular));
    }
    return problem;
  }
}

// The FFI structures of a call, for code that takes them.
struct Call {
  std::vector<std::vector<int64_t>> shapes;
  std::vector<XLA_FFI_Buffer> buffers;
  std::vector<void*> pointers;
  std::vector<XLA_FFI_ArgType> types;
  XLA_FFI_Args args{};

  void Add(ffi::DataType type, const Shape& shape, void* data) {
    shapes.push_back(shape);
    XLA_FFI_Buffer buffer{};
    buffer.struct_size = XLA_FFI_Buffer_STRUCT_SIZE;
    buffer.dtype = static_cast<XLA_FFI_DataType>(type);
    buffer.data = data;
    buffer.rank = static_cast<int64_t>(shape.size());
    buffers.push_back(buffer);
  }

  void Finish() {
    for (size_t i = 0; i < buffers.size(); ++i) {
      buffers[i].dims = shapes[i].data();
      pointers.push_back(&buffers[i]);
      types.push_back(XLA_FFI_ArgType_BUFFER);
    }
    args.struct_size = XLA_FFI_Args_STRUCT_SIZE;
    args.size = static_cast<int64_t>(pointers.size());
    args.types = types.data();
    args.args = pointers.data();
  }
};

}  // namespace resample_test

#endif  // JAX_CONVGRAD_TESTS_NATIVE_RESAMPLE_PROBLEM_H_
