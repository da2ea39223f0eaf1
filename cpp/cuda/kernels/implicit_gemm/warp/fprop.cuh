// fprop and dgrad of any stride by single warps, of 16-bit elements and of floats as TF32.
//
// A row of a product is one position, read from where its pixel is staged: a tap is a distance from
// there, so that strides, dilation and reversed taps are in a table. Columns are output channels,
// whose weights stay in shared memory in the order of fragments. dgrad with strides sums one phase
// of all groups after the other; a phase without taps is zeros.
//
// While a block multiplies a step, the planes of as many later steps as the ring has room for are
// on their way.
//
// One form multiplies all taps of a step's results. The other takes one plane a step and multiplies
// it for all kPlanes planes of results that read it: pixels are read once for several taps, and the
// ring holds one plane instead of kPlanes. Sums move by one plane with each step.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warp/fprop_params.h"
#include "cuda/kernels/implicit_gemm/warp/planes.cuh"
#include "cuda/kernels/implicit_gemm/warp/weights.cuh"

namespace jax_convgrad {

// One step after the other of a block, as their planes are copied, and where these are in the ring.
class alignas(16) WarpFpropSteps {
 public:
  WarpFpropSteps() = default;
  __device__ WarpFpropSteps(const WarpFpropParams& p, int share)
      : next_(GemmWalkBegin(p.walk, share)), end_(GemmWalkBegin(p.walk, share + 1)) {
    BeginStrip(p);
  }

  __device__ bool exists() const { return exists_; }
  __device__ WarpFpropStep step(const WarpFpropParams& p) const {
    return {image_, z_,          y_,
            x_,     slot_,       planes_,
            part_,  index_ == 0, index_ >= p.lead && part_ + 1 == p.parts};
  }

  __device__ void Next(const WarpFpropParams& p) {
    const bool goes_on = ++index_ < count_;
    const int by = goes_on ? p.advance : p.held;
    slot_ += by;
    if (slot_ >= p.slots) slot_ -= p.slots;
    planes_ += static_cast<unsigned>(by);
    if (!goes_on) {
      BeginStrip(p);
    } else if (++part_ == p.parts) {
      part_ = 0;
      z_ += p.next_z;
    }
  }

 private:
  __device__ void BeginStrip(const WarpFpropParams& p) {
    exists_ = next_ < end_;
    if (!exists_) return;
    const GemmPlace place = GemmPlaceOf(p.walk, next_, end_);
    image_ = place.image;
    z_ = place.z;
    y_ = place.y;
    x_ = place.x;
    next_ += place.steps;
    index_ = 0;
    part_ = 0;
    count_ = place.steps * p.parts + p.lead;
  }

