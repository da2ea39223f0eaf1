// The resize kernels on the processor, over random problems: answers compared with double, inside
// their arrays, every element of the result written.
//
//   resample_fuzz SEED COUNT
//   resample_fuzz launches SEED COUNT   that CUDA would take the launches of many sizes, also of
//                                       those that are too large to be run here

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "cuda/kernels/resample/launch.cu"
#include "resample_problem.h"

namespace {

using namespace jax_convgrad;  // NOLINT: a test
using resample_test::Call;
using resample_test::Problem;

template <typename T>
struct TypeOf;
template <>
struct TypeOf<float> {
  static constexpr auto kType = xla::ffi::DataType::F32;
  static constexpr double kRounding = 0x1p-24;
};
template <>
struct TypeOf<double> {
  static constexpr auto kType = xla::ffi::DataType::F64;
  static constexpr double kRounding = 0x1p-53;
};
template <>
struct TypeOf<resample_kernels::BFloat16> {
  static constexpr auto kType = xla::ffi::DataType::BF16;
  static constexpr double kRounding = 0x1p-8;
};
template <>
struct TypeOf<resample_kernels::Half> {
  static constexpr auto kType = xla::ffi::DataType::F16;
  static constexpr double kRounding = 0x1p-11;
};

constexpr int64_t kMultiprocessors = 132;  // of an H100

// Whether a kernel gets as many threads as it was compiled for, in whole warps, and no more shared
// memory than there is: CUDA refuses to launch it otherwise.
template <typename T>
bool CanLaunch(const ResampleForm& form, uintptr_t x, uintptr_t y) {
  const ResampleTask task =
      MakeResampleTask(form, sizeof(T), reinterpret_cast<void*>(x), reinterpret_cast<void*>(y));
  const auto& instances = InstancesOf<T>().values;
  const ResampleChoice choice =
      ChooseResampleInstance(GetResampleNeeds(task, sizeof(T)), instances);
  const ResampleInstance& instance = instances[choice.row];
  const ResampleTiling tiling =
      ChooseResampleTiling(task, choice.needs, instance, sizeof(T),
                           GetResampleLimits(choice.needs, instance, sizeof(T), kMultiprocessors));
  const int max_threads = choice.needs.load == ResampleLoad::kFlat ? kFlatThreads : kMaxThreads;
  if (tiling.blocks == 0 || (tiling.threads <= max_threads && tiling.threads % 32 == 0 &&
                             tiling.shared_bytes <= kMaxSharedBytes)) {
    return true;
  }
  std::printf(
      "%lld x %lld x %lld of %lld to %lld x %lld, %lld and %lld taps, %d bytes: row %d, %d "
      "threads, at most %d, %d bytes shared\n",
      static_cast<long long>(form.batches()), static_cast<long long>(form.height.in),
      static_cast<long long>(form.width.in), static_cast<long long>(form.inner),
      static_cast<long long>(form.height.out), static_cast<long long>(form.width.out),
      static_cast<long long>(form.height.taps), static_cast<long long>(form.width.taps),
      static_cast<int>(sizeof(T)), choice.row, tiling.threads, max_threads, tiling.shared_bytes);
  return false;
}

// Images, their rows resampled, or their columns, or both.
ResampleForm Image(int64_t batch, const ResampleAxis& height, const ResampleAxis& width,
                   int64_t inner) {
  ResampleForm form;
  form.work = ResampleForm::Work::kBands;
  form.batch[0] = batch;
  form.height = height;
  form.width = width;
  form.inner = inner;
  form.x_row = width.in * inner;
  form.y_row = width.out * inner;
  form.x_batch[0] = form.x_batch[1] = form.x_batch[2] = height.in * form.x_row;
  form.y_batch[0] = form.y_batch[1] = form.y_batch[2] = height.out * form.y_row;
  return form;
}

bool CanLaunchAll(const ResampleForm& form, uintptr_t shift) {
  const uintptr_t x = uintptr_t{1} << 20, y = uintptr_t{1} << 40;
  return CanLaunch<float>(form, x + 4 * shift, y + 4 * shift) &&
         CanLaunch<double>(form, x + 8 * shift, y + 8 * shift) &&
         CanLaunch<resample_kernels::BFloat16>(form, x + 2 * shift, y + 2 * shift) &&
         CanLaunch<resample_kernels::Half>(form, x + 2 * shift, y + 2 * shift);
}

bool CheckLaunches(unsigned seed, int problems) {
  // What most people do: all lines of up to so many elements, grown and shrunk by whole factors.
  for (int64_t line = 1; line <= 700; ++line) {
    for (int64_t factor : {2, 3, 4, 5, 7, 8}) {
      for (int64_t taps : {1, 2, 4}) {
        const ResampleAxis grow{true, line, factor * line, std::min(taps, line)};
        const ResampleAxis shrink{true, factor * line, line,
                                  std::min(taps * factor, factor * line)};
        if (!CanLaunchAll(Image(8, grow, grow, 1), 0)) return false;
        if (!CanLaunchAll(Image(8, shrink, shrink, 1), 0)) return false;
      }
    }
  }
  std::mt19937_64 random(seed);
  const auto size = [&random] {
    return static_cast<int64_t>(1 + random() % (random() % 3000 + 1));
  };
  const auto axis = [&] {
    const int64_t in = size();
    const int64_t factor = static_cast<int64_t>(1 + random() % 9);
    const int64_t outs[] = {in, size(), in * factor, std::max<int64_t>(1, in / factor)};
    const int64_t out = outs[random() % 4];
    if (out == in && random() % 2 == 0) return ResampleAxis{false, in, in};
    const int64_t max_taps = random() % 2 == 0 ? 4 : 300;
    return ResampleAxis{
        true, in, out,
        std::min(in, 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(max_taps)))};
  };
  const int64_t inners[] = {1, 1, 2, 3, 4, 8, 17, 64, 1000};
  for (int i = 0; i < problems; ++i) {
    ResampleAxis height = axis();
    const ResampleAxis width = axis();
    if (!width.resampled && !height.resampled) height = ResampleAxis{true, 7, 14, 2};
    if (!CanLaunchAll(Image(size(), height, width, inners[random() % 9]), random() % 2)) {
      return false;
    }
  }
  return true;
}

