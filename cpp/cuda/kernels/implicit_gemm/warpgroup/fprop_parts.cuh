// What the forms of the kernel of fprop and dgrad share (fprop.cuh,
// fprop_planes.cuh): the ring of planes and the thread that fills it, the taps of one
// plane, and the way of sums to the result.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_PARTS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_PARTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/common/bulk_copy.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/common/warpgroup_product.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_params.h"
#include "cuda/kernels/implicit_gemm/warpgroup/ring.cuh"

namespace jax_convgrad {

// What one kernel is made for: the depth, input channels in 16s, or 8, 16, 32 or 64 floats; the
// output channels of a block, whole lines of results; taps of the walk that one product has; and
// how the weights lie.
template <typename T_, int kDepth_, int kColumns_, int kTaps_, Lines kWeights>
struct FpropForm {
  using T = T_;
  static constexpr int kDepth = kDepth_, kColumns = kColumns_, kTaps = kTaps_;
  static constexpr int kProductColumns = kTaps * kColumns, kSums = kProductColumns / 2;
  static constexpr bool kFloats = std::is_same_v<T, float>;
  static constexpr int kDepthBytes = kDepth * static_cast<int>(sizeof(T));
  static constexpr int kDepthLine = kDepthBytes <= 64 ? kDepthBytes : 128;
  static constexpr int kColumnsLine = kColumns * 2;  // of 16-bit elements
  // More than a line has is in a second half of a slot, and of a product's weights.
  static constexpr int kHalves = kDepthBytes <= 128 ? 1 : 2;
  static constexpr int kWeightsHalf = kProductColumns * kDepthLine;
  static constexpr bool kAcross = kWeights == Lines::kAcrossDepth;
  static constexpr int kWeightsLine = kAcross ? kColumnsLine : kDepthLine;
  static_assert(kDepthBytes % 32 == 0 && kDepthBytes <= kHalves * 128, "as products take it");
  static_assert(!(kFloats && kAcross), "floats are not transposed");

  using Pixels = SwizzledOperand<Lines::kAlongDepth, kDepthLine>;
  using Weights = SwizzledOperand<kWeights, kWeightsLine>;

  // Of lines along the depth, those of all taps of a product follow each other. Else each tap has
  // its own, of the columns of one.
  __device__ static Weights FirstWeights(const FpropParams& p, const unsigned char* shared) {
    return Weights(shared, 8 * kWeightsLine, kAcross ? p.tap_bytes : 16);
  }
};

// The barriers in shared memory.
struct FpropBarriers {
  __device__ FpropBarriers(const FpropParams& p, unsigned char* shared)
      : loaded(reinterpret_cast<BulkBarrier*>(shared + p.barriers_at)),
        read(loaded + p.stages),
        weights(read + p.stages),
        rounded(weights + 1) {}

  BulkBarrier* loaded;   // of each slot: its plane is there
  BulkBarrier* read;     // of each slot: all warps have multiplied it
  BulkBarrier* weights;  // they are there
  BulkBarrier* rounded;  // of each slot: its floats are rounded
};

// What a block has: steps of all strips, and output channels from one on.
struct FpropShare {
  __device__ FpropShare(const FpropParams& p, int columns) {
    const int block = static_cast<int>(blockIdx.x);
    begin = GemmWalkBegin(p.walk, block / p.column_tiles);
    end = GemmWalkBegin(p.walk, block / p.column_tiles + 1);
    channel = block % p.column_tiles * columns;
  }

  int begin, end, channel;
};

// The part of a tile that a warpgroup has.
struct FpropOwn {
  __device__ explicit FpropOwn(const FpropParams& p)
      : y(WarpgroupNumber() / p.part.along_x), x(WarpgroupNumber() % p.part.along_x) {}

  // Where its pixels are in a slot.
  __device__ int bytes(const FpropParams& p) const {
    return y * p.part_row_bytes + x * p.part_column_bytes;
  }

