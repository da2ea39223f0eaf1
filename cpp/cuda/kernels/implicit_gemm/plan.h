// Convolutions of 8 to 64 channels at high resolution as products of matrices, of 16-bit elements
// or of floats as TF32. Knows the CUDA runtime and nothing of XLA or cuDNN.
// benchmarks/implicit_gemm_kernels.cu measures these kernels alone.
//
// Arrays lie batch, z, y, x, channel. The weights are read as they lie, in either order. Sums are
// in float32. Kernels, paddings and dilations are any that fit. Channels are multiples of 8, of
// floats of 4, and padded with zeros in shared memory. No image is laid out as a matrix: boxes of
// it are copied into shared memory, zeros where a box reaches out of it, and a tap is another place
// in them from which on the tensor cores' operands are read. So what lies around an image is mostly
// multiplied as zeros: a NaN among the weights may be in all results whose windows reach there.
//
// warpgroup/ is for Hopper devices (compute capability 9.0): stride 1, up to 64 channels, and up to
// 256 of the result of fprop or dgrad, except wgrad of floats. warp/ serves that, and all the rest.
//
// warpgroup/fprop.cuh has fprop and dgrad, which is fprop with y's gradient as the image and
// reversed taps.
//
//   Tile: of a plane, 1 to 4 warpgroups with 64 positions each, 8x8 or a row, by all output
//   channels; or by 16, 32 or 64 of them, so that the weights fit, while other blocks read the same
//   of the image for the rest. A block walks along z, or y if there is no z, and a plane, or row,
//   is loaded once for all taps that read it. Shared memory: all weights of a block's channels,
//   which limits kernels to about 100 taps of 64 by 16 channels; a ring of planes of the image; the
//   results of each warp. Bound: memory where taps are few, else the tensor cores.
//
//   One form has products of one tap, of 16, 32 or 64 columns, which take 5/8, 3/4 and 1 of the
//   same time, since the pixels are read for each; 8 to 32 sums a thread. The other,
//   warpgroup/fprop_planes.cuh, has those of all 3, 5 or 7 taps along the walk: 48, 80 or 112
//   columns for 16 output channels, 96 or 160 for 32, and half as many sums; those of 80 or more
//   take a time in proportion to their columns. It reads planes in front of a block's first step
//   that the first form reads without multiplying them. So it pays for long walks and 16 or 32
//   channels; of 64, products of one tap keep the tensor cores as busy. Registers: more than 112
//   columns leave room for 3 warpgroups.
//
//   Floats (warpgroup/fprop_floats.cuh) are padded to 8, 16, 32 or 64 channels. A product has half
//   the depth, so that they take the tensor cores twice the time of 16 bits, and everything twice
//   the room: the weights of 27 taps of 32 by 32 channels, or of 64 by 16, fill half of it. The
//   tensor cores leave out the last bits, so weights are rounded when they are read, and planes in
//   shared memory, by 3 warps beside the one that loads; each byte of the image passes there three
//   times instead of once, 10 to 20 % of what the products read. Results are stored from registers.
//
// warpgroup/wgrad.cuh has wgrad.
//
//   Tile: 64 rows are pixels of y's gradient, 1, 2 or 4 of them by 64, 32 or 16 channels, and up to
//   192 columns pixels of x by their channels, so that one product is of several taps; its depth is
//   16 positions. A block walks along z, along y, or through tiles, with 1 to 4 warpgroups that
//   have other taps or share positions. Shared memory: rings of planes, or tiles, of x and of y's
//   gradient. Registers: 8 to 96 sums a thread. Bound: the tensor cores where taps are many, else
//   memory; of small images the partial sums, which a second kernel adds in a fixed order.
//
// warp/fprop.cuh has fprop and dgrad, of image channels up to 128 and those of the result up to
// 256. With strides, a tile of dgrad has positions of y's gradient, and all positions of x between
// them are summed one phase after the other, each with its own taps.
//
//   Tile: of a plane, 4 to 8 warps with 32 or 64 positions each, by 16, 32 or 64 output channels. A
//   block walks along z, or y or the images if there is no z. Shared memory: the weights, or a ring
//   of chunks of them, which a first kernel lays out in the workspace as the products read them;
//   and a ring of planes, in which those are that a step reads and some of later steps. Of a
//   strided walk, planes may come one at a time. Registers: 32 or 64 sums a thread; of floats with
//   3 taps along the walk, 96, since a plane is multiplied for all 3 planes of results that read
//   it, and is the only one that is held. Bound: memory where taps or channels are few, else the
//   tensor cores, or shared memory, which gives operands in about the same time.
//
// warp/wgrad.cuh has wgrad, of up to 128 channels on both sides.
//
//   Tile: up to 16 warps, each with the sums of one or several taps, of 16 input channels by 16 or
//   32 output channels each; warps that are left over share the positions. What does not fit a
//   block is split over blocks, which read the images again through the second cache. Shared
//   memory: rings of planes of x and of y's gradient; floats are rounded there once, by the threads
//   that copied them. Registers: up to 64 sums a thread. Bound: shared memory, else memory; of
//   small images the partial sums.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_PLAN_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace jax_convgrad {