  int next_, end_;  // steps of the walk
  int image_ = 0, z_ = 0, y_ = 0, x_ = 0;
  int index_ = 0, count_ = 0;  // in the strip
  int part_ = 0;
  int slot_ = 0;
  unsigned planes_ = 0;
  bool exists_ = false;
};

static_assert(sizeof(WarpFpropSteps) <= kWarpFpropKeptBytes, "the room that a warp has");
static_assert(kWarpFpropMaxPending - 1 <= kWarpMaxPending, "those behind the step that is awaited");

// The planes of a step that the step before did not read.
__device__ inline void CopyWarpFpropStep(const WarpFpropParams& p, const WarpFpropStep& step,
                                         unsigned char* ring) {
  const int z = step.z * p.steps[0] + p.first[0] + step.part * p.spacing;
  const int y = step.y * p.steps[1] + p.first[1], x = step.x * p.steps[2] + p.first[2];
  for (int plane = step.begins ? 0 : p.held - p.advance; plane < p.held; ++plane) {
    int slot = step.slot + plane;
    if (slot >= p.slots) slot -= p.slots;
    CopyWarpPlane(p.image, ring + slot * p.slot_bytes, step.image, z + plane * p.spacing, y, x);
  }
}

// Weights of two products of 8 columns and a unit of depth.
constexpr int kWarpPairBytes = 512;

// Begins to copy a chunk of the weights that were laid out in memory.
__device__ inline void CopyWarpWeights(const unsigned char* from, int bytes, unsigned char* to) {
  const int step = static_cast<int>(blockDim.x) * kWarpPieceBytes;
  for (int at = static_cast<int>(threadIdx.x) * kWarpPieceBytes; at < bytes; at += step) {
    CopyAsync(to + at, from + at, true);
  }
}

// Sums of a warp: planes, fragments of positions, products of 8 columns.
template <int kFragments, int kColumns, int kPlanes>
using WarpFpropSums = float[kPlanes][kFragments][kColumns / 8][4];

// Adds the products from number `product` to before `end`, whose weights follow each other.
// `pixels` is where each fragment's row of the lane begins in the ring, from `first_byte`, for a
// tap of distance zero.
template <typename T, int kFragments, int kColumns, int kPlanes>
__device__ inline void MultiplyWarpTaps(const WarpFpropParams& p, const unsigned char* weights,
                                        const unsigned char* ring, int first_byte,
                                        const int (&pixels)[kFragments], int product, int end,
                                        WarpFpropSums<kFragments, kColumns, kPlanes>& sums) {
  if (product >= end) return;
  const unsigned char* of_weights = weights + threadIdx.x % 32 * 16;
  const auto begin_of = [&](int tap) {
    const int at = first_byte + p.taps[tap];
    return at < p.ring_bytes ? at : at - p.ring_bytes;
  };
  int tap = product;
  int unit = p.by_units.Split(&tap);
  tap *= kPlanes;
  int at = begin_of(tap) + unit * kWarpDepthBytes;
  uint32_t next[kFragments][4];
#pragma unroll
  for (int m = 0; m < kFragments; ++m) LoadMatrices(ring + (at + pixels[m]), next[m]);
#pragma unroll 2
  for (; product < end; ++product) {
    uint32_t a[kFragments][4];
#pragma unroll
    for (int i = 0; i < kFragments * 4; ++i)
      a[i / 4][i % 4] = MultipliedWord<T>(next[i / 4][i % 4]);
    at += kWarpDepthBytes;
    if (++unit == p.weights.units) {
      unit = 0;
      // What is read behind the last tap is not multiplied.
      tap = tap + kPlanes < p.weights.taps ? tap + kPlanes : tap;
      at = begin_of(tap);
    }
#pragma unroll
    for (int m = 0; m < kFragments; ++m) LoadMatrices(ring + (at + pixels[m]), next[m]);
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; n += 2) {
        const uint4 b = *reinterpret_cast<const uint4*>(of_weights);
        of_weights += kWarpPairBytes;
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          MultiplyAdd(static_cast<const T*>(nullptr), a[m], b.x, b.y, sums[plane][m][n]);
          MultiplyAdd(static_cast<const T*>(nullptr), a[m], b.z, b.w, sums[plane][m][n + 1]);
        }
      }
    }
  }
}

// Writes a phase of the groups of a warp, of which `first` is the first of the tile.
template <typename T, int kFragments, int kColumns>
__device__ inline void StoreWarpSums(const WarpFpropParams& p, const WarpFpropStep& step, int first,
                                     int first_channel, int phase,
                                     const float (&sums)[kFragments][kColumns / 8][4]) {
  constexpr int kStored = WarpStored<T>(kColumns), kChannels = 2 * kStored;
  const int lane = static_cast<int>(threadIdx.x) % 32, channels = p.weights.columns;
  int phase_z = phase;
  const int phase_x = p.by_phases_x.Split(&phase_z), phase_y = p.by_phases_y.Split(&phase_z);
  const int z = step.z * p.phases[0] + phase_z;
  if (z >= p.sizes[0]) return;
  const int channel = first_channel + lane % 4 * kChannels;
  T* const to_plane =
      static_cast<T*>(p.result) + channel +
      (static_cast<int64_t>(step.image) * p.sizes[0] + z) * p.sizes[1] * p.sizes[2] * channels;
#pragma unroll
  for (int i = 0; i < 2 * kFragments; ++i) {
    int row = first + i * 8 + lane / 4;
    if (row >= p.walk.rows * p.walk.columns) break;
    const int column = p.by_tile_columns.Split(&row);
    const int y = (step.y + row) * p.phases[1] + phase_y;
    const int x = (step.x + column) * p.phases[2] + phase_x;
    if ((y >= p.sizes[1]) | (x >= p.sizes[2])) continue;
    T* const to = to_plane + (static_cast<int64_t>(y) * p.sizes[2] + x) * channels;
#pragma unroll
    for (int n = 0; n < kColumns / 8; n += kStored) {
      if (channel + n * 8 >= channels) continue;
      Pack<uint32_t, kChannels / kWordElements<T>> words;
#pragma unroll
      for (int word = 0; word < kChannels / kWordElements<T>; ++word) {
        const float* const of = sums[i / 2][n + word * kWordElements<T> / 2] + i % 2 * 2;
        if constexpr (sizeof(T) == 2) {
          words.value[word] = RoundedPair(static_cast<const T*>(nullptr), of[0], of[1]);
        } else {
          words.value[word] = BitsOf<uint32_t>(of[word % 2]);
        }
      }
      *reinterpret_cast<decltype(words)*>(to + n * 8) = words;
    }
  }
}

