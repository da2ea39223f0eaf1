// Convolutions that memory bounds, of 16-bit elements or of floats as TF32, by CUDA kernels of this
// project on tensor cores. Knows the CUDA runtime and nothing of XLA or cuDNN. The search is
// offered these kernels where a call names them (kernels/plan.h); benchmarks/thin_kernels.cu
// measures them alone.
//
// Arrays lie batch, z, y, x, channel. The weights are read as they lie, in either order. Sums are
// in float32. Each kernel's file says how it works; here is what it serves, and what it takes, of
// 16 bits. Of floats, what has as many bytes has half of the elements.
//
// Windows side by side (windows_copies.cuh), fprop, dgrad and wgrad, of 16 bits: the stride is the
// kernel along each axis, there is neither padding nor dilation. These are up-convolutions (dgrad
// used forwards), patch embeddings, 1x1 convolutions, and the gradients of all of them. Output
// channels are a multiple of 8, the elements of a window's row are even in number. A window is a
// row of a matrix, and each pass is one product.
//
//   pass   result          rows      columns               depth
//   fprop  y               windows   output channels       elements of a window
//   dgrad  x               windows   elements of a window  output channels
//   wgrad  partial sums    channels  elements of a window  windows
//
//   By warps (windows.cuh), on every device. Tile: for fprop and dgrad 128 windows by 128 or 64
//   columns in steps of 64 of the depth; for wgrad 128 or 64 channels by 128 elements in steps of
//   32 windows. A warp has 32 by 64. Shared memory: a ring of 2 to 4 steps' rows, 16 KB each,
//   through all tiles of a block, and all weights of the block's columns if they fit beside it,
//   else 16 or 8 KB of them a step. For wgrad 4 steps of 16 or 12 KB. Registers: 64 sums a thread,
//   at most 128 registers, so that two blocks of 256 threads or four of 128 are on a multiprocessor
//   at once (168 and three for 64 channels; twice as many where runs are copied by 4 bytes). Bound:
//   memory while the depth, or for wgrad the smaller of channels and window, is below about 300 on
//   an H100; the tensor cores beyond.
//
//   By warpgroups (windows_warpgroup.cuh), on Hopper, of more than 64 columns, or 128 where runs
//   are copied by 4 bytes. Tile: for fprop and dgrad 128 or 192 windows by 128, 192 or 256 columns;
//   for wgrad 128 channels by 128 or 256 elements; in steps of 64. A warpgroup has 64 rows and all
//   columns. Shared memory: a ring of 3 or 4 steps' rows and weights, or all weights if they fit
//   beside the rows. Registers: 64 to 128 sums a thread; two blocks of 256 threads on a
//   multiprocessor with 128 columns, else one of 256 or 384. Bound: memory while the depth is below
//   about 300; then what the second cache gives, since each tile reads its rows and weights from
//   it.
//
// A side is thin that has at most 16 channels; where windows have one tap also with up to 32 that
// are no multiple of 8, so that libraries have to pad them.
//
// Image (image.cuh), fprop: a thin x, any number of output channels; any kernel, stride and
// padding, dilation along z and y.
//
//   Tile: rows of windows, up to 4 windows a thread of one plane, by 64 output channels; a warp has
//   32 windows at a time. The depth is the window's elements, each row of it padded to 8. Of
//   windows with several planes, all at once or one after the other, then 1 window a thread.
//   Shared memory: one or two tiles' part of the image in its own layout, all weights of the block.
//   Registers: 64 sums a thread, at most 128 registers, four blocks of 128 threads or one of 512,
//   which shares the weights of large windows among more warps: the search tries both, unless
//   one is unlikely to win.
//   Bound: memory up to a depth of about 150 at 64 output channels on an H200, then instructions:
//   those that read a lane's operands, a word each, are more than those that multiply. Where output
//   channels are no multiple of 8, stores of a few bytes.
//
//   By warpgroups (image_warpgroup.cuh), on Hopper, of 16 bits: the same tiles. The tensor cores
//   read the weights, and a third of the instructions is gone.
//
// Image (image_wgrad.cuh), wgrad: the same layers.
//
//   Tile: the result is elements of a window by output channels; a block has 32 or 64 channels and
//   as many elements as its 16 warps take; a warp has 16 to 80 by 32 channels. Its depth is up to
//   1024 windows, neighbors in memory, which warps with the same elements and channels share.
//   Shared memory: 2 to 4 tiles' gradients and part of the image in its layout, of the planes that
//   the block's elements are in, up to all that a block may have. Registers: 16 to 80 sums a
//   thread, at most 128 registers, one block of 512 threads. Bound: memory up to windows of about
//   150 elements on an H100, if they begin at even elements (64 channels of 16 windows are 2 KB,
//   about 160 cycles of a multiprocessor's share of memory; each 16 elements take 12 of the tensor
//   cores' cycles and 13 instructions a scheduler); the issue of instructions beyond. Where windows
//   begin at odd elements too, memory up to about 80.
//
// Few outputs (few_outputs.cuh), fprop and dgrad: a thin result, at most 32 of its channels times
// taps along x; the other side has a multiple of 8; any kernel, padding and dilation, and strides
// (dgrad's channels times the stride along x are at most 256). With a stride, fprop multiplies
// pixels that no window's first column is at: dgrad, and fprop with stride 1, are what it is for.
//
//   Tile: rows of the result by 32 to 512 pixels of the source, at most 512 pixels in all; a warp
//   has two times 32 pixels of one row, and multiplies both at once where they take the same taps.
//   Steps of 32 channels of a plane of the source. Shared memory: a ring of 2 to 4 steps of all
//   rows that the tile reads, the products of the tile in float32, all weights. Registers: 16 to 64
//   sums a thread, at most 128 registers and two blocks of 256 threads; one block for more than 24
//   columns, and, as the search finds, where larger tiles gain more than a second block. Bound:
//   memory up to about 3x3 taps on an H100; shared memory beyond, which gives 12 to 16 cycles to
//   each 32 pixels, 16 channels and row of taps.
//
// Few outputs (image.cuh), dgrad: a thin y, any number of input channels, stride 1; any kernel and
// padding, dilation along z and y. y's gradient is the image, each pixel of x a window of it, and
// this is fprop with reversed taps: what lies around y's gradient is multiplied as zeros. Tile,
// shared memory, registers and bound are those of image fprop.
//
// Few outputs (image_wgrad.cuh), wgrad: a thin y, any number of input channels, stride 1; any
// kernel and padding, dilation along z and y. x and y's gradient exchange their roles: y's gradient
// is the image and each pixel of x a window of it. So what lies around y's gradient is multiplied
// as zeros, and a NaN of x that only some taps read is in the gradients of all. Tile, shared
// memory, registers and bound are those of image wgrad.
//
// How tiles follow from the device: of the choices that its shared memory admits, windows take the
// one with the most blocks on a multiprocessor, since one's stores hide behind another's products;
// then the most stages. Image and few outputs take the tile with the fewest instructions in all, by
// a count of what the kernels do, halo, what is cut off and a last wave that is not full included;
// wgrad of images the one with which the last block is done first. A block does as
// many tiles as leave four blocks for each place on the device, so that those that finish late are
// a small part; for image and few outputs fewer blocks, down to one for each place, where staging
// the weights would be more than an eighth of a block's work. wgrad's windows are shared among as
// many blocks as the device has places, which leave their sums in the workspace; a second kernel
// (parts_sum.cuh) adds these in a fixed order.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_PLAN_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace jax_convgrad {

