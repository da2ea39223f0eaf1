// What few_outputs.cuh and few_outputs_copies.cuh have in common: the kernel's parameters, and
// where a tile's reading begins.

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
constexpr int kFewTileUnits = kFewUnits * kFewThreads / 32;
constexpr int kFewPieces = 4;  // of 16 bytes, of a pixel in a step
constexpr int kFewPixelBytes = kFewPieces * 16;
constexpr int kFewCopied = kFewThreads / kFewPieces;  // pixels, at once
constexpr int kFewAdded = 4;                          // elements that a thread adds at once

// Channels of the source in a step.
template <typename T>
constexpr int kFewDepth = kFewPieces * kPieceElements<T>;

// Floats between the products of two neighbouring pixels. An odd number of eights: four pixels then
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
  int steps;                        // of kFewDepth
  int stages;                       // of steps in shared memory at once: 2, 3 or 4
  int tile_x;                       // pixels of the source, a multiple of 32
  int tile_y;                       // rows of the result
  int result_x;                     // pixels of the result that a tile has
  int source_rows, source_planes;   // that a tile reads
  // A thread copies every `across`-th pixel of every `copy_rows`-th row.
  int across, copy_rows;
  int64_t source_jump, source_plane;  // elements between such rows, and between planes
  // Or the device copies boxes, `boxes` a step: `boxes_y` times some rows of a plane.
  int boxes, boxes_y, box_x, box_rows;
  Divider by_boxes_x, by_boxes_y;
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
  return p.source_planes * p.source_rows * p.tile_x * kFewPixelBytes;
}

// The first position of the source that result `at` reads along an axis, inside or not.
template <bool kDgrad>
__device__ inline int FirstRead(const FewParams& p, int axis, int at) {
  if constexpr (!kDgrad) return at * p.strides[axis] - p.padding[axis];
  const FewAxis& a = p.axes[axis];
  return a.by_whole_stride.Quotient(at + a.first_shift) - a.first_strides;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_PARAMS_CUH_
