// Plans for fprop of a thin image, and for dgrad with a thin y. Their kernel is in image.cuh.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_PLAN_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/thin/image.cuh"
#include "cuda/kernels/thin/launch.h"
#include "cuda/kernels/thin/plan.h"
#include "ffi/integers.h"

namespace jax_convgrad {

using ImageKernel = void (*)(ImageParams);

class ImagePlan : public KernelPlan<ImageParams> {
 public:
  ImagePlan(std::string name, const ImageParams& params, Kernel kernel, bool exchanged,
            int64_t blocks, const KernelShape& shape)
      : KernelPlan(std::move(name), params, kernel, shape),
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
constexpr int64_t kImageTileWindows = 4;  // of a tile, for each thread, at most
// With fewer threads on a multiprocessor, more time is spent waiting: this fraction for each
// kImageThreads. And where all wait for each other.
constexpr double kImageCostOfIdle = 0.25, kImageCostOfManyThreads = 1.05;
// Where a block has one stage, it waits for what is copied: so many instructions of a warp, and
// for each of them so many bytes arrive.
constexpr double kImageCopyWait = 150, kImageCopyBytes = 200;
constexpr int64_t kImageDivisions = 16;  // of a row into tiles, from the fewest on

inline bool HasImage(const ThinProblem& p) {
  return IsCountable(p) && p.kind == ThinKind::kFprop && p.in_channels <= kImageMaxChannels &&
         p.dilation[2] == 1 && p.alignment >= 16 && Multiple(p.out_channels, 8) &&
         p.out_channels <= kMaxWindow && p.batch <= kMaxSize;
}

// The tile's rows of windows, and what is staged for them, `piece` elements at once.
template <typename T>
void SetTile(const ThinProblem& problem, int64_t piece, int64_t tile_x, int64_t tile_y,
             ImageParams* p) {
  p->tile_x = static_cast<int>(tile_x);
  p->tile_y = static_cast<int>(tile_y);
  const int64_t plane_rows =
      (tile_y - 1) * problem.strides[1] + (problem.kernel[1] - 1) * problem.dilation[1] + 1;
  p->plane_rows = static_cast<int>(plane_rows);
  p->planes = static_cast<int>(problem.kernel[0]);
  // In front: up to a piece that is aligned. Behind: the last unit, and the next pair of elements.
  const int64_t elements = (p->run_units + 1) * int64_t{kImageUnit<T>} + (tile_x - 1) * p->step + 2;
  p->row_words = static_cast<int>(RoundUp(elements, kImageUnit<T>) / kWordElements<T>);
  p->row_pieces = static_cast<int>(p->row_words * kWordElements<T> / piece);
  p->copy_lanes = 32;
  while (p->copy_lanes < kImageThreads && p->copy_lanes < p->row_pieces) p->copy_lanes *= 2;
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

// Instructions of a warp for a tile. A warp takes 32 windows at once, one for each of its lanes.
inline double ImageTileCost(const ImageParams& p, int64_t threads) {
  const double pairs = static_cast<double>(CeilDivide(int64_t{p.tile_x} * p.tile_y, threads));
  const double halves = p.out_channels > kImageColumns / 2 ? 2 : 1;
  const double rows =
      static_cast<double>(CeilDivide(int64_t{p.planes} * p.plane_rows * p.copy_lanes, threads));
  const double copies = static_cast<double>(CeilDivide(p.row_pieces, p.copy_lanes));
  const double waits = p.stages == 1
                           ? kImageCopyWait + static_cast<double>(ImageStageBytes(
                                                  int64_t{p.planes} * p.plane_rows, p.row_words)) /
                                                  kImageCopyBytes
                           : 0;
  return 150 + waits + rows * (20 + 15 * copies) +
         pairs * (120 + 40 * halves + p.units * (14 + 6 * halves));
}

// Instructions of a warp before a block's first tile: the tables, and the weights.
inline double ImageStagingCost(const ImageParams& p, int64_t threads) {
  return 200 + 30.0 * p.units * kImageThreads / static_cast<double>(threads);
}

template <typename T, int kPiece, int kThreads>
ImageKernel ImageKernelOf(Starts starts) {
  if constexpr (sizeof(T) == 2) {
    if (starts == Starts::kElements) return ImageProduct<T, kPiece, Starts::kElements, kThreads>;
    if constexpr (kPiece == 2) {
      if (starts == Starts::kOddRows) return ImageProduct<T, kPiece, Starts::kOddRows, kThreads>;
    }
  }
  return ImageProduct<T, kPiece, Starts::kWords, kThreads>;
}

template <typename T, int kPiece, int kThreads>
CostedPlan MakeImageOf(const ThinProblem& problem, bool exchanged) {
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
  p.plane = problem.kernel[0] > 1 ? problem.dilation[0] * problem.in[1] * p.line : 0;
  p.step = static_cast<int>(problem.strides[2] * channels);
  p.padding_line = static_cast<int>(problem.padding_low[2] * channels);
  p.run = static_cast<int>(problem.kernel[2] * channels);
  const Starts starts = StartsOf<T>(p.line, p.step);
  p.lead = starts == Starts::kWords && !Multiple(p.padding_line, kWordElements<T>);
  p.window_rows = static_cast<int>(problem.kernel[0] * problem.kernel[1]);
  p.run_units = static_cast<int>(CeilDivide(p.run + p.lead, kImageUnit<T>));
  const int64_t units = RoundUp(int64_t{p.window_rows} * p.run_units, 2);
  // Where a weight lies is an int.
  if (units > kMaxWindow || units * kImageUnit<T> * problem.out_channels > kMaxWeights) return {};
  p.units = static_cast<int>(units);
  p.by_run_units = Divider(p.run_units);
  p.by_kernel_y = Divider(problem.kernel[1]);

  // The tile that takes the fewest instructions, of tiles that divide a plane evenly. A row is
  // divided into many parts only if nothing else fits.
  struct Choice {
    int64_t x = 0, y = 0, stages = 0, at_once = 0, bytes = 0;
    double cost = 0;
  } best;
  const double of_threads =
      kThreads == kImageThreads ? 1 : kImageCostOfManyThreads * kThreads / kImageThreads;
  int64_t parts_x = CeilDivide(problem.out[2], kImageTileWindows * kThreads);
  for (int64_t i = 0; parts_x <= problem.out[2];
       ++i, parts_x += i < kImageDivisions ? 1 : parts_x) {
    if (i >= kImageDivisions && best.at_once > 0) break;
    Choice choice;
    choice.x = CeilDivide(problem.out[2], parts_x);
    int64_t rows = std::min(kImageTileWindows * kThreads / choice.x, problem.out[1]);
    for (; rows > 0; --rows) {
      choice.y = CeilDivide(problem.out[1], CeilDivide(problem.out[1], rows));
      SetTile<T>(problem, kPiece, choice.x, choice.y, &p);
      const int64_t tiles = problem.batch * problem.out[0] * CeilDivide(problem.out[1], choice.y) *
                            CeilDivide(problem.out[2], choice.x) *
                            CeilDivide(p.out_channels, kImageColumns);
      for (choice.stages = 2; choice.stages > 0; --choice.stages) {
        p.stages = static_cast<int>(choice.stages);
        choice.bytes =
            choice.stages * ImageStageBytes(int64_t{p.planes} * p.plane_rows, p.row_words) +
            ImageWeightsBytes(units) + ImageTableBytes(units, choice.x * choice.y);
        choice.at_once = kImageBlocks<kThreads>;
        while (choice.at_once > 0 && choice.bytes > SharedBytesOf(problem.device, choice.at_once)) {
          --choice.at_once;
        }
        if (choice.at_once == 0) continue;
        const double idle =
            static_cast<double>(kImageManyThreads - choice.at_once * kThreads) / kImageThreads;
        const double of_tiles = ImageTileCost(p, kThreads) *
                                Waves(tiles, problem.device.multiprocessors, choice.at_once);
        const double staging = ImageStagingCost(p, kThreads) * static_cast<double>(choice.at_once);
        choice.cost = (of_tiles + staging) * (1 + kImageCostOfIdle * idle) * of_threads;
        if (best.at_once == 0 || choice.cost < best.cost) best = choice;
      }
    }
  }
  if (best.at_once == 0) return {};
  SetTile<T>(problem, kPiece, best.x, best.y, &p);
  p.stages = static_cast<int>(best.stages);

  p.by_tile_x = Divider(best.x);
  const int64_t tiles_x = CeilDivide(problem.out[2], best.x);
  const int64_t tiles_y = CeilDivide(problem.out[1], best.y);
  p.by_tiles_x = Divider(tiles_x);
  p.by_tiles_y = Divider(tiles_y);
  p.by_out_z = Divider(problem.out[0]);
  p.tiles = static_cast<int>(problem.batch * problem.out[0] * tiles_y * tiles_x);
  p.column_tiles = static_cast<int>(CeilDivide(p.out_channels, kImageColumns));
  const double staging = ImageStagingCost(p, kThreads) / ImageTileCost(p, kThreads);
  p.tile_step = static_cast<int>(
      TileBlocks(p.tiles, problem.device.multiprocessors * best.at_once, p.column_tiles, staging));
  const int64_t all = int64_t{p.tile_step} * p.column_tiles;
  if (all > kMaxPositions) return {};
  std::string name = exchanged ? "image_dgrad" : "image";
  if (kThreads != kImageThreads) name += '_' + std::to_string(kThreads);
  return {std::make_unique<ImagePlan>(
              std::move(name), p, ImageKernelOf<T, kPiece, kThreads>(starts), exchanged, all,
              KernelShape{kThreads, best.bytes, problem.device.block_shared_bytes}),
          best.cost, best.bytes};
}

template <typename T, int kPiece>
std::vector<std::unique_ptr<const ThinPlan>> MakeImagesOf(const ThinProblem& problem,
                                                          bool exchanged) {
  return FastestFirst(MakeImageOf<T, kPiece, kImageThreads>(problem, exchanged),
                      MakeImageOf<T, kPiece, kImageManyThreads>(problem, exchanged));
}

// The plans for fprop, or (`exchanged`) for dgrad of the problem that this one was before: what is
// likely the fastest first.
template <typename T>
std::vector<std::unique_ptr<const ThinPlan>> MakeImages(const ThinProblem& problem,
                                                        bool exchanged) {
  return Multiple(problem.in[2] * problem.in_channels, kPieceElements<T>)
             ? MakeImagesOf<T, kPieceElements<T>>(problem, exchanged)
             : MakeImagesOf<T, kWordElements<T>>(problem, exchanged);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_PLAN_H_
