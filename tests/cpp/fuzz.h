// What the programs that run kernels on the processor have in common: random numbers, arrays of
// their exact size, and the check that every element of a result is written, right, and the same
// twice.

#ifndef JAX_CONVGRAD_TESTS_FUZZ_H_
#define JAX_CONVGRAD_TESTS_FUZZ_H_

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

namespace fuzz {

using Random = std::mt19937_64;

inline int64_t Between(Random* random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(*random);
}

// An array of its exact size, `offset` bytes behind an address that is a multiple of 16.
template <typename T>
class Array {
 public:
  explicit Array(const std::vector<T>& numbers, int64_t offset = 0)
      : bytes_(static_cast<size_t>(offset) + numbers.size() * sizeof(T)),
        memory_(static_cast<char*>(std::malloc(bytes_))),
        data_(reinterpret_cast<T*>(memory_ + offset)),
        size_(numbers.size()) {
    for (size_t i = 0; i < size_; ++i) data_[i] = numbers[i];
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { std::free(memory_); }
  T* data() const { return data_; }
  size_t bytes() const { return size_ * sizeof(T); }

 private:
  const size_t bytes_;
  char* const memory_;
  T* const data_;
  const size_t size_;
};

// Runs a plan twice and says what is wrong through print(text); also that kernels were not loaded
// when the plan was made. `widen` makes numbers of elements,
// which are compared, and not their bits: zero has two signs.
template <typename T, typename Plan, typename Arrays, typename Widen, typename Print>
bool RunsExactly(const Plan& plan, Arrays arrays, const Array<T>& result,
                 const std::vector<T>& expected, const Widen& widen, const Print& print) {
  std::vector<char> first(result.bytes());
  for (int run = 0; run < 2; ++run) {
    const size_t workspace_bytes = static_cast<size_t>(plan.workspace_bytes());
    arrays.workspace = std::malloc(workspace_bytes);
    std::memset(arrays.workspace, 0xff, workspace_bytes);
    // Differs, so that an element left alone shows.
    std::memset(result.data(), run == 0 ? 0x2a : 0x15, result.bytes());
    const cudaError_t status = plan.Run(arrays, nullptr);
    std::free(arrays.workspace);
    if (status != cudaSuccess) {
      print("not launched");
      return false;
    }
    if (emulated_cuda::late_loads > 0) {
      print("loads a kernel at its first launch");
      return false;
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      const double got = static_cast<double>(widen(result.data()[i]));
      const double wanted = static_cast<double>(widen(expected[i]));
      if (got != wanted && !(std::isnan(got) && std::isnan(wanted))) {
        print("wrong");
        std::printf("element %zu: %g, expected %g\n", i, got, wanted);
        return false;
      }
    }
    if (run == 0) std::memcpy(first.data(), result.data(), first.size());
    if (run == 1 && std::memcmp(first.data(), result.data(), first.size()) != 0) {
      print("other bits the second time");
      return false;
    }
  }
  return true;
}

// main of NAME SEED COUNT: check(random) makes and checks the problem of each seed.
template <typename Check>
int Main(int argc, char** argv, const char* name, const Check& check) {
  if (argc != 3) return 2;
  const uint64_t seed = std::strtoull(argv[1], nullptr, 10);
  const int64_t count = std::strtoll(argv[2], nullptr, 10);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a failure shows even if the run is cut off
  int failures = 0;
  for (int64_t i = 0; i < count; ++i) {
    Random random(seed + static_cast<uint64_t>(i));
    emulated_cuda::UnloadAll();
    if (!check(&random)) {
      std::printf("again: %s %llu 1\n", name,
                  static_cast<unsigned long long>(seed + static_cast<uint64_t>(i)));
      ++failures;
    }
  }
  std::printf("%lld problems, %d failures\n", static_cast<long long>(count), failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace fuzz

#endif  // JAX_CONVGRAD_TESTS_FUZZ_H_
