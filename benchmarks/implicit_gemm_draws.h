// Small random problems for the implicit GEMM kernels, as on devices of several sizes.

#ifndef JAX_CONVGRAD_BENCHMARKS_IMPLICIT_GEMM_DRAWS_H_
#define JAX_CONVGRAD_BENCHMARKS_IMPLICIT_GEMM_DRAWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>

#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"

namespace jax_convgrad {

class GemmDraw {
 public:
  explicit GemmDraw(std::mt19937_64* random) : random_(*random) {}

  // One that is likely to have a plan on a device, or one with fewer multiprocessors and less
  // shared memory. Of the axes that are not there, all has neutral values.
  ImplicitGemmProblem Problem(const GemmDevice& device) {
    while (true) {
      const int64_t kind = Between(0, 9);
      ImplicitGemmProblem p = kind == 0 ? ShortWalk() : kind <= 2 ? LongWalk() : Any();
      int64_t positions = p.batch;
      bool good = true;
      for (size_t i = 0; i < 3; ++i) {
        good = good && p.out[i] > 0;
        positions *= std::max(p.in[i], p.out[i]);
      }
      if (!good || positions > 60000 || GemmVolume(p.kernel) > 130) continue;
      p.workspace_limit = int64_t{1} << (Between(0, 3) == 0 ? Between(18, 24) : 28);
      p.device = device;
      // A long walk is one if few blocks share it.
      if (kind == 1 || kind == 2) {
        p.device.multiprocessors = Between(1, 4);
      } else if (Between(0, 3) > 0) {
        p.device.multiprocessors = Between(1, 40);
      }
      p.device.has_warpgroups = Between(0, 1) == 0;
      if (Between(0, 2) == 0) {
        p.device.block_shared_bytes = Between(32, device.block_shared_bytes / 1024) * 1024;
      }
      return p;
    }
  }

 private:
  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  ImplicitGemmProblem Begin() {
    ImplicitGemmProblem p;
    p.kind = static_cast<GemmKind>(Between(0, 2));
    p.type = static_cast<GemmType>(Between(0, 2));
    p.weights = Between(0, 1) == 0 ? GemmWeights::kInOut : GemmWeights::kOutIn;
    p.in_channels = 8 * Between(1, Between(1, 8));
    p.out_channels = 8 * Between(1, Between(1, 8));
    p.batch = Between(1, 5);
    return p;
  }

  // Sets the rest of an axis from its window and its positions of x; none of y if these are too
  // few.
  void SetAxis(size_t axis, int64_t padding_high, ImplicitGemmProblem* p) {
    const int64_t reach = (p->kernel[axis] - 1) * p->dilation[axis];
    const int64_t last = p->in[axis] + p->padding_low[axis] + padding_high - reach - 1;
    p->out[axis] = last < 0 ? 0 : last / p->strides[axis] + 1;
  }

  ImplicitGemmProblem Any() {
    ImplicitGemmProblem p = Begin();
    const int64_t axes = Between(1, 3);
    const bool strided = Between(0, 2) == 0;
    for (size_t i = static_cast<size_t>(3 - axes); i < 3; ++i) {
      const int64_t most = axes == 3 ? 40 : axes == 2 ? 150 : 3000;
      p.in[i] = Between(1, Between(0, 2) == 0 ? 12 : most);
      p.kernel[i] = Between(0, 1) == 0 ? 3 : Between(1, axes == 3 ? 5 : axes == 2 ? 7 : 15);
      p.dilation[i] = Between(0, 2) > 0 ? 1 : Between(2, 4);
      const int64_t reach = (p.kernel[i] - 1) * p.dilation[i];
      p.padding_low[i] = Between(0, 2) > 0 ? reach / 2 : Between(-2, reach + 2);
      if (strided) p.strides[i] = Between(1, Between(0, 3) == 0 ? 5 : 2);
      SetAxis(i, Between(0, 2) > 0 ? reach - reach / 2 : Between(-2, reach + 2), &p);
    }
    return p;
  }

  // Through so many planes, or rows or images, that their slots in shared memory are used again.
  ImplicitGemmProblem LongWalk() {
    ImplicitGemmProblem p = Begin();
    const int64_t axes = Between(1, 3);
    if (axes == 1) p.batch = Between(60, 400);
    for (size_t i = static_cast<size_t>(3 - axes); i < 3; ++i) {
      const bool walked = axes > 1 && i == static_cast<size_t>(3 - axes);
      p.in[i] = walked ? Between(60, 400) : Between(1, 20);
      p.kernel[i] = Between(0, 1) == 0 ? 3 : Between(1, 5);
      p.dilation[i] = Between(0, 2) > 0 ? 1 : Between(2, 4);
      if (Between(0, 2) == 0) p.strides[i] = Between(1, 3);
      const int64_t reach = (p.kernel[i] - 1) * p.dilation[i];
      p.padding_low[i] = Between(0, reach);
      SetAxis(i, reach - p.padding_low[i] + Between(0, 1), &p);
    }
    return p;
  }

  // Windows whose planes lie further apart than the result has planes: of those that a walk reads
  // before its first result, none follows in steps of the result.
  ImplicitGemmProblem ShortWalk() {
    ImplicitGemmProblem p = Begin();
    for (size_t i = 0; i < 3; ++i) {
      p.kernel[i] = 3;
      p.in[i] = i == 0 ? Between(1, 3) : Between(4, 40);
      p.dilation[i] = i == 0 ? p.in[0] + Between(0, 2) : 1;
      p.padding_low[i] = p.dilation[i];
      SetAxis(i, p.dilation[i], &p);
    }
    return p;
  }

  std::mt19937_64& random_;
};

inline ImplicitGemmProblem DrawGemmProblem(const GemmDevice& device, std::mt19937_64* random) {
  return GemmDraw(random).Problem(device);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_BENCHMARKS_IMPLICIT_GEMM_DRAWS_H_
