// How the source's pixels come into shared memory for few_outputs.cuh: steps of some channels of
// all rows that a tile reads of a plane, through all planes of all tiles of a block, each step into
// the next of a ring of stages. A stage has rows of pixels, each of four pieces of 16 bytes.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_COPIES_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_COPIES_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/common/bulk_copy.cuh"
#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/thin/few_outputs_params.cuh"
#include "cuda/kernels/thin/ring.cuh"

namespace jax_convgrad {

// The byte of a piece of a pixel of a stage: eight neighbors' lie in different banks. That of the
// pixel 8 further is 8 * kFewPixelBytes further.
__device__ inline int FewPlaceInStage(int pixel, int piece) {
  return (pixel * kFewPieces + (piece ^ (pixel / 2 % kFewPieces))) * 16;
}

// The barriers of the stages lie where the last eight columns would have the weights of their last
// one, if that does not exist, else behind the weights.
template <int kColumns>
__device__ inline BulkBarrier* FewBarriersOf(const FewParams& p, uint2* weights) {
  const int parts = p.kernel[0] * p.kernel[1] * p.steps * kColumns;
  return reinterpret_cast<BulkBarrier*>(p.columns < kColumns * 8
                                            ? weights + (kColumns - 1) * kFewPart + 28
                                            : weights + parts * kFewPart);
}

// A tile's first pixel of the result.
struct FewPlace {
  int image, z, y, x;
};

__device__ inline FewPlace FewPlaceOf(const FewParams& p, int tile) {
  FewPlace place;
  place.x = p.by_tiles_x.Split(&tile) * p.result_x;
  place.y = p.by_tiles_y.Split(&tile) * p.tile_y;
  place.z = p.by_planes.Split(&tile);
  place.image = tile;
  return place;
}

// The next step to be copied.
template <bool kDgrad>
struct FewStep {
  int tile, step = 0, stage = 0;
  FewTaps of_z;  // the rest of them

  __device__ FewStep(const FewParams& p, int first_tile) : tile(first_tile) { BeginTile(p); }

  __device__ void Advance(const FewParams& p) {
    if (++stage == p.stages) stage = 0;
    if (++step < p.steps) return;
    step = 0;
    NextTap<kDgrad>(p, 0, &of_z);
    if (of_z.tap < p.kernel[0]) return;
    tile += p.tile_step;
    BeginTile(p);
  }

  __device__ void BeginTile(const FewParams& p) {
    of_z = TapsOf<kDgrad>(p, 0, FewPlaceOf(p, tile).z);
  }
};

// Every thread copies pieces of its own.
template <typename T, bool kDgrad>
class FewCopies {
 public:
  __device__ FewCopies(const FewParams& p, unsigned char* stages, BulkBarrier*)
      : p_(p), stages_(stages), next_(p, static_cast<int>(blockIdx.x)) {
    const int thread = static_cast<int>(threadIdx.x);
    x_ = thread / kFewPieces & (p.across - 1);  // a power of two
    row_ = thread / kFewPieces >= p.across;     // there are one or two
    piece_ = thread % kFewPieces;
    to_ = FewPlaceInStage(row_ * p.tile_x + x_, piece_);
  }

  // Begins with the first steps.
  __device__ void Begin() {
    for (int i = 1; i < p_.stages; ++i) Next();
  }

  // Waits for the oldest step, and for all threads to be done with the one before.
  __device__ void Wait() { WaitForOldest(p_.stages); }

  // Begins with the next step, if there is one.
  __device__ void Next() {
    if (next_.tile < p_.tiles) {
      Copy();
      next_.Advance(p_);
    }
    CommitCopies();
  }

