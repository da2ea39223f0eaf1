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

constexpr int64_t kImageTileWindows = 4;  // of a tile, for each thread, at most
// With fewer threads on a multiprocessor, more time is spent waiting: this fraction for each
// kImageThreads. And where all wait for each other.
constexpr double kImageCostOfIdle = 0.25, kImageCostOfManyThreads = 1.05;
// Where a block has one stage, it waits for what is copied: so many instructions of a warp, and
// for each of them so many bytes arrive.
constexpr double kImageCopyWait = 150, kImageCopyBytes = 200;
constexpr int64_t kImageDivisions = 16;  // of a row into tiles, from the fewest on

inline bool HasImage(const ThinProblem& p) {
  return IsCountable(p) && p.kind == ThinKind::kFprop && IsThin(p, p.in_channels) &&
         p.dilation[2] == 1 && p.alignment >= 16 && p.out_channels <= kMaxWindow &&
         p.batch <= kMaxSize;
}

// A window's steps: one, or one for each of its planes.
inline void SetSteps(const ThinProblem& problem, int64_t steps, ImageParams* p) {
  p->planes = static_cast<int>(problem.kernel[0] / steps);
  p->steps = static_cast<int>(steps);
  p->step_rows = static_cast<int>(p->planes * problem.kernel[1]);
  p->step_units = static_cast<int>(RoundUp(int64_t{p->step_rows} * p->run_units, 2));
  p->units = static_cast<int>(steps * p->step_units);
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
  // In front: up to a piece that is aligned. Behind: the last unit, and the next pair of elements.
  const int64_t elements = (p->run_units + 1) * int64_t{kImageUnit<T>} + (tile_x - 1) * p->step + 2;
  p->row_words = static_cast<int>(RoundUp(elements, kImageUnit<T>) / kWordElements<T>);
  p->row_pieces = static_cast<int>(p->row_words * kWordElements<T> / piece);
  p->copy_bits = 5;
  while (1 << p->copy_bits < std::min(kImageThreads, p->row_pieces)) ++p->copy_bits;
}

// Where the weights lie. If `exchanged`, the problem is Exchanged: its input channels are the
// weights' output channels, and its taps theirs in reverse.
inline void SetWeights(const ThinProblem& problem, bool exchanged, ImageParams* p) {
  const int few = static_cast<int>(problem.in_channels);
  const int many = static_cast<int>(problem.out_channels);
  const int taps = static_cast<int>(problem.kernel[0] * problem.kernel[1] * problem.kernel[2]);
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
  p->channels_together = p->w_channel < p->w_tap;
  if (!exchanged) return;
  p->w_first = (taps - 1) * p->w_tap;
  p->w_tap = -p->w_tap;
}

// Instructions of a warp for a tile. A warp takes 32 windows at once, one for each of its lanes.
inline double ImageTileCost(const ImageParams& p, int64_t threads) {
  const double pairs = static_cast<double>(CeilDivide(int64_t{p.tile_x} * p.tile_y, threads));
  const double halves = p.out_channels > kImageColumns / 2 ? 2 : 1;
  const double rows =
      static_cast<double>(CeilDivide(int64_t{p.planes} * p.plane_rows << p.copy_bits, threads));
  const double copies = static_cast<double>(CeilDivide(p.row_pieces, 1 << p.copy_bits));
  const double waits = p.stages == 1
                           ? kImageCopyWait + static_cast<double>(ImageStageBytes(
                                                  int64_t{p.planes} * p.plane_rows, p.row_words)) /
                                                  kImageCopyBytes
                           : 0;
  return p.steps * (150 + waits + rows * (20 + 15 * copies)) +
         pairs * (p.steps * 30 + 90 + 40 * halves + p.units * (14 + 6 * halves));
}

// Instructions of a warp before a block's first tile: the tables, and the weights.
inline double ImageStagingCost(const ImageParams& p, int64_t threads) {
  return 200 + 30.0 * p.units * kImageThreads / static_cast<double>(threads);
}

template <typename T, int kPiece, int kThreads, template <typename, Starts> class Products>
ImageKernel ImageKernelOf(Starts starts) {
  if constexpr (sizeof(T) == 2) {
    if (starts == Starts::kElements) {
      constexpr Starts kElements = Starts::kElements;
      return ImageProduct<T, kPiece, kElements, kThreads, Products<T, kElements>>;
    }
  }
  return ImageProduct<T, kPiece, Starts::kWords, kThreads, Products<T, Starts::kWords>>;
}

