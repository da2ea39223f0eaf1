// Every instruction set's kernels of resample on the CPU, also those that the handler would not
// choose on this processor, against double. Meant to be built with AddressSanitizer.
//
//   resample_sets_test SEED PROBLEMS

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "cpu/kernels/resample/plan.h"
#include "cpu/kernels/resample/tile.h"
#include "resample_problem.h"

namespace {

using namespace jax_convgrad;  // NOLINT: a test
using resample_test::Call;
using resample_test::Problem;
using xla::ffi::DataType;

struct Set {
  const char* name;
  bool there;
  ResampleKernels kernels;
};

double ToDouble(DataType type, const char* from) {
  if (type == DataType::F64) {
    double value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  if (type == DataType::F16) {
    _Float16 value;
    std::memcpy(&value, from, sizeof(value));
    return static_cast<double>(value);
  }
  float value;
  uint32_t bits = 0;
  std::memcpy(
      type == DataType::BF16 ? reinterpret_cast<char*>(&bits) + 2 : reinterpret_cast<char*>(&bits),
      from, type == DataType::BF16 ? 2 : 4);
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

void FromDouble(DataType type, double value, char* to) {
  const float single = static_cast<float>(value);
  const _Float16 half = static_cast<_Float16>(single);
  switch (type) {
    case DataType::F64:
      std::memcpy(to, &value, 8);
      return;
    case DataType::F16:
      std::memcpy(to, &half, 2);
      return;
    case DataType::BF16:  // truncated: any number of the type will do
      std::memcpy(to, reinterpret_cast<const char*>(&single) + 2, 2);
      return;
    default:
      std::memcpy(to, &single, 4);
  }
}

double RoundingOf(DataType type) {
  return type == DataType::F16    ? 0x1p-11
         : type == DataType::BF16 ? 0x1p-8
         : type == DataType::F32  ? 0x1p-24
                                  : 0x1p-53;
}

template <typename Random>
bool Check(Random& random, const Set& set) {
  const DataType types[] = {DataType::F16, DataType::BF16, DataType::F32, DataType::F64};
  const DataType type = types[random() % 4];
  const size_t width = xla::ffi::ByteWidth(type);
  const bool integers = random() % 2 == 0, is_double = type == DataType::F64;
  const Problem problem = resample_test::RandomProblem(random, 60000, integers);
  const size_t x_count = static_cast<size_t>(resample_test::Count(problem.x));
  const size_t y_count = static_cast<size_t>(resample_test::Count(problem.y));
  std::vector<char> x(x_count * width), y(y_count * width, static_cast<char>(0xff));
  std::vector<double> exact(x_count);
  for (size_t i = 0; i < x_count; ++i) {
    // Down to float16's subnormal numbers.
    const double scale = integers || random() % 8 != 0 ? 1 : 0x1p-16;
    const double value = integers ? static_cast<double>(random() % 5) - 2.0
                                  : scale * (static_cast<double>(random() % 20001) / 10000.0 - 1);
    FromDouble(type, value, &x[i * width]);
    exact[i] = ToDouble(type, &x[i * width]);
  }
  Call call;
  call.Add(type, problem.x, x.data());
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<double>> doubles;
  for (const auto& band : problem.bands) {
    floats.emplace_back(band.weights.begin(), band.weights.end());
    doubles.push_back(band.weights);
  }
  for (size_t k = 0; k < problem.axes.size(); ++k) {
    const int64_t out = problem.y[static_cast<size_t>(problem.axes[k])];
    call.Add(DataType::S32, {out}, const_cast<int32_t*>(problem.bands[k].start.data()));
    call.Add(is_double ? DataType::F64 : DataType::F32, {out, problem.bands[k].taps},
             is_double ? static_cast<void*>(doubles[k].data()) : floats[k].data());
  }
  call.Add(type, problem.y, y.data());
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
  const auto plan = MakeResamplePlan(*form, type, x.data(), y.data(), set.kernels.lanes,
                                     1 + static_cast<int64_t>(random() % 8));
  if (plan.has_error()) {
    std::printf("%s: %s\n", problem.ToString().c_str(), plan.error().message().c_str());
    return false;
  }
  const size_t scratch_bytes = (plan->scratch_bytes() + 63) / 64 * 64;
  char* const scratch =
      static_cast<char*>(std::aligned_alloc(64, std::max<size_t>(64, scratch_bytes)));
  std::memset(scratch, 0xff, scratch_bytes);
  for (int64_t tile = 0; tile < plan->tile_count(); ++tile) {
    set.kernels.run_tile(*plan, type, tile, scratch);
  }
  std::free(scratch);

  const std::vector<double> expected = resample_test::Reference(problem, exact, false);
  const std::vector<double> scale = resample_test::Reference(problem, exact, true);
  double terms = 4;
  for (const auto& band : problem.bands) terms += static_cast<double>(band.taps);
  for (size_t i = 0; i < y_count; ++i) {
    const double got = ToDouble(type, &y[i * width]);
    double bound = std::abs(expected[i]) * RoundingOf(type) +
                   terms * std::min(RoundingOf(type), 0x1p-24) * scale[i];
    if (type == DataType::F16) bound = std::max(bound, 0x1p-25 + terms * 0x1p-24 * scale[i]);
    const bool overflows =
        type == DataType::F16 && std::isinf(got) && std::abs(expected[i]) > 65000;
    if (!(std::abs(got - expected[i]) <= 1.01 * bound) && !overflows) {
      std::printf("%s: %s: element %zu is %g, expected %g within %g\n", set.name,
                  problem.ToString().c_str(), i, got, expected[i], bound);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned seed = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 0;
  const int problems = argc > 2 ? std::atoi(argv[2]) : 1000;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const Set sets[] = {
      {"sse2", true, {4, resample_sse2::RunTile}},
      {"avx2", avx2, {8, resample_avx2::RunTile}},
      {"avx512",
       avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"),
       {16, resample_avx512::RunTile}},
  };
  for (const Set& set : sets) {
    for (int i = 0; set.there && i < problems; ++i) {
      std::mt19937_64 random(seed + static_cast<unsigned>(i));
      if (!Check(random, set)) {
        std::printf("resample_sets_test %u 1\n", seed + static_cast<unsigned>(i));
        return 1;
      }
    }
    std::printf("%s: %d problems\n", set.name, set.there ? problems : 0);
  }
  return 0;
}
