// What few_outputs.cuh and few_outputs_copies.cuh have in common: the kernel's parameters, and what
// of the source a result reads.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_PARAMS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_PARAMS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/tensor_map.h"
#include "cuda/kernels/common/warp_product.cuh"

namespace jax_convgrad {

constexpr int kFewThreads = 256;
// Of a multiprocessor, as registers allow.
template <int kColumns>
constexpr int kFewBlocks = kColumns < 4 ? 2 : 1;
constexpr int kFewUnits = 2;  // of a warp: 32 pixels of the source, for one row of the result
constexpr int kFewWarps = kFewThreads / 32;
constexpr int kFewTileUnits = kFewUnits * kFewWarps;
constexpr int kFewPieces = 4;  // of 16 bytes, of a pixel in a step
constexpr int kFewPixelBytes = kFewPieces * 16;
constexpr int kFewDepths = kFewPieces / 2;            // of a product each, of a step
constexpr int kFewCopied = kFewThreads / kFewPieces;  // pixels, at once
constexpr int kFewAdded = 4;                          // elements that a thread adds at once
constexpr int kFewPart = 64;  // pairs of words: the weights of eight columns in a step

// Channels of the source in a step.
template <typename T>
constexpr int kFewDepth = kFewPieces * kPieceElements<T>;

// Floats between the products of two neighboring pixels. An odd number of eights: four pixels then
// begin in different banks.
template <int kColumns>
constexpr int kFewPitch = 8 * (kColumns | 1);

// dgrad along an axis: the taps that read anything for a position of the result, and what they
// read. With strides and dilation divided by their common factor: every stride-th tap, and a
// position less by the dilation each time.
struct FewAxis {
  int common = 1;  // factor of stride and dilation
  int stride = 1, dilation = 1;
  int inverse = 1;  // of the dilation, modulo the stride
  // Added to a position of the result, padding included, so that nothing below is negative.
  int shift = 0, shift_strides = 0;
  // The same for the first position that is read, which is rounded up to whole strides.
  int first_shift = 0, first_strides = 0;
  Divider by_common, by_stride, by_whole_stride;
};

struct FewParams {
  TensorMap map;  // of the source, for devices that copy boxes
  const void* source;
  const void* w;
  void* result;
  int source_size[3], result_size[3];
  int kernel[3], strides[3], padding[3], dilation[3];
  int channels;                     // of the source
  int few;                          // of the result
  int columns;                      // few * kernel x
  int64_t w_tap, w_channel, w_few;  // elements between weights
  int steps;                        // of kFewDepth, of a plane
  int last_depths;                  // that the last step of a plane has, at most kFewDepths
  int stages;                       // of steps in shared memory at once: 2, 3 or 4
  int tile_x;                       // pixels of the source, a multiple of 32
  int tile_y;                       // rows of the result
  int result_x;                     // pixels of the result that a tile has
  int source_rows;                  // that a tile reads of a plane
  // A thread copies every `across`-th pixel of every `copy_rows`-th row.
  int across, copy_rows;
  int64_t source_jump;  // elements between such rows
  // Or the device copies boxes, `boxes` a step.
  int boxes, box_x, box_rows;
  Divider by_boxes_x;
  int tiles, tile_step;  // in all, between those of a block
  // Threads that add up the elements of a row of a tile, and how many rows are added at once. Where
  // the threads are fewer than the elements, their number is a multiple of FewPeriod, so that a
  // thread's elements have the same taps: they read what is `add_pixels` of the source apart.
  int add_lanes, add_rows, add_pixels;
  bool add_along_x;  // several elements of a row at once, not of a column
  Divider by_units_x, by_steps, by_add_lanes, by_add_rows, by_few;
  Divider by_tiles_x, by_tiles_y, by_planes;
  FewAxis axes[3];
};

__device__ inline int FewStageBytes(const FewParams& p) {
  return p.source_rows * p.tile_x * kFewPixelBytes;
}

// The first position of the source that result `at` reads along an axis, inside or not.
template <bool kDgrad>
__device__ inline int FirstRead(const FewParams& p, int axis, int at) {
  if constexpr (!kDgrad) return at * p.strides[axis] - p.padding[axis];
  const FewAxis& a = p.axes[axis];
  return a.by_whole_stride.Quotient(at + a.first_shift) - a.first_strides;
}

// The taps that read for a result along an axis: `tap` and every TapStep-th behind it. They read
// `source` and every SourceStep-th behind that, inside the source or not.
struct FewTaps {
  int tap, source;
};

template <bool kDgrad>
__device__ inline int TapStep(const FewParams& p, int axis) {
  return kDgrad ? p.axes[axis].stride : 1;
}

template <bool kDgrad>
__device__ inline int SourceStep(const FewParams& p, int axis) {
  return kDgrad ? -p.axes[axis].dilation : p.dilation[axis];
}

template <bool kDgrad>
__device__ inline FewTaps TapsOf(const FewParams& p, int axis, int at) {
  if constexpr (!kDgrad) return {0, at * p.strides[axis] - p.padding[axis]};
  const FewAxis& a = p.axes[axis];
  int shifted = at + a.shift;
  if (a.common != 1 && a.by_common.Split(&shifted) != 0) return {p.kernel[axis], 0};
  int source = shifted;
  int tap = a.by_stride.Split(&source);
  if (a.dilation != 1) {
    int product = tap * a.inverse;
    tap = a.by_stride.Split(&product);
    source = a.by_stride.Quotient(shifted - tap * a.dilation);
  }
  return {tap, source - a.shift_strides};
}

template <bool kDgrad>
__device__ inline void NextTap(const FewParams& p, int axis, FewTaps* taps) {
  taps->tap += TapStep<kDgrad>(p, axis);
  taps->source += SourceStep<kDgrad>(p, axis);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_PARAMS_CUH_