// Problems by the kernel that took them.
struct Counts {
  int loads[10] = {}, gathered = 0, long_bands = 0;
};

template <typename T, typename Random>
bool Check(Random& random, Counts& counts) {
  using Sum = typename resample_kernels::SumOf<T>::Type;
  const bool integers = random() % 2 == 0;
  const Problem problem = random() % 3 == 0 ? resample_test::RandomProblem(random, 60000, integers)
                                            : resample_test::ImageProblem(random, 60000, integers);

  const size_t x_count = static_cast<size_t>(resample_test::Count(problem.x));
  const size_t y_count = static_cast<size_t>(resample_test::Count(problem.y));
  // Arrays may lie anywhere that their elements may.
  const size_t shift = random() % 4 == 0 ? 1 : 0;
  const auto array = [shift](size_t count) {
    const size_t bytes = (count + shift) * sizeof(T);
    return std::unique_ptr<char, decltype(&std::free)>(
        static_cast<char*>(std::aligned_alloc(16, (bytes + 15) / 16 * 16)), &std::free);
  };
  const auto x_memory = array(x_count), y_memory = array(y_count);
  T* const x = reinterpret_cast<T*>(x_memory.get()) + shift;
  T* const y = reinterpret_cast<T*>(y_memory.get()) + shift;
  std::memset(static_cast<void*>(y), 0xff, y_count * sizeof(T));
  std::vector<double> exact(x_count);
  const bool infinities = random() % 4 == 0;
  for (size_t i = 0; i < x_count; ++i) {
    const bool infinite = infinities && random() % 16 == 0;
    const double value = infinite   ? HUGE_VAL
                         : integers ? static_cast<double>(random() % 5) - 2.0
                                    : static_cast<double>(random() % 20001) / 10000.0 - 1.0;
    resample_kernels::FromSum(static_cast<Sum>(value), x[i]);
    exact[i] = resample_kernels::ToSum(x[i]);
  }

  Call call;
  call.Add(TypeOf<T>::kType, problem.x, x);
  std::vector<std::vector<Sum>> weights;
  for (const auto& band : problem.bands) {
    weights.emplace_back(band.weights.begin(), band.weights.end());
  }
  for (size_t k = 0; k < problem.axes.size(); ++k) {
    const int64_t out = problem.y[static_cast<size_t>(problem.axes[k])];
    call.Add(xla::ffi::DataType::S32, {out}, const_cast<int32_t*>(problem.bands[k].start.data()));
    call.Add(sizeof(T) == 8 ? xla::ffi::DataType::F64 : xla::ffi::DataType::F32,
             {out, problem.bands[k].taps}, weights[k].data());
  }
  call.Add(TypeOf<T>::kType, problem.y, y);
  call.Finish();
  XLA_FFI_Args operands = call.args;
  operands.size -= 1;
  const ResampleConfig config{{problem.axes.data(), problem.axes.size()}};
  const auto form = MakeResampleForm(config, xla::ffi::AnyBuffer(&call.buffers.front()),
                                     xla::ffi::RemainingArgs(&operands, 1),
                                     xla::ffi::AnyBuffer(&call.buffers.back()), 64);
  if (form.has_error()) {
    std::printf("%s: %s\n", problem.ToString().c_str(), form.error().message().c_str());
    return false;
  }

  ResampleTask task = MakeResampleTask(*form, sizeof(T), x, y);
  const int threads[] = {32, 96, 128, 256};
  const ResampleLimits limits{threads[random() % 4], random() % 2 == 0 ? 1 : 200000,
                              random() % 2 == 0 ? 0.1 : 10.0, random() % 2 == 0 ? 0 : 20000,
                              kMultiprocessors};
  // What would be launched, or as if arrays were not aligned, or no instance had enough rows.
  ResampleNeeds needs = GetResampleNeeds(task, sizeof(T));
  if (needs.load == ResampleLoad::kWindow && random() % 4 == 0) needs.load = ResampleLoad::kStrip;
  // Staged or not, whatever the number of taps.
  const ResampleAxis& width = form->width;
  const bool stageable =
      needs.grow && width.resampled && width.out >= width.in && form->inner <= 16;
  if (needs.load == ResampleLoad::kElements && stageable && random() % 2 == 0) {
    needs.load = ResampleLoad::kStaged;
  } else if (needs.load == ResampleLoad::kStaged && random() % 4 == 0) {
    needs.load = ResampleLoad::kElements;
  }
  // Columns, pairs and shifted or not, however many taps there are and however much rows grow.
  const bool whole = task.mid.out == 1 && needs.mid_taps == 1 && sizeof(T) <= 4;
  const bool strip = needs.load == ResampleLoad::kStrip || needs.load == ResampleLoad::kColumns;
  if (strip && whole && needs.aligned >= 4 && form->inner <= 4 && width.in >= 2 * width.out) {
    needs.load = random() % 2 == 0 ? ResampleLoad::kPairs : ResampleLoad::kStrip;
    if (form->inner == 1 && sizeof(T) == 4 && random() % 4 != 0) {
      needs.load = ResampleLoad::kColumns;
    }
  } else if (needs.load == ResampleLoad::kElements && needs.grow && whole && random() % 2 == 0) {
    needs.load = ResampleLoad::kShifted;
  }
  const int64_t line = width.out;
  // Flat, however short lines are and however little rows grow.
  const bool flat =
      (needs.load == ResampleLoad::kShifted || needs.load == ResampleLoad::kElements) && whole &&
      needs.grow && task.walk.resampled && form->inner == 1 && sizeof(T) == 2 && line % 2 != 0 &&
      line == task.y_walk && line <= kFlatVector * 32 - 2 && needs.rows <= 2 && needs.taps <= 2;
  if (flat && random() % 8 != 0) needs.load = ResampleLoad::kFlat;
  if (needs.load != ResampleLoad::kVectors && random() % 4 == 0) needs.aligned = 1;
  if (random() % 8 == 0) needs.rows = 1000;
  const Instances<T>& instances = InstancesOf<T>();
  const ResampleChoice choice = ChooseResampleInstance(needs, instances.values);
  task.tiling =
      ChooseResampleTiling(task, choice.needs, instances.values[choice.row], sizeof(T), limits);
  cudaError_t status;
  if (task.tiling.blocks > 0) {
    ++counts.loads[static_cast<int>(choice.needs.load)];
    counts.gathered += choice.needs.gather;
    status = Launch(instances.kernels[choice.row], task, task.tiling, nullptr);
  } else {
    ++counts.long_bands;
    status = LaunchLongBands<T>(task, nullptr);
  }
  if (status != cudaSuccess) {
    std::printf("%s: not launched\n", problem.ToString().c_str());
    return false;
  }

  const std::vector<double> expected = resample_test::Reference(problem, exact, false);
  const std::vector<double> scale = resample_test::Reference(problem, exact, true);
  int64_t terms = 4;
  for (const auto& band : problem.bands) terms += band.taps;
  const double unit = sizeof(T) == 8 ? 0x1p-53 : 0x1p-24;
  for (size_t i = 0; i < y_count; ++i) {
    const double got = resample_kernels::ToSum(y[i]);
    if (!std::isfinite(expected[i])) {
      if (got == expected[i] || (std::isnan(got) && std::isnan(expected[i]))) continue;
      std::printf("%s: element %zu is %g, expected %g\n", problem.ToString().c_str(), i, got,
                  expected[i]);
      return false;
    }
    // One rounding to T (f16 has subnormals), and those of the sums.
    double bound = std::max(std::abs(expected[i]) * TypeOf<T>::kRounding,
                            sizeof(T) == 2 && TypeOf<T>::kRounding < 0x1p-9 ? 0x1p-25 : 0.0) +
                   static_cast<double>(terms) * unit * scale[i];
    bound *= 1.01;
    const bool overflows = std::isinf(got) && std::abs(expected[i]) > 65000;
    if (!(std::abs(got - expected[i]) <= bound) && !overflows) {
      std::printf(
          "%s: element %zu is %g, expected %g within %g (load %d, aligned %d, grow %d, rows "
          "%d, taps %d, columns %d, chunk %d, table_rows %d, line_threads %d, lines %d)\n",
          problem.ToString().c_str(), i, got, expected[i], bound, static_cast<int>(needs.load),
          static_cast<int>(needs.aligned), needs.grow, static_cast<int>(needs.rows),
          static_cast<int>(needs.taps), task.tiling.columns, task.tiling.chunk,
          task.tiling.table_rows, task.tiling.line_threads, task.tiling.lines);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a failure shows even if the run is cut off
  if (argc == 4 && std::string(argv[1]) == "launches") {
    return CheckLaunches(static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10)),
                         std::atoi(argv[3]))
               ? 0
               : 1;
  }
  if (argc != 3) return 2;
  const uint64_t seed = std::strtoull(argv[1], nullptr, 10);
  const int problems = std::atoi(argv[2]);
  int failures = 0;
  Counts counts;
  // 250 problems and more go on until every load has been drawn; the rarest is one in 200.
  const auto misses_load = [&] {
    return problems >= 250 && *std::min_element(counts.loads, counts.loads + 10) == 0;
  };
  for (int i = 0; i < problems || (misses_load() && i < 10 * problems); ++i) {
    std::mt19937_64 random(seed + static_cast<uint64_t>(i));
    bool right = false;
    // Mostly of the types that have the most kernels.
    switch (random() % 8) {
      case 0:
      case 1:
      case 2:
        right = Check<float>(random, counts);
        break;
      case 3:
      case 4:
      case 5:
        right = Check<resample_kernels::BFloat16>(random, counts);
        break;
      case 6:
        right = Check<double>(random, counts);
        break;
      default:
        right = Check<resample_kernels::Half>(random, counts);
        break;
    }
    if (!right) {
      std::printf("again: resample_fuzz %llu 1\n",
                  static_cast<unsigned long long>(seed + static_cast<uint64_t>(i)));
      ++failures;
    }
  }
  std::printf(
      "%d of vectors, %d of elements, %d staged, %d of windows, %d of strips, %d of pairs, %d "
      "of columns, %d spread, %d shifted, %d flat; %d gathered, %d long\n",
      counts.loads[0], counts.loads[1], counts.loads[2], counts.loads[3], counts.loads[4],
      counts.loads[5], counts.loads[6], counts.loads[7], counts.loads[8], counts.loads[9],
      counts.gathered, counts.long_bands);
  if (misses_load()) ++failures;
  std::printf("%d problems, %d failures\n", problems, failures);
  return failures == 0 ? 0 : 1;
}
