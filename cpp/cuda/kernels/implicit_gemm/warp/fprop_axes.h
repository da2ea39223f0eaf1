// How the axes of fprop or dgrad, with their strides, become those of the walk of fprop.cuh.
//
// Along an axis, groups of the result read the image at a step from each other: the stride of
// fprop, 1 of dgrad. A group is as many positions as dgrad's stride, one of fprop. Each tap belongs
// to one of them, its phase, and reads the image at a distance from the group's place.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_AXES_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_AXES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/kernels/implicit_gemm/plan.h"
#include "ffi/integers.h"

namespace jax_convgrad {

struct WarpAxis {
  int64_t image = 1, result = 1;  // sizes
  int64_t kernel = 1, dilation = 1;
  int64_t step = 1, phases = 1;
  int64_t padding = 0;
  bool gradient = false;

  int64_t groups() const { return CeilDivide(result, phases); }
  int64_t PhaseOf(int64_t tap) const {
    const int64_t rest = (tap * dilation - padding) % phases;
    return rest < 0 ? rest + phases : rest;
  }
  int64_t DistanceOf(int64_t tap) const {
    const int64_t distance = tap * dilation - padding;
    return gradient ? (PhaseOf(tap) - distance) / phases : distance;
  }
  // Distances grow, or fall, from tap to tap.
  int64_t first() const { return std::min(DistanceOf(0), DistanceOf(kernel - 1)); }
  int64_t span() const { return std::max(DistanceOf(0), DistanceOf(kernel - 1)) - first() + 1; }
  // Whether each position reads only its own, so that it may as well be of images.
  bool IsFree() const {
    return kernel == 1 && step == 1 && phases == 1 && padding == 0 && image == result;
  }
};

inline WarpAxis WarpAxisOf(const ImplicitGemmProblem& p, size_t axis) {
  WarpAxis of;
  of.gradient = p.kind == GemmKind::kDgrad;
  of.image = of.gradient ? p.out[axis] : p.in[axis];
  of.result = of.gradient ? p.in[axis] : p.out[axis];
  of.kernel = p.kernel[axis];
  of.dilation = of.kernel == 1 ? 1 : p.dilation[axis];
  (of.gradient ? of.phases : of.step) = p.strides[axis];
  of.padding = p.padding_low[axis];
  return of;
}

// Of the planes along the walk's axis, those that a step reads.
struct WarpAxisPlanes {
  int64_t held, spacing;
  int64_t advance;      // that the step before does not read
  int64_t walk_phases;  // groups from one step of a strip to the next
  bool by_tap;          // each tap has a plane, or each distance
};

inline WarpAxisPlanes WarpAxisPlanesOf(const WarpAxis& z) {
  if (z.phases > 1) return {z.span(), 1, 1, 1, false};
  if (z.step == 1) return {z.kernel, z.dilation, 1, z.dilation, true};
  const int64_t advance = z.dilation == 1 ? std::min(z.step, z.kernel) : z.kernel;
  return {z.kernel, z.dilation, advance, 1, true};
}

struct WarpView {
  int64_t batch;
  std::array<WarpAxis, 3> axes;  // z, y, x
  bool rows;                     // planes are single rows
};

// The ways to walk. Through planes along z, or along the images if these do not share planes. Or
// through rows along y; if rows are not shared either, along the images, and then only so.
inline std::vector<WarpView> WarpViews(const ImplicitGemmProblem& p) {
  WarpView planes{p.batch, {WarpAxisOf(p, 0), WarpAxisOf(p, 1), WarpAxisOf(p, 2)}, false};
  if (!planes.axes[0].IsFree()) return {planes};
  const auto fold = [](WarpView* view) {
    view->axes[0].image *= view->batch;
    view->axes[0].result *= view->batch;
    view->batch = 1;
  };
  fold(&planes);
  WarpView rows{planes.axes[0].image, {planes.axes[1], WarpAxis{}, planes.axes[2]}, true};
  if (!rows.axes[0].IsFree()) return {planes, rows};
  fold(&rows);
  return {rows};
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_AXES_H_
