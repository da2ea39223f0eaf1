// The thin kernels where arrays have more than 2^31 elements, and the plans of extreme problems.
//
// Memory that nothing touches is not there, so that arrays may be larger than the machine's: of a
// large batch the last image is filled, and the blocks that compute it run. It must come out as it
// does alone (thin_kernels_fuzz.cc checks that).

#ifndef JAX_CONVGRAD_TESTS_THIN_LARGE_H_
#define JAX_CONVGRAD_TESTS_THIN_LARGE_H_

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "cuda/kernels/thin/plan.h"
#include "fuzz.h"

namespace thin_large {

using namespace jax_convgrad;  // NOLINT: a test
using T = __nv_bfloat16;

constexpr int64_t kElements = int64_t{1} << 31;

inline int64_t Volume(const ThinProblem::PerAxis& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

// Zeros, and no memory, until they are written.
class Array {
 public:
  explicit Array(int64_t elements, size_t bytes = sizeof(T))
      : bytes_(static_cast<size_t>(elements) * bytes + 1),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    CHECK(data_ != MAP_FAILED);
  }
  Array(const Array&) = delete;
  ~Array() { munmap(data_, bytes_); }
  T* data() const { return static_cast<T*>(data_); }

 private:
  const size_t bytes_;
  void* const data_;
};

struct Sizes {
  explicit Sizes(const ThinProblem& p)
      : x(Volume(p.in) * p.in_channels),
        y(Volume(p.out) * p.out_channels),
        w(Volume(p.kernel) * p.in_channels * p.out_channels) {}
  int64_t x, y, w;  // elements, of x and y in an image
};

// What each plan computes of the last image of a batch, or the last elements of the weights'
// gradient, of which all other images are zeros.
inline std::vector<std::vector<float>> Results(ThinProblem problem, int64_t batch) {
  problem.batch = batch;
  const Sizes sizes(problem);
  const Array x(batch * sizes.x), y(batch * sizes.y), w(sizes.w);
  fuzz::Random random(1);
  const auto fill = [&](T* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      Narrow(static_cast<float>(fuzz::Between(&random, -3, 3)), to + i);
    }
  };
  T* const last_x = x.data() + (batch - 1) * sizes.x;
  T* const last_y = y.data() + (batch - 1) * sizes.y;
  fill(last_x, sizes.x);
  fill(last_y, sizes.y);
  fill(w.data(), sizes.w);
  const bool fprop = problem.kind == ThinKind::kFprop, dgrad = problem.kind == ThinKind::kDgrad;
  T* const result = fprop ? last_y : dgrad ? last_x : w.data();
  const int64_t count = fprop ? sizes.y : dgrad ? sizes.x : sizes.w;
  std::vector<std::vector<float>> results;
  for (const auto& plan : ThinPlan::Candidates(problem)) {
    std::memset(static_cast<void*>(result), 0x2a, static_cast<size_t>(count) * sizeof(T));
    const Array workspace(plan->workspace_bytes(), 1);
    const ThinArrays arrays{x.data(), w.data(), y.data(), workspace.data()};
    CHECK(plan->Run(arrays, nullptr) == cudaSuccess);
    results.emplace_back();
    // The last blocks' part of the weights' gradient.
    const int64_t seen = fprop || dgrad ? count : 512;
    for (int64_t i = count - seen; i < count; ++i) results.back().push_back(Widen(result[i]));
  }
  return results;
}

inline void TestLarge(const char* name, ThinProblem problem, size_t plans) {
  constexpr unsigned kMaxBlocks = 16;
  const Sizes sizes(problem);
  const int64_t batch = kElements / std::max(sizes.x, sizes.y) + 5;
  // A block for each tile, and for wgrad one part of the sums for each image: the last blocks have
  // all of the last image.
  problem.workspace_limit = int64_t{1} << 40;
  problem.device = {batch * kMaxBlocks, 228 * 1024, 227 * 1024};
  emulated_cuda::max_blocks = kMaxBlocks;
  const auto alone = Results(problem, 1);
  const auto last = Results(problem, batch);
  emulated_cuda::max_blocks = 0xffffffff;
  if (alone == last && alone.size() == plans) return;
  std::fprintf(stderr, "%s: %zu plans, %zu for a large batch, or other results\n", name,
               alone.size(), last.size());
  std::exit(1);
}

inline ThinProblem Problem(ThinKind kind, int64_t in_channels, int64_t out_channels, int64_t kernel,
                           int64_t stride, int64_t padding) {
  ThinProblem p;
  p.kind = kind;
  p.in_channels = in_channels;
  p.out_channels = out_channels;
  p.in = {1, 8, 16};
  for (size_t i = 1; i < 3; ++i) {
    p.kernel[i] = kernel;
    p.strides[i] = stride;
    p.padding_low[i] = padding;
    p.out[i] = (p.in[i] + 2 * padding - kernel) / stride + 1;
  }
  return p;
}