template <typename T, int kPiece, int kThreads, template <typename, Starts> class Products>
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
  p.stored = static_cast<int>(PieceOf<T>(problem.out_channels) * int64_t{sizeof(T)});
  p.line = static_cast<int>(problem.in[2] * channels);
  p.plane = problem.kernel[0] > 1 ? problem.dilation[0] * problem.in[1] * p.line : 0;
  p.step = static_cast<int>(problem.strides[2] * channels);
  p.padding_line = static_cast<int>(problem.padding_low[2] * channels);
  p.run = static_cast<int>(problem.kernel[2] * channels);
  const Starts starts = StartsOf<T>(p.step);
  p.lead = starts == Starts::kWords && !Multiple(p.padding_line, kWordElements<T>);
  p.run_units = static_cast<int>(CeilDivide(p.run + p.lead, kImageUnit<T>));
  p.by_run_units = Divider(p.run_units);
  p.by_kernel_y = Divider(problem.kernel[1]);
  // Where a weight lies is an int, and each step may have one unit more.
  const int64_t most_units = problem.kernel[0] * (problem.kernel[1] * p.run_units + 1);
  if (most_units > kMaxWindow || most_units * kImageUnit<T> * problem.out_channels > kMaxWeights) {
    return {};
  }
  SetWeights(problem, exchanged, &p);

  // The tile that takes the fewest instructions, of tiles that divide a plane evenly. A row is
  // divided into many parts only if nothing else fits.
  struct Choice {
    int64_t x = 0, y = 0, steps = 0, stages = 0, at_once = 0, bytes = 0;
    double cost = 0;
  } best;
  const double of_threads =
      kThreads == kImageThreads ? 1 : kImageCostOfManyThreads * kThreads / kImageThreads;
  const auto consider = [&](Choice choice) {
    const int64_t tiles = problem.batch * problem.out[0] * CeilDivide(problem.out[1], choice.y) *
                          CeilDivide(problem.out[2], choice.x) *
                          CeilDivide(p.out_channels, kImageColumns);
    for (choice.stages = 2; choice.stages > 0; --choice.stages) {
      p.stages = static_cast<int>(choice.stages);
      choice.bytes =
          choice.stages * ImageStageBytes(int64_t{p.planes} * p.plane_rows, p.row_words) +
          ImageWeightsBytes(p.units) + ImageTableBytes(p.units, choice.x * choice.y, kThreads);
      choice.at_once = kImageBlocks<kThreads>;
      while (choice.at_once > 0 && choice.bytes > SharedBytesOf(problem.device, choice.at_once)) {
        --choice.at_once;
      }
      if (choice.at_once == 0) continue;
      const double idle =
          static_cast<double>(kImageManyThreads - choice.at_once * kThreads) / kImageThreads;
      const double of_tiles =
          ImageTileCost(p, kThreads) * Waves(tiles, problem.device.multiprocessors, choice.at_once);
      const double staging = ImageStagingCost(p, kThreads) * static_cast<double>(choice.at_once);
      choice.cost = (of_tiles + staging) * (1 + kImageCostOfIdle * idle) * of_threads;
      if (best.at_once == 0 || choice.cost < best.cost) best = choice;
    }
  };
  for (const int64_t steps : {int64_t{1}, problem.kernel[0]}) {
    SetSteps(problem, steps, &p);
    const int64_t most_windows = (steps == 1 ? kImageTileWindows : 1) * kThreads;
    int64_t parts_x = CeilDivide(problem.out[2], most_windows);
    for (int64_t i = 0; parts_x <= problem.out[2];
         ++i, parts_x += i < kImageDivisions ? 1 : parts_x) {
      if (i >= kImageDivisions && best.at_once > 0) break;
      const int64_t x = CeilDivide(problem.out[2], parts_x);
      for (int64_t rows = std::min(most_windows / x, problem.out[1]); rows > 0; --rows) {
        const int64_t y = CeilDivide(problem.out[1], CeilDivide(problem.out[1], rows));
        SetTile<T>(problem, kPiece, x, y, &p);
        consider({x, y, steps});
      }
    }
    if (problem.kernel[0] == 1) break;
  }
  if (best.at_once == 0) return {};
  SetSteps(problem, best.steps, &p);
  SetTile<T>(problem, kPiece, best.x, best.y, &p);
  p.stages = static_cast<int>(best.stages);
  p.by_step_units = Divider(p.step_units);
  p.by_units = Divider(p.units);

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
  if (Products<T, Starts::kWords>::kWarps > 1) name += "_warpgroup";
  if (kThreads != kImageThreads) name += '_' + std::to_string(kThreads);
  return {std::make_unique<ImagePlan>(
              std::move(name), p, ImageKernelOf<T, kPiece, kThreads, Products>(starts), exchanged,
              all, KernelShape{kThreads, best.bytes, problem.device.block_shared_bytes}),
          best.cost, best.bytes};
}

template <typename T, int kPiece, template <typename, Starts> class Products>
std::vector<std::unique_ptr<const ThinPlan>> MakeImagesOf(const ThinProblem& problem,
                                                          bool exchanged) {
  return FastestFirst(MakeImageOf<T, kPiece, kImageThreads, Products>(problem, exchanged),
                      MakeImageOf<T, kPiece, kImageManyThreads, Products>(problem, exchanged));
}

// The plans for fprop, or (`exchanged`) for dgrad of the problem that this one was before: what is
// likely the fastest first.
template <typename T, template <typename, Starts> class Products>
std::vector<std::unique_ptr<const ThinPlan>> MakeImages(const ThinProblem& problem,
                                                        bool exchanged) {
  return Multiple(problem.in[2] * problem.in_channels, kPieceElements<T>)
             ? MakeImagesOf<T, kPieceElements<T>, Products>(problem, exchanged)
             : MakeImagesOf<T, kWordElements<T>, Products>(problem, exchanged);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_PLAN_H_
