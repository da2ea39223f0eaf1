// Plans for wgrad of a thin image, and with a thin y. Their kernel is in image_wgrad.cuh.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_WGRAD_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_WGRAD_PLAN_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "cuda/kernels/common/parts_sum.cuh"
#include "cuda/kernels/thin/image_wgrad.cuh"
#include "cuda/kernels/thin/launch.h"
#include "cuda/kernels/thin/plan.h"
#include "ffi/integers.h"

namespace jax_convgrad {

using ImageWgradKernel = void (*)(ImageWgradParams);

class ImageWgradPlan : public KernelPlan<ImageWgradParams> {
 public:
  ImageWgradPlan(std::string name, const ImageWgradParams& params, Kernel kernel, bool exchanged,
                 int64_t shared_bytes, const PartsSumParams& sum, PartsSumKernel sum_kernel,
                 int64_t block_shared_bytes)
      : KernelPlan(std::move(name), params, kernel,
                   {kImageWgradThreads, shared_bytes, block_shared_bytes}),
        exchanged_(exchanged),
        adder_(sum_kernel, sum) {}

  int64_t workspace_bytes() const override { return adder_.workspace_bytes(); }

  cudaError_t Run(const ThinArrays& arrays, cudaStream_t stream) const override {
    ImageWgradParams called = params();
    called.x = exchanged_ ? arrays.y : arrays.x;
    called.y = exchanged_ ? arrays.x : arrays.y;
    called.partial = static_cast<float*>(arrays.workspace);
    const int64_t blocks = int64_t{called.parts} * called.row_tiles * called.channel_tiles;
    const cudaError_t status = LaunchWith(called, blocks, stream);
    if (status != cudaSuccess) return status;
    return adder_.Run(arrays, stream);
  }

