// How blocks share the positions of a result. Plain arithmetic, for the host and the device.
//
// Positions are cut into tiles of a plane. Blocks walk along z, in steps of the dilation if windows
// are dilated, so that planes follow each other whose taps read the same planes of the image. A
// strip is what such a walk passes: an image, a phase, which is z modulo the dilation, and a tile.
// A step is one plane of it; blocks share the steps of all strips in equal parts that lie together.
// The last steps of a strip may be behind the last plane, and are not stored.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WALK_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WALK_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace jax_convgrad {

struct GemmWalk {
  int rows, columns;     // of a tile
  int tiles_y, tiles_x;  // of a plane
  int phases;            // planes from one step of a strip to the next, if it has several
  int length;            // steps of a strip
  int steps;             // of all strips
  int blocks;            // that share them
};

struct GemmPlace {
  int image, z, y, x;  // the first position of a step
  int steps;           // up to the strip's end, or to the block's
};

__host__ __device__ inline int GemmWalkBegin(const GemmWalk& w, int block) {
  return static_cast<int>(static_cast<int64_t>(w.steps) * block / w.blocks);
}

// Where a step is: which strip, and how many of its steps are before it.
struct GemmStep {
  int image, phase, y, x, along;
  int steps;  // as a place has them
};

__host__ __device__ inline GemmStep GemmStepOf(const GemmWalk& w, int step, int end) {
  GemmStep of;
  int strip = step / w.length;
  of.along = step - strip * w.length;
  of.steps = w.length - of.along < end - step ? w.length - of.along : end - step;
  of.x = strip % w.tiles_x * w.columns;
  strip /= w.tiles_x;
  of.y = strip % w.tiles_y * w.rows;
  strip /= w.tiles_y;
  of.phase = strip % w.phases;
  of.image = strip / w.phases;
  return of;
}

__host__ __device__ inline GemmPlace GemmPlaceOf(const GemmWalk& w, int step, int end) {
  const GemmStep of = GemmStepOf(w, step, end);
  return {of.image, of.phase + of.along * w.phases, of.y, of.x, of.steps};
}

// The most that a block has of what `of_place` counts for each place that it passes.
template <typename OfPlace>
int64_t GemmMostOfBlock(const GemmWalk& w, const OfPlace& of_place) {
  int64_t most = 0;
  for (int block = 0; block < w.blocks; ++block) {
    int64_t of_block = 0;
    const int end = GemmWalkBegin(w, block + 1);
    for (int step = GemmWalkBegin(w, block); step < end;) {
      const GemmPlace place = GemmPlaceOf(w, step, end);
      of_block += of_place(place);
      step += place.steps;
    }
    if (of_block > most) most = of_block;
  }
  return most;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WALK_H_
