// What all plans of thin convolutions have in common: launches, what kernels count to, how much
// shared memory a block may have, and problems in which x and y exchange their roles.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_LAUNCH_H_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/common/load_kernel.h"
#include "cuda/kernels/common/parts_sum.cuh"
#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/thin/plan.h"
#include "cuda/kernels/thin/starts.cuh"
#include "ffi/integers.h"

namespace jax_convgrad {

// Sums of a few sizes and products of two of these fit an int.
constexpr int64_t kMaxPositions = int64_t{1} << 30;
constexpr int64_t kMaxWindow = int64_t{1} << 20;  // elements, or channels
constexpr int64_t kMaxSize = int64_t{1} << 24;    // of an axis, its padding and its steps
constexpr int64_t kMaxKernel = 64;                // along an axis
constexpr int64_t kMaxWeights = int64_t{1} << 30;

// What the driver takes of each block's shared memory.
constexpr int64_t kReservedBytes = 1024;
// Blocks for each place on the device, at most: those that finish last are then a small part.
constexpr int64_t kWaves = 4;

// How many blocks share `tiles`, of which each takes one after the other, if `columns` times as
// many run in `places`. `staging` is what a block does before its first tile, in tiles: no more
// than an eighth of its work if there are tiles enough.
inline int64_t TileBlocks(int64_t tiles, int64_t places, int64_t columns, double staging) {
  const double of_place =
      static_cast<double>(tiles) * static_cast<double>(columns) / static_cast<double>(places);
  const double waves = std::clamp(std::floor(of_place / (8 * staging)), 1.0, double{kWaves});
  const int64_t blocks = places * static_cast<int64_t>(waves) / columns;
  return std::clamp<int64_t>(blocks, 1, tiles);
}

// The time of all tiles, in times of one tile alone on a multiprocessor, with `at_once` blocks on
// each. Of few tiles, the last to end counts.
inline double Waves(int64_t tiles, int64_t multiprocessors, int64_t at_once) {
  const int64_t places = multiprocessors * at_once;
  if (tiles < places) return static_cast<double>(CeilDivide(tiles, multiprocessors));
  const double waves = static_cast<double>(tiles) / static_cast<double>(places);
  return static_cast<double>(at_once) * (waves < kWaves ? std::ceil(waves) : waves);
}

template <typename Params>
cudaError_t Launch(void (*kernel)(Params), int64_t blocks, int64_t threads, int64_t shared_bytes,
                   cudaStream_t stream, const Params& params) {
  void* arguments[] = {const_cast<Params*>(&params)};
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)),
                          dim3(static_cast<unsigned>(threads)), arguments,
                          static_cast<size_t>(shared_bytes), stream);
}

// Lets a kernel have as much shared memory as the device gives a block. A kernel has one limit for
// all launches, so that a plan's own size would forbid those of plans made before with more.
template <typename Params>
cudaError_t AllowSharedBytes(void (*kernel)(Params), int64_t block_shared_bytes) {
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(block_shared_bytes));
  if (status != cudaSuccess) (void)cudaGetLastError();
  return status;
}

struct KernelShape {
  int64_t threads, shared_bytes, block_shared_bytes;  // the last is the device's
};

// A plan of one kernel, which classes derived from it launch with the call's arrays in its
// parameters.
template <typename Params>
class KernelPlan : public ThinPlan {
 public:
  using Kernel = void (*)(Params);

  const std::string& name() const final { return name_; }
  int64_t workspace_bytes() const override { return 0; }

 protected:
  KernelPlan(std::string name, const Params& params, Kernel kernel, const KernelShape& shape)
      : name_(std::move(name)),
        params_(params),
        kernel_(kernel),
        shape_(shape),
        prepared_(AllowSharedBytes(kernel, shape.block_shared_bytes)) {}

  const Params& params() const { return params_; }

  cudaError_t LaunchWith(const Params& params, int64_t blocks, cudaStream_t stream) const {
    if (prepared_ != cudaSuccess) return prepared_;
    return Launch(kernel_, blocks, shape_.threads, shape_.shared_bytes, stream, params);
  }

 private:
  const std::string name_;
  const Params params_;
  const Kernel kernel_;
  const KernelShape shape_;
  const cudaError_t prepared_;
};

// Shared memory of each of `blocks` blocks on one multiprocessor.
inline int64_t SharedBytesOf(const ThinDevice& device, int64_t blocks) {
  return std::min(device.block_shared_bytes, device.shared_bytes / blocks - kReservedBytes);
}