inline void TestLargeArrays() {
  // Once x is the larger array, once y.
  TestLarge("windows fprop", Problem(ThinKind::kFprop, 32, 24, 2, 2, 0), 2);
  TestLarge("windows fprop", Problem(ThinKind::kFprop, 24, 192, 2, 2, 0), 2);
  TestLarge("windows dgrad", Problem(ThinKind::kDgrad, 32, 24, 2, 2, 0), 2);
  TestLarge("windows dgrad", Problem(ThinKind::kDgrad, 24, 192, 2, 2, 0), 2);
  TestLarge("image fprop", Problem(ThinKind::kFprop, 12, 8, 5, 1, 2), 2);
  TestLarge("image fprop", Problem(ThinKind::kFprop, 3, 32, 3, 1, 1), 1);
  TestLarge("image dgrad", Problem(ThinKind::kDgrad, 32, 4, 3, 1, 1), 1);
  TestLarge("image dgrad", Problem(ThinKind::kDgrad, 8, 12, 5, 1, 2), 2);
  TestLarge("few outputs fprop", Problem(ThinKind::kFprop, 32, 3, 3, 1, 1), 1);
  TestLarge("few outputs fprop", Problem(ThinKind::kFprop, 24, 12, 1, 1, 1), 1);
  TestLarge("few outputs dgrad", Problem(ThinKind::kDgrad, 3, 32, 3, 2, 1), 1);
  TestLarge("few outputs dgrad", Problem(ThinKind::kDgrad, 12, 24, 2, 2, 1), 1);
  // Many channels: fewer windows, and parts of the sums, make as large an array.
  TestLarge("windows wgrad", Problem(ThinKind::kWgrad, 24, 1 << 12, 2, 2, 0), 2);
  TestLarge("image wgrad", Problem(ThinKind::kWgrad, 3, 1 << 12, 3, 1, 1), 1);
  TestLarge("few outputs wgrad", Problem(ThinKind::kWgrad, 1 << 12, 4, 3, 1, 1), 1);
}

// Sizes beyond any layer's, at the edges of what the plans count to. What they accept can be
// launched; nothing overflows.
inline void TestExtremes() {
  emulated_cuda::max_blocks = 0;
  fuzz::Random random(2);
  const auto size = [&](int64_t max_log) {
    const int64_t log = fuzz::Between(&random, 0, max_log);
    return (int64_t{1} << log) + (log > 2 ? fuzz::Between(&random, -3, 3) : 0);
  };
  const ThinDevice device{132, 228 * 1024, 227 * 1024};
  int accepted = 0;
  const auto check = [&](const ThinProblem& p) {
    for (const auto& plan : ThinPlan::Candidates(p)) {
      CHECK(plan->Run({nullptr, nullptr, nullptr, nullptr}, nullptr) == cudaSuccess);
      CHECK(plan->workspace_bytes() >= 0 && plan->workspace_bytes() <= p.workspace_limit);
      ++accepted;
    }
  };
  for (int i = 0; i < 20000; ++i) {
    ThinProblem p;
    p.kind = static_cast<ThinKind>(fuzz::Between(&random, 0, 2));
    p.batch = size(fuzz::Between(&random, 0, 30));
    const int64_t channels[] = {fuzz::Between(&random, 1, 16), 8 * size(16)};
    const bool many = fuzz::Between(&random, 0, 1) != 0;
    p.in_channels = channels[many];
    p.out_channels = channels[!many];
    for (size_t axis = static_cast<size_t>(fuzz::Between(&random, 0, 2)); axis < 3; ++axis) {
      p.kernel[axis] = std::min<int64_t>(size(6), 64);
      p.dilation[axis] = fuzz::Between(&random, 0, 1) || axis == 2 ? 1 : size(20);
      p.strides[axis] = fuzz::Between(&random, 0, 1) ? 1 : size(24);
      if (fuzz::Between(&random, 0, 2) == 0) p.strides[axis] = p.kernel[axis], p.dilation[axis] = 1;
      p.out[axis] = size(fuzz::Between(&random, 0, 24));
      const int64_t covered =
          (p.out[axis] - 1) * p.strides[axis] + (p.kernel[axis] - 1) * p.dilation[axis] + 1;
      p.padding_low[axis] = fuzz::Between(&random, 0, 1) ? 0 : fuzz::Between(&random, 0, covered);
      p.in[axis] = std::max<int64_t>(1, covered - 2 * p.padding_low[axis]);
    }
    p.workspace_limit = size(40);
    p.device = device;
    check(p);
  }
  // As many rows and planes as there may be.
  for (const ThinKind kind : {ThinKind::kFprop, ThinKind::kDgrad, ThinKind::kWgrad}) {
    for (const int64_t few : {3, 16}) {
      for (const bool many : {false, true}) {
        ThinProblem p;
        p.kind = kind;
        p.in_channels = many ? 8 : few;
        p.out_channels = many ? few : 8;
        for (size_t axis = 0; axis < 2; ++axis) {
          p.kernel[axis] = 64;
          p.dilation[axis] = 1 << 18;
          p.padding_low[axis] = 63 << 17;
          p.out[axis] = 2;
          p.in[axis] = 2;
        }
        p.strides[1] = 1 << 23;
        p.in[1] += p.strides[1] - 1;
        p.workspace_limit = int64_t{1} << 40;
        p.device = device;
        check(p);
      }
    }
  }
  emulated_cuda::max_blocks = 0xffffffff;
  std::printf("%d plans of extreme problems\n", accepted);
  CHECK(accepted > 1000);
}

inline void Test() {
  TestLargeArrays();
  TestExtremes();
}

}  // namespace thin_large

#undef CHECK

#endif  // JAX_CONVGRAD_TESTS_THIN_LARGE_H_