template <typename T, int kFragments, int kColumns, int kPlanes>
__global__ void __launch_bounds__(kWarpFpropThreads, 1)
    WarpFprop(const __grid_constant__ WarpFpropParams p) {
  WarpFpropStep* const steps = SharedMemory<WarpFpropStep>();
  WarpFpropSteps* const kept =
      reinterpret_cast<WarpFpropSteps*>(steps + kWarpFpropSteps) + threadIdx.x / 32;
  unsigned char* const weights = SharedMemory<unsigned char>() + kWarpFpropStepsBytes;
  unsigned char* const ring = weights + p.ring_at;
  const int lane = static_cast<int>(threadIdx.x) % 32, block = static_cast<int>(blockIdx.x);
  const int first_channel = block % p.column_tiles * kColumns;

  // Copies all steps that there is room for while planes from the one with number `oldest` on are
  // read; `at` is where those that are pending are. What is needed of a step when it is multiplied
  // waits in shared memory, and so does, of each warp, which steps come then: registers are scarce.
  // Barriers are between two calls.
  int pending = 0;
  bool more = true;
  const auto copy = [&](WarpFpropSteps copied, unsigned oldest, int at) {
    while (pending < kWarpFpropMaxPending && copied.exists()) {
      const WarpFpropStep step = copied.step(p);
      if (static_cast<int>(step.planes - oldest) + p.held > p.slots) break;
      if (threadIdx.x == 0) steps[(at + pending) % kWarpFpropSteps] = step;
      CopyWarpFpropStep(p, step, ring);
      CommitCopies();
      ++pending;
      copied.Next(p);
    }
    more = copied.exists();
    __syncwarp();
    if (lane == 0) *kept = copied;
  };
  copy(WarpFpropSteps(p, block / p.column_tiles), 0, 0);

  // Chunks of weights follow each other through all parts, and then from the first one on again.
  const bool streams = p.chunks > 1;
  const int chunk_bytes = p.chunk_products * p.product_weights;
  const auto copy_chunk = [&](int part, int chunk, int slot) {
    const int first = chunk * p.chunk_products;
    CopyWarpWeights(static_cast<const unsigned char*>(p.arranged) +
                        block % p.column_tiles * p.arranged_tile +
                        static_cast<int64_t>(part * p.products + first) * p.product_weights,
                    min(p.chunk_products, p.products - first) * p.product_weights,
                    weights + slot * chunk_bytes);
    CommitCopies();
  };
  if (streams) {
    for (int i = 0; i + 1 < p.chunk_slots; ++i) copy_chunk(0, i, i);
  } else {
    StageWarpWeights<T>(p.weights, kColumns, kPlanes, first_channel, static_cast<int>(threadIdx.x),
                        static_cast<int>(blockDim.x), reinterpret_cast<uint32_t*>(weights));
  }

  // A warp's groups. Those behind the tile's last one read what that one reads.
  constexpr int kRows = kFragments * kWarpFragmentRows;
  const int first = static_cast<int>(threadIdx.x) / 32 * kRows;
  const int groups = p.walk.rows * p.walk.columns;
  int pixels[kFragments];
#pragma unroll
  for (int m = 0; m < kFragments; ++m) {
    int row = min(first + m * kWarpFragmentRows + lane % 16, groups - 1);
    const int column = p.by_tile_columns.Split(&row);
    pixels[m] = row * p.row_step_bytes + column * p.image.pixel_bytes + lane / 16 * kWarpPieceBytes;
  }
  // Whether any of a warp's groups of a step are inside.
  const auto has_groups = [&](const WarpFpropStep& step) {
    if (first >= groups) return false;
    int first_row = first, last_row = min(first + kRows, groups) - 1;
    const int column = p.by_tile_columns.Split(&first_row);
    p.by_tile_columns.Split(&last_row);
    return step.y + first_row < p.groups[1] &&
           (last_row != first_row || step.x + column < p.groups[2]);
  };

  WarpFpropSums<kFragments, kColumns, kPlanes> sums;
  constexpr int kPlaneSums = kFragments * kColumns / 2;
  const auto clear = [&](int plane) {
#pragma unroll
    for (int i = 0; i < kPlaneSums; ++i) {
      sums[plane][i * 2 / kColumns][i / 4 % (kColumns / 8)][i % 4] = 0;
    }
  };
  int read_slot = 0;
  for (int at = 0; pending > 0 || more; at = (at + 1) % kWarpFpropSteps) {
    if (pending == 0) {  // a strip begins for which there was no room
      __syncthreads();
      copy(*kept, kept->step(p).planes, at);
      if (streams) WaitForPendingCopies(0);
    }
    --pending;
    int phase = 0;
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      // Of chunks, the last ones may be on their way. A step's planes were begun with one before.
      WaitForPendingCopies(streams ? p.chunk_slots - 2 : pending);
      __syncthreads();
      const WarpFpropStep& step = steps[at];
      if (chunk == 0 && more) copy(*kept, step.planes, at + 1);
      const unsigned char* of_chunk = weights + read_slot * chunk_bytes;
      if (streams) {
        // Where the last one was comes the one that is as many behind as are on their way.
        const int next = chunk + p.chunk_slots - 1, part = step.part + 1;
        const int slot = (read_slot == 0 ? p.chunk_slots : read_slot) - 1;
        if (next < p.chunks) {
          copy_chunk(step.part, next, slot);
        } else {
          copy_chunk(part < p.parts ? part : 0, next - p.chunks, slot);
        }
        if (++read_slot == p.chunk_slots) read_slot = 0;
      } else {
        of_chunk += step.part * p.products * p.product_weights;
      }
      if (!has_groups(step)) continue;
      const int first_byte = step.slot * p.slot_bytes, first_product = step.part * p.products;
      int product = chunk * p.chunk_products;
      const int chunk_end = min(product + p.chunk_products, p.products);
      const auto multiply = [&](int end) {
        MultiplyWarpTaps<T, kFragments, kColumns, kPlanes>(p, of_chunk, ring, first_byte, pixels,
                                                           first_product + product,
                                                           first_product + end, sums);
        of_chunk += (end - product) * p.product_weights;
        product = end;
      };
      if constexpr (kPlanes == 1) {
        if (chunk == 0 && step.part == 0) clear(0);
        // The phases that end in this chunk, and then the begin of the next one.
        const int phases = p.phases[0] * p.phases[1] * p.phases[2];
        while (phase < phases) {
          const int end = p.parts > 1 ? p.products : p.phase_taps[phase + 1] * p.weights.units;
          multiply(min(end, chunk_end));
          if (end > chunk_end) break;
          if (step.stores) {
            StoreWarpSums<T, kFragments, kColumns>(p, step, first, first_channel, phase, sums[0]);
            clear(0);
          }
          ++phase;
        }
      } else {
        if (chunk == 0 && step.begins) {
#pragma unroll
          for (int plane = 0; plane < kPlanes; ++plane) clear(plane);
        }
        if (Inside(step.z + p.first[0], p.image.sizes[0])) multiply(chunk_end);
        if (chunk + 1 < p.chunks) continue;
        if (step.stores) {
          WarpFpropStep completed = step;
          completed.z -= p.lead * p.next_z;
          StoreWarpSums<T, kFragments, kColumns>(p, completed, first, first_channel, 0, sums[0]);
        }
#pragma unroll
        for (int plane = 0; plane + 1 < kPlanes; ++plane) {
#pragma unroll
          for (int i = 0; i < kPlaneSums; ++i) {
            const int m = i * 2 / kColumns, n = i / 4 % (kColumns / 8);
            sums[plane][m][n][i % 4] = sums[plane + 1][m][n][i % 4];
          }
        }
        clear(kPlanes - 1);
      }
    }
  }
  WaitForPendingCopies(0);  // chunks that no step reads
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_CUH_
