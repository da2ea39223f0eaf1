// What all plans of implicit GEMM have in common: launches, what kernels count to, how channels are
// padded in shared memory, and problems in which x and y exchange their roles.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_LAUNCH_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "cuda/kernels/common/tensor_map.h"
#include "cuda/kernels/implicit_gemm/plan.h"

namespace jax_convgrad {

constexpr int64_t kGemmElementBytes = 2;
constexpr int64_t kGemmMaxChannels = 64;
// Of the result of fprop or dgrad, of which a block may have a part.
constexpr int64_t kGemmMaxResultChannels = 256;

// Sums of a few sizes and products of two of these fit an int.
constexpr int64_t kGemmMaxPositions = int64_t{1} << 30;
constexpr int64_t kGemmMaxSize = int64_t{1} << 24;  // of an axis, its padding and its steps
constexpr int64_t kGemmMaxKernel = 64;              // along an axis

template <typename Params>
cudaError_t LaunchGemm(void (*kernel)(Params), int64_t blocks, int64_t threads,
                       int64_t shared_bytes, cudaStream_t stream, const Params& params) {
  void* arguments[] = {const_cast<Params*>(&params)};
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)),
                          dim3(static_cast<unsigned>(threads)), arguments,
                          static_cast<size_t>(shared_bytes), stream);
}

// Lets a kernel have as much shared memory as the device gives a block. A kernel has one limit for
// all launches, so that a plan's own size would forbid those of plans made before with more.
template <typename Params>
cudaError_t AllowGemmBytes(void (*kernel)(Params), int64_t block_shared_bytes) {
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(block_shared_bytes));
  if (status != cudaSuccess) (void)cudaGetLastError();
  return status;
}

// The channels of a pixel in shared memory: a line of 32, 64 or 128 bytes.
inline int64_t GemmLine(int64_t channels) { return channels <= 16 ? 16 : channels <= 32 ? 32 : 64; }

inline int64_t GemmVolume(const ImplicitGemmProblem::PerAxis& sizes) {
  return sizes[0] * sizes[1] * sizes[2];
}

// Whether there are kernels for the channels and strides, and positions and steps along all axes
// are numbers that the kernels count to.
inline bool IsGemm(const ImplicitGemmProblem& p) {
  const auto serves = [](int64_t channels, bool of_result) {
    return channels >= 8 && channels % 8 == 0 &&
           channels <= (of_result ? kGemmMaxResultChannels : kGemmMaxChannels);
  };
  if (!serves(p.in_channels, p.kind == GemmKind::kDgrad) ||
      !serves(p.out_channels, p.kind == GemmKind::kFprop)) {
    return false;
  }
  int64_t in = p.batch, out = p.batch;
  for (size_t axis = 0; axis < 3; ++axis) {
    if (std::max({p.in[axis], p.out[axis], std::abs(p.padding_low[axis]), p.dilation[axis]}) >
            kGemmMaxSize ||
        p.strides[axis] != 1 || p.kernel[axis] > kGemmMaxKernel ||
        p.kernel[axis] * p.dilation[axis] > kGemmMaxSize) {
      return false;
    }
    in *= p.in[axis];
    out *= p.out[axis];
    if (in > kGemmMaxPositions || out > kGemmMaxPositions) return false;
  }
  return p.alignment >= 16 && p.batch <= kGemmMaxSize;
}

// y's gradient and x may exchange their roles: each pixel of x is a window of it, whose taps are
// those of the convolution in reverse. dgrad is then fprop.
inline ImplicitGemmProblem GemmExchanged(const ImplicitGemmProblem& problem) {
  ImplicitGemmProblem p = problem;
  std::swap(p.in, p.out);
  std::swap(p.in_channels, p.out_channels);
  for (size_t axis = 0; axis < 3; ++axis) {
    p.padding_low[axis] = (p.kernel[axis] - 1) * p.dilation[axis] - p.padding_low[axis];
  }
  return p;
}

// An array of channels-last images, of which boxes of rows and pixels of one plane are copied, with
// `line` channels each.
inline TensorShape GemmImage(const ImplicitGemmProblem::PerAxis& sizes, int64_t batch,
                             int64_t channels, int64_t line, int64_t box_x, int64_t box_y) {
  TensorShape shape;
  shape.element_bytes = kGemmElementBytes;
  const int64_t all[] = {channels, sizes[2], sizes[1], sizes[0], batch};
  std::copy(all, all + kTensorAxes, shape.sizes);
  shape.box[0] = line;
  shape.box[1] = box_x;
  shape.box[2] = box_y;
  shape.line_bytes = line * kGemmElementBytes;
  return shape;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_LAUNCH_H_