enum class ThinKind { kFprop, kDgrad, kWgrad };
// Floats are multiplied as TF32.
enum class ThinType { kF16, kBF16, kTf32 };
// How weights lie: output channel, z, y, x, input channel; or z, y, x, input channel, output
// channel.
enum class ThinWeights { kOutIn, kInOut };

struct ThinDevice {
  int64_t multiprocessors = 1;
  int64_t shared_bytes = 0;        // of a multiprocessor
  int64_t block_shared_bytes = 0;  // of a block, at most
  bool has_warpgroups = false;     // compute capability 9.0
};

// The convolution x -> y without groups. Arrays lie batch, z, y, x, channel. An axis that is not
// there has the neutral values. Sizes and attributes are checked and no array is empty.
struct ThinProblem {
  using PerAxis = std::array<int64_t, 3>;  // z, y, x

  ThinKind kind = ThinKind::kFprop;
  ThinType type = ThinType::kBF16;
  ThinWeights weights = ThinWeights::kOutIn;
  int64_t batch = 1;
  int64_t in_channels = 1;
  int64_t out_channels = 1;
  PerAxis in{1, 1, 1};
  PerAxis kernel{1, 1, 1};
  PerAxis out{1, 1, 1};
  PerAxis strides{1, 1, 1};
  PerAxis padding_low{0, 0, 0};
  PerAxis dilation{1, 1, 1};
  int64_t alignment = 16;       // bytes, of every array
  int64_t workspace_limit = 0;  // bytes
  ThinDevice device;
};

struct ThinArrays {
  void* x;
  void* w;
  void* y;
  void* workspace;  // 256 bytes aligned
};

// One way to compute a problem, with all numbers that its kernels need. Sums in float32, in an
// order that the problem, the device's size and the name decide: the same bits every time.
class ThinPlan {
 public:
  virtual ~ThinPlan() = default;

  // The plans for a problem, what is likely the fastest first; none if no kernel serves it, a size
  // is beyond what the kernels count to, or the workspace limit is too low.
  static std::vector<std::unique_ptr<const ThinPlan>> Candidates(const ThinProblem& problem);

  // Whether the first of them is likely to be faster than a library's kernels, as on an H100 and,
  // of warpgroups, an H200.
  static bool IsFast(const ThinProblem& problem);

  virtual const std::string& name() const = 0;
  virtual int64_t workspace_bytes() const = 0;
  // Launches and returns; every element of the result is written.
  virtual cudaError_t Run(const ThinArrays& arrays, cudaStream_t stream) const = 0;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_PLAN_H_
