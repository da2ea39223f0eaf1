#include "cpu/kernels/depthwise/backward.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "cpu/kernels/bfloat16.h"
#include "cpu/kernels/depthwise/kernels.h"
#include "cpu/kernels/depthwise/weights.h"
#include "cpu/runtime/parallel_for.h"
#include "cpu/runtime/scratch.h"
#include "ffi/checked.h"

namespace jax_convgrad {
namespace {

namespace ffi = ::xla::ffi;

constexpr int64_t kTasksPerThread = 4;

template <typename T>
void Run(ffi::ThreadPool& pool, const DepthwiseBackwardCall& call) {
  const DepthwiseSizes g(call.geometry);
  const DepthwiseKernels<T>& kernels = FindDepthwiseKernels<T>(g.channels);
  const int64_t lanes = kernels.lanes, taps = g.taps();
  const DepthwiseBlocks vectors{g.channels, lanes};
  const int64_t blocks = vectors.count(), block_sums = (taps + 1) * lanes;
  const int64_t workers = std::min(NumThreads(pool), g.rows_of_x());

  // More tasks than threads, as far as their sums fit: a thread may be late.
  const size_t task_bytes = MultipliedBytes(
      MultipliedBytes(static_cast<size_t>(blocks), static_cast<size_t>(block_sums)), sizeof(float));
  const int64_t room = static_cast<int64_t>(kMaxScratchBytes / task_bytes);
  const int64_t tasks =
      std::clamp(room, workers, std::min(workers * kTasksPerThread, g.rows_of_x()));
  const Scratch weights(task_bytes);
  const Scratch sums(MultipliedBytes(static_cast<size_t>(tasks), task_bytes));
  const bool buffered = !std::is_same<T, float>::value || call.dx == nullptr;
  const Scratch rows(buffered
                         ? MultipliedBytes(static_cast<size_t>(workers * lanes) * sizeof(float),
                                           static_cast<size_t>(g.in[2]))
                         : 1);
  float* const w = reinterpret_cast<float*>(weights.data());
  float* const totals = reinterpret_cast<float*>(sums.data());  // those of the first task
  std::vector<TapReach> reach;
  for (int64_t phase = 0; phase < std::min(g.strides[2], g.in[2]); ++phase) {
    reach.push_back(ReachOf(g, 2, phase));
  }
  const DepthwiseWeightPlaces places(g, call.geometry.spatial, call.w_strides);
  PackWeights(places, vectors, taps, static_cast<const T*>(call.w), w);
  const DepthwiseSweepWork<T> work{
      g,
      static_cast<int64_t>(reach.size()),
      reach.data(),
      static_cast<const T*>(call.x),
      static_cast<const T*>(call.dy),
      static_cast<T*>(call.dx),
      w,
      tasks,
      totals,
      call.db != nullptr,
      buffered ? reinterpret_cast<float*>(rows.data()) : nullptr,
  };
  ParallelFor(pool, workers, tasks,
              [&](int64_t task, int64_t worker) { kernels.sweep(work, task, worker); });
  for (int64_t task = 1; task < tasks; ++task) {
    const float* const from = totals + task * blocks * block_sums;
    for (int64_t i = 0; i < blocks * block_sums; ++i) totals[i] += from[i];
  }
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t channel = vectors.channel(block, lane);
      if (channel >= g.channels) break;
      const float* const from = totals + block * block_sums + lane;
      for (int64_t tap = 0; tap < taps && call.dw != nullptr; ++tap) {
        Narrow(from[tap * lanes], static_cast<T*>(call.dw) + places.at(channel, tap));
      }
      if (call.db != nullptr) Narrow(from[taps * lanes], static_cast<T*>(call.db) + channel);
    }
  }
}

template <typename T>
void Sum(const T* dy, int64_t rows, int64_t channels, T* db) {
  for (int64_t channel = 0; channel < channels; ++channel) {
    double total = 0.0;
    for (int64_t row = 0; row < rows; ++row) total += Widen(dy[row * channels + channel]);
    Narrow(static_cast<float>(total), db + channel);
  }
}

}  // namespace

void DepthwiseBackward(ffi::ThreadPool& pool, const DepthwiseBackwardCall& call) {
  if (call.type == ffi::DataType::BF16) {
    Run<BFloat16>(pool, call);
  } else {
    Run<float>(pool, call);
  }
}

void SumOverRows(ffi::DataType type, const void* dy, int64_t rows, int64_t channels, void* db) {
  if (type == ffi::DataType::BF16) {
    Sum(static_cast<const BFloat16*>(dy), rows, channels, static_cast<BFloat16*>(db));
  } else {
    Sum(static_cast<const float*>(dy), rows, channels, static_cast<float*>(db));
  }
}

}  // namespace jax_convgrad