  int y, x;  // which of the parts
};

// By one thread: loads the weights of a block, of 16-bit elements.
template <typename Form>
__device__ inline void FpropLoadWeights(const FpropParams& p, unsigned char* shared,
                                        const FpropBarriers& barriers, const FpropShare& share) {
  const int channel = Form::kAcross ? share.channel : 0, row = Form::kAcross ? 0 : share.channel;
  const int together = p.taps / Form::kTaps;  // places in a plane, or all taps
  barriers.weights->Expect(p.taps * p.tap_bytes);
  for (int tap = 0; tap < p.taps; ++tap) {
    const int place = tap % together * Form::kTaps + Form::kTaps - 1 - tap / together;
    BulkCopy(shared + place * p.tap_bytes, p.weights, channel, row,
             p.reversed ? p.taps - 1 - tap : tap, 0, 0, barriers.weights);
  }
}

// By one thread: loads all planes that a block reads, and the weights but of floats.
template <typename Form>
__device__ inline void FpropLoad(const FpropParams& p, unsigned char* shared) {
  const FpropBarriers barriers(p, shared);
  const FpropShare share(p, Form::kColumns);
  if constexpr (!Form::kFloats) FpropLoadWeights<Form>(p, shared, barriers, share);
  RingPlace ring;
  for (int step = share.begin; step < share.end;) {
    const GemmPlace place = GemmPlaceOf(p.walk, step, share.end);
    const int x = place.x - p.padding[2], y = place.y - p.padding[1];
    const FpropPlanes planes = FpropPlanesOf(p, place, Form::kTaps > 1);
    int z = place.z - p.padding[0] + planes.begin * p.dilation[0];
    for (int plane = planes.begin; plane < planes.end; ++plane) {
      // The first time around nothing has been there to read.
      barriers.read[ring.slot].Wait(ring.odd ^ 1);
      BulkBarrier* const loaded = barriers.loaded + ring.slot;
      loaded->Expect(Form::kHalves * p.boxes * p.box_bytes);
      unsigned char* const to = shared + p.ring_at + ring.slot * p.slot_bytes;
#pragma unroll
      for (int half = 0; half < Form::kHalves; ++half) {
        for (int box = 0; box < p.boxes; ++box) {
          BulkCopy(to + half * p.half_bytes + box * p.box_bytes, p.image, half * 32,
                   x + box * p.box_columns, y, z, place.image, loaded);
        }
      }
      z += p.dilation[0];
      ring.Next(p.stages);
    }
    step += place.steps;
  }
}

// By a warp, when it has read a slot.
__device__ inline void FpropRelease(const FpropParams& p, const FpropBarriers& barriers,
                                    RingPlace* place) {
  ArriveWarp(&barriers.read[place->slot]);
  place->Next(p.stages);
}

// Begins to add the products of one plane's pixels, and moves `weights` behind those of its taps.
// Each loop has a first turn, so that no products are behind a branch: the compiler would have each
// of them awaited before the next.
template <typename Form>
__device__ inline void FpropAddPlane(const FpropParams& p, const typename Form::Pixels& plane,
                                     typename Form::Weights* weights, float (&sums)[Form::kSums]) {
  const int tap_bytes = Form::kTaps * p.tap_bytes;
  typename Form::Pixels row = plane;
  int rows = p.kernel[1];
  do {
    typename Form::Pixels at = row;
    int columns = p.kernel[2];
#pragma unroll 1
    do {
#pragma unroll
      for (int k = 0; k < Form::kDepthBytes / 32; ++k) {
        // 32 bytes of a line, or 16 lines.
        const int of_weights =
            Form::kAcross ? k * 16 * Form::kColumnsLine : k / 4 * Form::kWeightsHalf + k % 4 * 32;
        MultiplySwizzled<Form::kProductColumns>(static_cast<const typename Form::T*>(nullptr),
                                                at.At(k / 4 * p.half_bytes + k % 4 * 32),
                                                weights->At(of_weights), true, sums);
      }
      at = at.At(p.tap_column_bytes);
      *weights = weights->At(tap_bytes);
    } while (--columns > 0);
    row = row.At(p.tap_row_bytes);
  } while (--rows > 0);
}

// The first kColumns sums of a position, rounded and in pairs, as matrices are stored.
template <typename Form>
__device__ inline void FpropRound(const float (&sums)[Form::kSums],
                                  uint32_t (&words)[Form::kColumns / 4]) {
#pragma unroll
  for (int i = 0; i < Form::kColumns / 4; ++i) {
    words[i] =
        RoundedPair(static_cast<const typename Form::T*>(nullptr), sums[i * 2], sums[i * 2 + 1]);
  }
}

// Stores the results of a warp's 16 positions, of which the first is at (z, y, x), through its part
// of shared memory.
template <typename Form>
__device__ inline void FpropStore(const FpropParams& p, const uint32_t (&words)[Form::kColumns / 4],
                                  unsigned char* staged, int channel, int image, int z, int y,
                                  int x) {
  constexpr int kPieces = Form::kColumnsLine / 16;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int line = lane % 16 * Form::kColumnsLine;
  if (lane == 0) WaitForBulkStores<0>();
  __syncwarp();
#pragma unroll
  for (int i = 0; i < Form::kColumns / 16; ++i) {
    const uint32_t matrices[4] = {words[i * 4], words[i * 4 + 1], words[i * 4 + 2],
                                  words[i * 4 + 3]};
    // As a tensor map of such lines has the pieces.
    const int piece = (i * 2 + lane / 16) ^ (line >> 7 & (kPieces - 1));
    StoreMatrices(staged + line + piece * 16, matrices);
  }
  ShowBulkCopies();
  __syncwarp();
  if (lane == 0) {
    BulkStore(p.result, staged, channel, x, y, z, image);
    CommitBulkStores();
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_PARTS_CUH_