 private:
  const bool exchanged_;
  const PartsAdder adder_;
};

constexpr int64_t kImageWgradTileWindows = 1024;  // of a tile, at most

// What a multiprocessor of an H100 does in a cycle, or takes for: only ratios matter here.
constexpr double kImageWgradBytes = 13;     // of what all of them read from memory
constexpr double kImageWgradFragments = 6;  // cycles, to read a warp's channels of 16 windows
constexpr double kImageWgradTile = 400;     // cycles, to begin and to end a tile

// How the elements of windows are read.
struct ImageWgradForm {
  bool apart;  // each of a lane's, else in pairs
  int64_t element_bytes;
  int64_t max_groups;   // with more, a lane had too few registers
  double group_cycles;  // of 16 elements and 32 channels of 16 windows
};

template <typename T>
ImageWgradForm ImageWgradFormOf(Starts starts) {
  if (sizeof(T) == 4) return {true, 4, 3, 12};
  if (starts == Starts::kElements) return {true, 2, 3, 9};
  return {false, 2, 5, 6};
}

inline bool HasImageWgrad(const ThinProblem& p) {
  return IsCountable(p) && p.kind == ThinKind::kWgrad && IsThin(p, p.in_channels) &&
         p.dilation[2] == 1 && p.out_channels <= kMaxWindow;
}

// Cycles for 16 windows with `groups` times 16 rows for each of the row warps.
inline double ImageWgradStepCycles(const ImageWgradForm& form, const ImageWgradParams& p,
                                   int64_t groups) {
  const auto warps = static_cast<double>(p.channel_warps * p.row_warps);
  return warps * (static_cast<double>(groups) * form.group_cycles + kImageWgradFragments);
}

// The most planes of windows that `block_rows` neighboring rows of the result are in.
inline int64_t PlanesOf(const ThinProblem& problem, int64_t block_rows, const ImageWgradParams& p) {
  const int64_t of_plane = p.run_rows * problem.kernel[1];
  int64_t most = 0;
  for (int64_t first = 0; first < p.rows; first += block_rows) {
    const int64_t last = std::min<int64_t>(first + block_rows, p.rows) - 1;
    most = std::max(most, last / of_plane - first / of_plane + 1);
  }
  return most;
}

// Shares the result among blocks and warps and returns the groups of a warp.
inline int64_t ShareImageWgrad(const ThinProblem& problem, const ImageWgradForm& form,
                               ImageWgradParams* p) {
  // 64 channels of a block, unless half of them would be in vain.
  p->channel_warps = CeilDivide(p->channels, kImageWgradChannels) % 2 == 0 ? 2 : 1;
  const int64_t channels = p->channel_warps * kImageWgradChannels;
  p->channel_tiles = static_cast<int>(CeilDivide(p->channels, channels));
  // Each tile of rows reads the gradient again, and its planes of the image, which mostly come from
  // the cache.
  const double bytes = static_cast<double>(kImageWgradDepth * channels * form.element_bytes);
  const double plane_bytes = static_cast<double>(kImageWgradDepth * form.element_bytes) * p->step *
                             static_cast<double>(problem.strides[1]);
  const int64_t all = CeilDivide(p->rows, kImageWgradRows);
  double best = 0;
  int64_t best_groups = 0, best_warps = 0;
  for (int64_t warps = 1; warps <= kImageWgradWarps / p->channel_warps; warps *= 2) {
    for (const int64_t groups : {5, 3, 2, 1}) {
      if (groups > form.max_groups) continue;
      p->row_warps = static_cast<int>(warps);
      const double tiles = static_cast<double>(CeilDivide(all, groups * warps));
      const int64_t planes = PlanesOf(problem, groups * warps * kImageWgradRows, *p);
      const double read = bytes + plane_bytes * static_cast<double>(planes) / 2;
      const double cycles =
          tiles * std::max(read / kImageWgradBytes, ImageWgradStepCycles(form, *p, groups));
      if (best_groups != 0 && cycles >= best) continue;
      best = cycles;
      best_groups = groups;
      best_warps = warps;
    }
  }
  p->row_warps = static_cast<int>(best_warps);
  p->row_tiles = static_cast<int>(CeilDivide(all, best_groups * best_warps));
  p->depth_warps = static_cast<int>(kImageWgradWarps / (p->channel_warps * best_warps));
  return best_groups;
}

// Sets the tile's windows and what is staged for them; returns the bytes of the image's part.
inline int64_t SetImageWgradTile(const ThinProblem& problem, int64_t element_bytes, int64_t planes,
                                 int64_t tile_x, int64_t tile_y, ImageWgradParams* p) {
  const int64_t plane_rows =
      (tile_y - 1) * problem.strides[1] + (problem.kernel[1] - 1) * problem.dilation[1] + 1;
  const int64_t image_rows = plane_rows * planes;
  // In front: up to a piece that is aligned.
  const int64_t piece = 16 / element_bytes;
  const int64_t row_words = CeilDivide(piece - 1 + (tile_x - 1) * p->step + p->run_rows, piece) * 4;
  p->tile_x = static_cast<int>(tile_x);
  p->tile_y = static_cast<int>(tile_y);
  p->windows = static_cast<int>(tile_x * tile_y);
  p->steps = static_cast<int>(CeilDivide(p->windows, kImageWgradDepth));
  p->plane_rows = static_cast<int>(plane_rows);
  p->image_rows = static_cast<int>(image_rows);
  p->row_words = static_cast<int>(row_words);
  return image_rows * row_words * 4;
}

// Of the tiles that fit shared memory, the one with which the last block is done first.
inline int64_t ChooseImageWgradTile(const ThinProblem& problem, const ImageWgradForm& form,
                                    int64_t groups, int64_t max_parts, ImageWgradParams* p) {
  const int64_t results = int64_t{p->channel_tiles} * p->row_tiles;
  const int64_t places = std::max<int64_t>(1, problem.device.multiprocessors / results);
  const double step_cycles = ImageWgradStepCycles(form, *p, groups);
  const int64_t planes = PlanesOf(problem, groups * p->row_warps * kImageWgradRows, *p);
  const int64_t max_bytes = SharedBytesOf(problem.device, 1);
  ImageWgradParams chosen{};
  int64_t shared_bytes = 0;
  double best = 0;
  int64_t last_x = 0;
  for (int64_t wanted_x = kImageWgradTileWindows; wanted_x > 0; wanted_x = wanted_x * 3 / 4) {
    const int64_t tile_x = CeilDivide(problem.out[2], CeilDivide(problem.out[2], wanted_x));
    if (tile_x == last_x) continue;
    last_x = tile_x;
    int64_t last_y = 0;
    // Several rows only if these are whole: then a tile's windows are neighbors in memory.
    const int64_t max_y = tile_x == problem.out[2] ? kImageWgradTileWindows / tile_x : 1;
    for (int64_t wanted_y = max_y; wanted_y > 0; --wanted_y) {
      const int64_t tile_y = CeilDivide(problem.out[1], CeilDivide(problem.out[1], wanted_y));
      if (tile_y == last_y) continue;
      last_y = tile_y;
      const int64_t image_bytes =
          SetImageWgradTile(problem, form.element_bytes, planes, tile_x, tile_y, p);
      if (image_bytes > max_bytes) continue;
      const int64_t gradient_bytes =
          form.element_bytes * ImageWgradGradientElements(p->steps, p->channel_warps);
      const auto bytes_of = [&](int64_t stages) {
        return std::max(stages * (gradient_bytes + image_bytes) + ImageWgradTableBytes(p->steps),
                        ImageWgradSumsBytes(groups));
      };
      p->stages = 4;
      while (p->stages > 1 && bytes_of(p->stages) > max_bytes) --p->stages;
      if (p->stages == 1) continue;

      const int64_t tiles_x = CeilDivide(problem.out[2], tile_x);
      const int64_t tiles_y = CeilDivide(problem.out[1], tile_y);
      p->tiles = static_cast<int>(problem.batch * problem.out[0] * tiles_y * tiles_x);
      const int64_t parts = std::clamp<int64_t>(places, 1, std::min<int64_t>(max_parts, p->tiles));
      p->parts = static_cast<int>(parts);
      // Rows that tiles share mostly come from the cache.
      const double read = static_cast<double>(gradient_bytes + image_bytes / 2) / kImageWgradBytes;
      const double multiplied =
          static_cast<double>(CeilDivide(p->steps, p->depth_warps) * p->depth_warps) * step_cycles;
      const double cycles = read + static_cast<double>(CeilDivide(p->tiles, parts)) *
                                       (std::max(read, multiplied) + kImageWgradTile);
      if (shared_bytes != 0 && cycles >= best) continue;
      best = cycles;
      shared_bytes = bytes_of(p->stages);
      p->by_tile_x = Divider(tile_x);
      p->by_tiles_x = Divider(tiles_x);
      p->by_tiles_y = Divider(tiles_y);
      chosen = *p;
    }
  }
  *p = chosen;
  return shared_bytes;
}

// How often a warp reads shared memory for its elements of 16 windows: once for each group and
// window of a lane if no two lanes want different words of a bank. Of the first groups, if many.
inline int64_t ImageWgradReads(const ImageWgradForm& form, const ImageWgradParams& p) {
  constexpr int64_t kBanks = 32, kMaxRows = 16 * kImageWgradRows;
  int64_t reads = 0;
  for (int64_t first = 0; first < std::min<int64_t>(p.rows, kMaxRows); first += kImageWgradRows) {
    for (int64_t i = 0; i < (form.apart ? 2 : 1); ++i) {
      std::array<int64_t, kBanks> words{}, counts{};
      for (int64_t lane = 0; lane < 32; ++lane) {
        const int64_t row = first + lane / 4 * 2 + i < p.rows ? first + lane / 4 * 2 + i : 0;
        const int64_t window_row = row / p.run_rows;
        const int64_t line =
            window_row / p.kernel_y * p.plane_rows + window_row % p.kernel_y * p.dilation[1];
        const int64_t word =
            line * p.row_words + (row % p.run_rows + lane % 4 * p.step) * form.element_bytes / 4;
        // A lane counts unless the last one of its bank wants the same word.
        const auto bank = static_cast<size_t>(word % kBanks);
        if (counts[bank] == 0 || words[bank] != word) ++counts[bank];
        words[bank] = word;
      }
      reads += *std::max_element(counts.begin(), counts.end());
    }
  }
  return reads;
}

// Moves the staged rows apart, as far as `max_bytes` more allow, such that lanes that read
// different rows read different banks. Returns the bytes that this takes.
inline int64_t SpreadImageWgradRows(const ImageWgradForm& form, int64_t max_bytes,
                                    ImageWgradParams* p) {
  constexpr int kPieceWords = 4;
  const int row_words = p->row_words;
  const int64_t row_bytes = int64_t{p->stages} * p->image_rows * 4;
  int64_t best = 0;
  int chosen = row_words;
  for (int apart = 0; apart < 32 && apart * row_bytes <= max_bytes; apart += kPieceWords) {
    p->row_words = row_words + apart;
    const int64_t reads = ImageWgradReads(form, *p);
    if (apart > 0 && reads >= best) continue;
    best = reads;
    chosen = p->row_words;
  }
  p->row_words = chosen;
  return (chosen - row_words) * row_bytes;
}

// For ImageWgradForm's numbers of groups.
template <typename T, Starts kStarts, bool kRagged>
ImageWgradKernel ImageWgradKernelOf(int64_t groups) {
  if (groups == 1) return ImageWgrad<T, 1, kStarts, kRagged>;
  if (groups == 2) return ImageWgrad<T, 2, kStarts, kRagged>;
  if (groups == 3) return ImageWgrad<T, 3, kStarts, kRagged>;
  if constexpr (kStarts == Starts::kWords && sizeof(T) == 2 && !kRagged) {
    return ImageWgrad<T, 5, kStarts, kRagged>;
  }
  return nullptr;
}

template <typename T, bool kRagged>
ImageWgradKernel ImageWgradKernelOf(Starts starts, int64_t groups) {
  if constexpr (sizeof(T) == 2) {
    if (starts == Starts::kElements) {
      return ImageWgradKernelOf<T, Starts::kElements, kRagged>(groups);
    }
  }
  return ImageWgradKernelOf<T, Starts::kWords, kRagged>(groups);
}

// Where the rows, taps of a thin image's channels, and the columns of the sums lie in the weights.
inline void SetWeights(const ThinProblem& problem, bool exchanged, PartsSumParams* sum) {
  const int64_t few = problem.in_channels, many = problem.out_channels;
  const int64_t taps = problem.kernel[0] * problem.kernel[1] * problem.kernel[2];
  sum->by_inner_rows = Divider(few);
  if (problem.weights == ThinWeights::kInOut) {
    sum->of_outer_row = few * many;
    sum->of_inner_row = exchanged ? 1 : many;
    sum->of_column = exchanged ? few : 1;
  } else {
    sum->of_outer_row = exchanged ? many : few;
    sum->of_inner_row = exchanged ? taps * many : 1;
    sum->of_column = exchanged ? 1 : taps * few;
  }
  if (!exchanged) return;
  sum->first = (taps - 1) * sum->of_outer_row;
  sum->of_outer_row = -sum->of_outer_row;
}

template <typename T>
std::unique_ptr<const ThinPlan> MakeImageWgrad(const ThinProblem& problem, bool exchanged) {
  ImageWgradParams p{};
  for (size_t axis = 0; axis < 3; ++axis) {
    p.in[axis] = static_cast<int>(problem.in[axis]);
    p.out[axis] = static_cast<int>(problem.out[axis]);
    p.strides[axis] = static_cast<int>(problem.strides[axis]);
    p.padding[axis] = static_cast<int>(problem.padding_low[axis]);
    p.dilation[axis] = static_cast<int>(problem.dilation[axis]);
  }
  const int64_t in_channels = problem.in_channels;
  p.channels = static_cast<int>(problem.out_channels);
  p.channel_bytes = static_cast<int>(PieceOf<T>(p.channels) * int64_t{sizeof(T)});
  p.sixteen = Multiple(problem.in[2] * in_channels, kPieceElements<T>);
  p.line = static_cast<int>(problem.in[2] * in_channels);
  p.step = static_cast<int>(problem.strides[2] * in_channels);
  p.padding_line = static_cast<int>(problem.padding_low[2] * in_channels);
  p.run = static_cast<int>(problem.kernel[2] * in_channels);
  const Starts starts = StartsOf<T>(p.step);
  ImageWgradForm form = ImageWgradFormOf<T>(starts);
  const bool is_ragged = p.channel_bytes < 16 || !Multiple(p.line, kWordElements<T>);
  if (is_ragged) form.max_groups = std::min<int64_t>(form.max_groups, kImageWgradRaggedGroups);
  p.lead = starts == Starts::kWords && !Multiple(p.padding_line, kWordElements<T>);
  p.run_rows = static_cast<int>(form.apart ? p.run : CeilDivide(p.run + p.lead, 2) * 2);
  const int64_t window_rows = problem.kernel[0] * problem.kernel[1];
  const int64_t size = window_rows * p.run;
  if (window_rows * p.run_rows > kMaxWindow || size * p.channels > kMaxWeights) return nullptr;
  p.size = static_cast<int>(size);
  p.rows = static_cast<int>(window_rows * p.run_rows);
  p.by_run_rows = Divider(p.run_rows);
  p.kernel_y = static_cast<int>(problem.kernel[1]);
  p.by_kernel_y = Divider(p.kernel_y);
  p.by_out_z = Divider(problem.out[0]);

  const int64_t groups = ShareImageWgrad(problem, form, &p);
  const int64_t max_parts = problem.workspace_limit / (4 * size * p.channels);
  if (max_parts < 1) return nullptr;
  int64_t shared_bytes = ChooseImageWgradTile(problem, form, groups, max_parts, &p);
  if (shared_bytes == 0) return nullptr;
  p.by_plane_rows = Divider(p.plane_rows);
  p.row_pieces = p.row_words / (p.sixteen ? 4 : 1);
  const int64_t row_parts = CeilDivide(p.row_pieces, 32);
  p.by_row_parts = Divider(row_parts);
  p.image_parts = static_cast<int>(p.image_rows * row_parts);
  shared_bytes += SpreadImageWgradRows(form, SharedBytesOf(problem.device, 1) - shared_bytes, &p);
  if (int64_t{p.parts} * p.row_tiles * p.channel_tiles > kMaxPositions) return nullptr;

  PartsSumParams sum{};
  sum.rows = p.size;
  sum.columns = p.channels;
  sum.parts = p.parts;
  sum.by_columns = Divider(sum.columns);
  SetWeights(problem, exchanged, &sum);
  const ImageWgradKernel kernel = is_ragged ? ImageWgradKernelOf<T, true>(starts, groups)
                                            : ImageWgradKernelOf<T, false>(starts, groups);
  return std::make_unique<ImageWgradPlan>(exchanged ? "few_outputs_wgrad" : "image_wgrad", p,
                                          kernel, exchanged, shared_bytes, sum, PartsSum<T>,
                                          problem.device.block_shared_bytes);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_WGRAD_PLAN_H_
