// Plans for fprop of an image with few channels, and for dgrad with few output channels. Their
// kernel is in image.cuh.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_PLAN_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "cuda/kernels/thin/image.cuh"
#include "cuda/kernels/thin/launch.h"
#include "cuda/kernels/thin/plan.h"
#include "ffi/integers.h"

namespace jax_convgrad {

using ImageKernel = void (*)(ImageParams);

class ImagePlan : public KernelPlan<ImageParams> {
 public:
  ImagePlan(std::string name, const ImageParams& params, Kernel kernel, bool exchanged,
            int64_t blocks, int64_t shared_bytes, int64_t block_shared_bytes)
      : KernelPlan(std::move(name), params, kernel,
                   {kImageThreads, shared_bytes, block_shared_bytes}),
        exchanged_(exchanged),
        blocks_(blocks) {}

  cudaError_t Run(const ThinArrays& arrays, cudaStream_t stream) const override {
    ImageParams called = params();
    called.x = exchanged_ ? arrays.y : arrays.x;
    called.w = arrays.w;
    called.y = exchanged_ ? arrays.x : arrays.y;
    return LaunchWith(called, blocks_, stream);
  }

 private:
  const bool exchanged_;
  const int64_t blocks_;
};

constexpr int64_t kImageMaxChannels = 16;
constexpr int64_t kImageTileWindows = 512;  // of a tile, at most
constexpr int64_t kImageTileX = 128;        // of its rows, if there are several

inline bool HasImage(const ThinProblem& p) {
  return IsCountable(p) && p.kind == ThinKind::kFprop && p.in_channels <= kImageMaxChannels &&
         p.dilation[2] == 1 && p.alignment >= 16 && Multiple(p.out_channels, 8) &&
         p.out_channels <= kMaxWindow && p.batch <= kMaxSize &&
         Multiple(p.in[2] * p.in_channels, 2);
}

// The tile's rows of windows, and what is staged for them.
inline void SetTile(const ThinProblem& problem, int64_t tile_x, int64_t tile_y, ImageParams* p) {
  p->tile_x = static_cast<int>(tile_x);
  p->tile_y = static_cast<int>(tile_y);
  const int64_t plane_rows =
      (tile_y - 1) * problem.strides[1] + (problem.kernel[1] - 1) * problem.dilation[1] + 1;
  p->plane_rows = static_cast<int>(plane_rows);
  p->rows = static_cast<int>(plane_rows * problem.kernel[0]);
  // In front: up to a piece that is aligned. Behind: the last unit, and the next pair of elements.
  const int64_t elements =
      kImageUnit + (tile_x - 1) * p->step + int64_t{p->run_units} * kImageUnit + 2;
  p->row_words = static_cast<int>(RoundUp(elements, kImageUnit) / 2);
}

// Where the weights lie. If `exchanged`, the problem is Exchanged: its input channels are the
// weights' output channels, and its taps theirs in reverse.
inline void SetWeights(const ThinProblem& problem, bool exchanged, ImageParams* p) {
  const int64_t few = problem.in_channels, many = problem.out_channels;
  const int64_t taps = problem.kernel[0] * problem.kernel[1] * problem.kernel[2];
  p->kernel_x = static_cast<int>(problem.kernel[2]);
  p->by_few = Divider(few);
  if (problem.weights == ThinWeights::kInOut) {
    p->w_tap = few * many;
    p->w_few = exchanged ? 1 : many;
    p->w_channel = exchanged ? few : 1;
  } else {
    p->w_tap = exchanged ? many : few;
    p->w_few = exchanged ? taps * many : 1;
    p->w_channel = exchanged ? 1 : taps * few;
  }
  if (!exchanged) return;
  p->w_first = (taps - 1) * p->w_tap;
  p->w_tap = -p->w_tap;
}

template <typename T, int kPiece>
std::unique_ptr<const ThinPlan> MakeImageOf(const ThinProblem& problem, bool exchanged) {
  ImageParams p{};
  for (size_t axis = 0; axis < 3; ++axis) {
    p.in[axis] = static_cast<int>(problem.in[axis]);
    p.out[axis] = static_cast<int>(problem.out[axis]);
    p.strides[axis] = static_cast<int>(problem.strides[axis]);
    p.padding[axis] = static_cast<int>(problem.padding_low[axis]);
    p.dilation[axis] = static_cast<int>(problem.dilation[axis]);
  }
  const int64_t channels = problem.in_channels;
  p.out_channels = static_cast<int>(problem.out_channels);
  SetWeights(problem, exchanged, &p);
  p.line = static_cast<int>(problem.in[2] * channels);
  p.step = static_cast<int>(problem.strides[2] * channels);
  p.padding_line = static_cast<int>(problem.padding_low[2] * channels);
  p.run = static_cast<int>(problem.kernel[2] * channels);
  const bool odd = !Multiple(p.step, 2);
  p.lead = !odd && !Multiple(p.padding_line, 2);
  p.window_rows = static_cast<int>(problem.kernel[0] * problem.kernel[1]);
  p.run_units = static_cast<int>(CeilDivide(p.run + p.lead, kImageUnit));
  const int64_t units = RoundUp(int64_t{p.window_rows} * p.run_units, 2);
  // Where a weight lies is an int.
  if (units > kMaxWindow || units * kImageUnit * problem.out_channels > kMaxWeights) return nullptr;
  p.units = static_cast<int>(units);
  p.by_run_units = Divider(p.run_units);
  p.by_kernel_y = Divider(problem.kernel[1]);

  // A plane's rows are divided evenly. As many blocks as possible, each with at least half of the
  // windows that it may have, so that rows that tiles share are a small part. Shorter rows only if
  // nothing else fits.
  const int64_t max_x = problem.out[1] > 1 ? kImageTileX : kImageTileWindows;
  int64_t tile_x = 0, blocks = 0, shared_bytes = 0;
  for (int64_t wanted_x = max_x; wanted_x >= 16 && blocks == 0; wanted_x /= 2) {
    tile_x = RoundUp(CeilDivide(problem.out[2], CeilDivide(problem.out[2], wanted_x)), 16);
    const int64_t max_y = std::clamp<int64_t>(kImageTileWindows / tile_x, 1, problem.out[1]);
    for (const bool smallest : {false, true}) {
      for (int64_t at_once = kImageBlocks; at_once > 0 && blocks == 0; --at_once) {
        const int64_t min_y = smallest ? 1 : CeilDivide(max_y, 2);
        for (int64_t tile_y = max_y; tile_y >= min_y && blocks == 0; --tile_y) {
          SetTile(problem, tile_x, tile_y, &p);
          shared_bytes = 2 * ImageStageBytes(p.rows, p.row_words) + ImageWeightsBytes(units) +
                         ImageTableBytes(units);
          if (shared_bytes <= SharedBytesOf(problem.device, at_once)) blocks = at_once;
        }
      }
    }
  }
  if (blocks == 0) return nullptr;

  const int64_t groups_x = tile_x / 16;
  p.by_groups_x = Divider(groups_x);
  p.tile_groups = static_cast<int>(groups_x * p.tile_y);
  const int64_t tiles_x = CeilDivide(problem.out[2], tile_x);
  const int64_t tiles_y = CeilDivide(problem.out[1], p.tile_y);
  p.by_tiles_x = Divider(tiles_x);
  p.by_tiles_y = Divider(tiles_y);
  p.by_out_z = Divider(problem.out[0]);
  p.tiles = static_cast<int>(problem.batch * problem.out[0] * tiles_y * tiles_x);
  p.by_plane_rows = Divider(p.plane_rows);
  p.by_row_pieces = Divider(p.row_words * 2 / kPiece);
  p.column_tiles = static_cast<int>(CeilDivide(p.out_channels, kImageColumns));
  // Instructions of a warp: to stage the weights, and for a tile.
  const double staging = 200 + 30.0 * static_cast<double>(units);
  const double work =
      static_cast<double>(p.tile_groups) / 8 * (15.0 * static_cast<double>(units) + 120);
  p.tile_step = static_cast<int>(
      TileBlocks(p.tiles, problem.device.multiprocessors * blocks, p.column_tiles, staging / work));
  const int64_t all = int64_t{p.tile_step} * p.column_tiles;
  if (all > kMaxPositions) return nullptr;
  const ImageKernel kernel = odd ? ImageProduct<T, kPiece, true> : ImageProduct<T, kPiece, false>;
  return std::make_unique<ImagePlan>(exchanged ? "image_dgrad" : "image", p, kernel, exchanged, all,
                                     shared_bytes, problem.device.block_shared_bytes);
}

// The plan for fprop, or (`exchanged`) for dgrad of the problem that this one was before.
template <typename T>
std::unique_ptr<const ThinPlan> MakeImage(const ThinProblem& problem, bool exchanged) {
  return Multiple(problem.in[2] * problem.in_channels, 8) ? MakeImageOf<T, 8>(problem, exchanged)
                                                          : MakeImageOf<T, 2>(problem, exchanged);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_PLAN_H_