 private:
  __device__ void Copy() {
    if (next_.step == 0) {
      const FewPlace at = FewPlaceOf(p_, next_.tile);
      plane_exists_ = Inside(next_.of_z.source, p_.source_size[0]);
      from_y_ = FirstRead<kDgrad>(p_, 1, at.y) + row_;
      from_x_ = FirstRead<kDgrad>(p_, 2, at.x) + x_;
      const int64_t row = (static_cast<int64_t>(at.image) * p_.source_size[0] + next_.of_z.source) *
                              p_.source_size[1] +
                          from_y_;
      from_ = static_cast<const T*>(p_.source) + (row * p_.source_size[2] + from_x_) * p_.channels +
              piece_ * kPieceElements<T>;
    }
    const int row_bytes = p_.tile_x * kFewPixelBytes;
    const bool channels_exist =
        plane_exists_ && next_.step * kFewDepth<T> + piece_ * kPieceElements<T> < p_.channels;
    unsigned char* const of_stage = stages_ + next_.stage * FewStageBytes(p_) + to_;
    for (int x = 0; x < p_.tile_x; x += p_.across) {
      const bool exists = channels_exist && Inside(from_x_ + x, p_.source_size[2]);
      const T* from = from_ + x * p_.channels;
      unsigned char* to = of_stage + x * kFewPixelBytes;
#pragma unroll 1
      for (int line = 0; line + row_ < p_.source_rows; line += p_.copy_rows) {
        CopyAsync(to, from, exists && Inside(from_y_ + line, p_.source_size[1]));
        from += p_.source_jump;
        to += p_.copy_rows * row_bytes;
      }
    }
    from_ += kFewDepth<T>;
  }

  const FewParams& p_;
  unsigned char* const stages_;
  FewStep<kDgrad> next_;
  int x_, row_, piece_, to_;  // the thread's own
  bool plane_exists_ = false;
  int from_y_ = 0, from_x_ = 0;  // of the tile
  const T* from_ = nullptr;
};

// One warp has the device copy boxes.
template <typename T, bool kDgrad>
class FewBulkCopies {
 public:
  __device__ FewBulkCopies(const FewParams& p, unsigned char* stages, BulkBarrier* barriers)
      : p_(p), stages_(stages), barriers_(barriers), next_(p, static_cast<int>(blockIdx.x)) {}

  __device__ void Begin() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < p_.stages; ++i) barriers_[i].Init();
    }
    if (threadIdx.x < 32) __syncwarp();
    for (int i = 1; i < p_.stages; ++i) Next();
    __syncthreads();
  }

  __device__ void Wait() {
    barriers_[stage_].Wait(odd_);
    if (++stage_ == p_.stages) {
      stage_ = 0;
      odd_ ^= 1;
    }
    __syncthreads();
  }

  __device__ void Next() {
    if (threadIdx.x >= 32 || next_.tile >= p_.tiles) return;
    Copy();
    next_.Advance(p_);
  }

 private:
  __device__ void Copy() {
    const FewPlace at = FewPlaceOf(p_, next_.tile);
    const int y = FirstRead<kDgrad>(p_, 1, at.y);
    const int x = FirstRead<kDgrad>(p_, 2, at.x);
    BulkBarrier* const barrier = barriers_ + next_.stage;
    if (threadIdx.x == 0) barrier->Expect(FewStageBytes(p_));
    __syncwarp();
    unsigned char* const stage = stages_ + next_.stage * FewStageBytes(p_);
    for (int i = static_cast<int>(threadIdx.x); i < p_.boxes; i += 32) {
      int row = i;
      const int of_row = p_.by_boxes_x.Split(&row) * p_.box_x;
      unsigned char* const to = stage + (row * p_.box_rows * p_.tile_x + of_row) * kFewPixelBytes;
      BulkCopy(to, p_.map, next_.step * kFewDepth<T>, x + of_row, y + row * p_.box_rows,
               next_.of_z.source, at.image, barrier);
    }
  }

  const FewParams& p_;
  unsigned char* const stages_;
  BulkBarrier* const barriers_;
  FewStep<kDgrad> next_;
  int stage_ = 0;
  uint32_t odd_ = 0;
};

template <typename T, bool kDgrad>
using FewCopiesOf =
    std::conditional_t<kHasBulkCopies, FewBulkCopies<T, kDgrad>, FewCopies<T, kDgrad>>;

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_COPIES_CUH_