enum class GemmKind { kFprop, kDgrad, kWgrad };
enum class GemmType { kF16, kBF16, kTf32 };  // kTf32: arrays of float32, multiplied as TF32
// How weights lie: output channel, z, y, x, input channel; or z, y, x, input channel, output
// channel.
enum class GemmWeights { kOutIn, kInOut };

// Which of the ways to compute a problem are wanted: those that may be the fastest, or all that
// fit.
enum class GemmWanted { kFastest, kAll };

struct GemmDevice {
  int64_t multiprocessors = 1;
  int64_t shared_bytes = 0;        // of a multiprocessor
  int64_t block_shared_bytes = 0;  // of a block, at most
  bool has_warpgroups = false;     // compute capability 9.0
};

// The convolution x -> y without groups. Arrays lie batch, z, y, x, channel. An axis that is not
// there has the neutral values. Sizes and attributes are checked and no array is empty.
struct ImplicitGemmProblem {
  using PerAxis = std::array<int64_t, 3>;  // z, y, x

  GemmKind kind = GemmKind::kFprop;
  GemmType type = GemmType::kBF16;
  GemmWeights weights = GemmWeights::kOutIn;
  int64_t batch = 1;
  int64_t in_channels = 8;
  int64_t out_channels = 8;
  PerAxis in{1, 1, 1};
  PerAxis kernel{1, 1, 1};
  PerAxis out{1, 1, 1};
  PerAxis strides{1, 1, 1};
  PerAxis padding_low{0, 0, 0};
  PerAxis dilation{1, 1, 1};
  int64_t alignment = 16;       // bytes, of every array
  int64_t workspace_limit = 0;  // bytes
  GemmDevice device;            // of compute capability 8.0 or more
};

struct ImplicitGemmArrays {
  void* x;
  void* w;
  void* y;
  void* workspace;  // 256 bytes aligned
};

// One way to compute a problem, with all numbers that its kernels need. Sums in float32, in an
// order that the problem, the device's size and the name decide: the same bits every time.
class ImplicitGemmPlan {
 public:
  virtual ~ImplicitGemmPlan() = default;

  // The plans for a problem, what is likely the fastest first; none if no kernel serves it, a size
  // is beyond what the kernels count to, or the workspace limit is too low. Tests want all.
  static std::vector<std::unique_ptr<const ImplicitGemmPlan>> Candidates(
      const ImplicitGemmProblem& problem, GemmWanted wanted = GemmWanted::kFastest);

  // Whether the first of them is likely to be faster than a library's kernels, as on an H200.
  static bool IsFast(const ImplicitGemmProblem& problem);

  virtual const std::string& name() const = 0;
  virtual int64_t workspace_bytes() const = 0;
  // Whether some block copies more into a ring of slots in shared memory than it has slots, so that
  // these are used again. Tests ask for it.
  virtual bool ReusesSlots() const = 0;
  // Launches and returns; every element of the result is written.
  virtual cudaError_t Run(const ImplicitGemmArrays& arrays, cudaStream_t stream) const = 0;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_PLAN_H_
