// What the plans for warpgroups have in common: the problems that they serve, how channels are
// padded in shared memory, and images that are copied there in boxes.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_IMAGE_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_IMAGE_H_

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/common/tensor_map.h"
#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"

namespace jax_convgrad {

constexpr int64_t kGemmElementBytes = 2;  // but of floats
constexpr int64_t kGemmMaxChannels = 64;
// Of the result of fprop or dgrad, of which a block may have a part.
constexpr int64_t kGemmMaxResultChannels = 256;

// The channels of a pixel in shared memory, of 16 bits: a line of 32, 64 or 128 bytes.
inline int64_t GemmLine(int64_t channels) { return channels <= 16 ? 16 : channels <= 32 ? 32 : 64; }

// Whether the device multiplies by warpgroups, and there are kernels for the element type, the
// channels and the strides.
inline bool IsWarpgroupGemm(const ImplicitGemmProblem& p) {
  const bool floats = p.type == GemmType::kTf32;
  const auto serves = [floats](int64_t channels, bool of_result) {
    return channels >= 8 && channels % (floats ? 4 : 8) == 0 &&
           channels <= (of_result ? kGemmMaxResultChannels : kGemmMaxChannels);
  };
  return p.device.has_warpgroups && !(floats && p.kind == GemmKind::kWgrad) &&
         p.strides == ImplicitGemmProblem::PerAxis{1, 1, 1} &&
         serves(p.in_channels, p.kind == GemmKind::kDgrad) &&
         serves(p.out_channels, p.kind == GemmKind::kFprop) && IsCountableGemm(p);
}

// An array of channels-last images, of which boxes of rows and pixels of one plane are copied, with
// `line` channels each.
inline TensorShape GemmImage(const ImplicitGemmProblem::PerAxis& sizes, int64_t batch,
                             int64_t channels, int64_t element_bytes, int64_t line, int64_t box_x,
                             int64_t box_y) {
  TensorShape shape;
  shape.element_bytes = element_bytes;
  const int64_t all[] = {channels, sizes[2], sizes[1], sizes[0], batch};
  std::copy(all, all + kTensorAxes, shape.sizes);
  shape.box[0] = line;
  shape.box[1] = box_x;
  shape.box[2] = box_y;
  shape.line_bytes = line * element_bytes;
  return shape;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_IMAGE_H_
