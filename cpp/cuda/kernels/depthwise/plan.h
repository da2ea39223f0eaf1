// Depthwise convolution and its two gradients by CUDA kernels of this project. Depends on the CUDA
// runtime, not on XLA or cuDNN.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_DEPTHWISE_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_DEPTHWISE_PLAN_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>

namespace jax_convgrad {

enum class DepthwiseKind { kFprop, kDgrad, kWgrad };
enum class DepthwiseType { kF16, kBF16, kF32, kF64 };

// The convolution x -> y with one filter per channel. Arrays are in the order batch, z, y, x,
// channel, the weights channel, z, y, x. A missing axis has the neutral values. Sizes and
// attributes have been checked and no array is empty.
struct DepthwiseProblem {
  using PerAxis = std::array<int64_t, 3>;  // z, y, x

  DepthwiseKind kind = DepthwiseKind::kFprop;
  DepthwiseType type = DepthwiseType::kF32;
  int64_t batch = 1;
  int64_t channels = 1;
  PerAxis in{1, 1, 1};
  PerAxis kernel{1, 1, 1};
  PerAxis out{1, 1, 1};
  PerAxis strides{1, 1, 1};
  PerAxis padding_low{0, 0, 0};
  PerAxis dilation{1, 1, 1};
  int64_t alignment = 16;       // bytes, of every array
  int64_t workspace_limit = 0;  // bytes
  int64_t multiprocessors = 1;  // of the device
};

struct DepthwiseArrays {
  void* x;
  void* w;
  void* y;
  void* workspace;  // 256 bytes aligned
};

// The kernels chosen for one problem, with all numbers that they need. Sums are in float32, for
// float64 in float64, in an order that depends only on the problem and the device's size: the same
// bits every time.
class DepthwisePlan {
 public:
  virtual ~DepthwisePlan() = default;

  // Null if a size is beyond what the kernels can count or the workspace limit is too low.
  static std::unique_ptr<const DepthwisePlan> Make(const DepthwiseProblem& problem);

  virtual int64_t workspace_bytes() const = 0;
  // Launches and returns; every element of the result is written.
  virtual cudaError_t Run(const DepthwiseArrays& arrays, cudaStream_t stream) const = 0;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_DEPTHWISE_PLAN_H_