struct CostedPlan {
  std::unique_ptr<const ThinPlan> plan;
  double cost = 0;    // that of all tiles, in a unit of the kernel's own
  int64_t bytes = 0;  // of shared memory, of a block
};

// Of two ways to launch a kernel: what is likely the fastest, and the other if it may be.
inline std::vector<std::unique_ptr<const ThinPlan>> FastestFirst(CostedPlan one, CostedPlan other) {
  constexpr double kWorthTrying = 1.5;
  if (other.plan != nullptr && (one.plan == nullptr || other.cost < one.cost)) {
    std::swap(one, other);
  }
  std::vector<std::unique_ptr<const ThinPlan>> plans;
  if (one.plan != nullptr) plans.push_back(std::move(one.plan));
  if (other.plan != nullptr && other.cost < kWorthTrying * one.cost) {
    plans.push_back(std::move(other.plan));
  }
  return plans;
}

using PartsSumKernel = void (*)(PartsSumParams);

// Adds the parts in the workspace to the weights' gradient.
class PartsAdder {
 public:
  PartsAdder(PartsSumKernel kernel, const PartsSumParams& params)
      : kernel_(kernel), params_(params), prepared_(LoadKernel(kernel)) {}

  int64_t workspace_bytes() const {
    return 4 * int64_t{params_.parts} * params_.rows * params_.columns;
  }

  cudaError_t Run(const ThinArrays& arrays, cudaStream_t stream) const {
    if (prepared_ != cudaSuccess) return prepared_;
    PartsSumParams p = params_;
    p.partial = static_cast<const float*>(arrays.workspace);
    p.result = arrays.w;
    constexpr int64_t kThreads = kPartsSumColumns * kPartsSumSegments;
    const int64_t blocks = CeilDivide(int64_t{p.rows} * p.columns, kPartsSumColumns);
    return Launch(kernel_, blocks, kThreads, kThreads * 4, stream, p);
  }

 private:
  const PartsSumKernel kernel_;
  const PartsSumParams params_;
  const cudaError_t prepared_;
};

inline bool Multiple(int64_t number, int64_t of) { return number % of == 0; }

// Whether positions and steps along all axes are numbers that the kernels count to.
inline bool IsCountable(const ThinProblem& p) {
  int64_t positions = p.batch;
  for (size_t axis = 0; axis < 3; ++axis) {
    if (std::max({p.in[axis], p.out[axis], std::abs(p.padding_low[axis]), p.strides[axis],
                  p.dilation[axis]}) > kMaxSize ||
        p.out[axis] * p.strides[axis] > kMaxSize || p.kernel[axis] > kMaxKernel ||
        p.kernel[axis] * p.dilation[axis] > kMaxSize) {
      return false;
    }
    positions *= p.kind == ThinKind::kDgrad ? p.in[axis] : p.out[axis];
    if (positions > kMaxPositions) return false;
  }
  return p.alignment >= 16 && p.batch <= kMaxSize;
}

// Whether so many channels of a problem are few: up to 16, and of windows of one tap those up to 32
// that libraries have to pad.
inline bool IsThin(const ThinProblem& p, int64_t channels) {
  const bool pointwise = p.kernel == ThinProblem::PerAxis{1, 1, 1};
  return channels <= 16 || (pointwise && channels <= 32 && !Multiple(channels, 8));
}

// Of rows with so many elements each: as many as can be copied at once, of 16 bytes or less.
template <typename T>
int64_t PieceOf(int64_t elements) {
  int64_t piece = kPieceElements<T>;
  while (!Multiple(elements, piece)) piece /= 2;
  return piece;
}

// Of an image with `step` elements between neighboring windows.
template <typename T>
Starts StartsOf(int64_t step) {
  return Multiple(step, kWordElements<T>) ? Starts::kWords : Starts::kElements;
}

// With stride 1, the gradient of y and x may exchange their roles: each pixel of x is a window of
// y's gradient, whose taps are those of the convolution in reverse. dgrad is then fprop.
inline ThinProblem Exchanged(const ThinProblem& problem) {
  ThinProblem p = problem;
  std::swap(p.in, p.out);
  std::swap(p.in_channels, p.out_channels);
  for (size_t axis = 0; axis < 3; ++axis) {
    p.padding_low[axis] = (p.kernel[axis] - 1) * p.dilation[axis] - p.padding_low[axis];
  }
  if (p.kind == ThinKind::kDgrad) p.kind = ThinKind::kFprop;
  return p;
}

inline bool HasStrides(const ThinProblem& p) { return p.strides != ThinProblem::PerAxis{1, 1, 1}; }

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_LAUNCH_H_
