// The gradients of a dilated convolution as matrix products in tiles. For the input's gradient a
// tile is some positions of x by some input channels; its sums run over the output channels and
// over the taps that read any of its positions. For the weights' gradient there is a product for
// each tap: a tile is some output channels by some input channels, and its sums run over the
// windows whose tap reads x. Each sum is cut into steps. A worker, which is one block, does
// consecutive steps of consecutive tiles. If the worker before it began a tile, its partial sums of
// that tile go to the workspace, and are added afterwards.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_DILATED_MATMUL_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_DILATED_MATMUL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/tensor_core.cuh"
#include "cuda/kernels/dilated/work.h"

namespace jax_convgrad {

// The layout of a block's work in shared memory. A tile is kOuter positions or output channels
// times kInner input channels, which are neighbors in memory; each warpgroup computes kWarpgroup
// of these.
template <int kStages_>
struct DilatedTile {
  static constexpr int kOuter = kProductColumns;
  static constexpr int kInner = 256;
  static constexpr int kDepth = kSwizzled;  // of one step
  static constexpr int kStages = kStages_;  // of steps in shared memory at once
  static constexpr int kWarpgroup = 128;
  static constexpr int kThreads = 128 * (kInner / kWarpgroup);
  // Floats between rows of the first operand, with one row for each depth: a warp's lanes then read
  // from all banks at once.
  static constexpr int kFirstStride = kInner + 8;
  static constexpr int kFirstFloats = kDepth * kFirstStride;
  static constexpr int kSecondFloats = kOuter * kDepth;
  static constexpr int kStageFloats = kFirstFloats + kSecondFloats;
  static_assert(kStageFloats * 4 % kSwizzleBytes == 0, "every stage is aligned");
};

struct DilatedSteps {
  int first_tile;
  int first_step;
  int steps;  // of each tile
};

constexpr int kMaxDilatedRuns = 2 * kMaxDilatedRegions + 1;

struct DilatedParams {
  const float* y;
  const float* w;
  const float* x;
  const float* panels;  // of y, see DilatedTranspose
  float* result;
  float* partial;
  int in_channels, out_channels, taps;
  int in[3], out[3];
  int workers;
  bool streamed;             // the steps in equal shares; else each worker does one tile
  int steps;                 // in all
  int tiles_alone;           // in front, each a worker's own though steps are shared
  int steps_alone;           // theirs
  int share, larger_shares;  // steps of each other worker, and how many have one more
  int outer_tiles, inner_tiles;
  int runs;
  DilatedSteps run[kMaxDilatedRuns];
};

struct DilatedDgradParams : DilatedParams {
  int positions;
  int tap_steps;  // of one tap
  int regions;
  DilatedRegion region[kMaxDilatedRegions];
  uint64_t run_taps[kMaxDilatedRuns];
  int run_outer[kMaxDilatedRuns];   // the first tile of positions
  int tap_offset[kMaxDilatedTaps];  // from a position's number in y to the window's
};

struct DilatedTapParams {
  int tap;
  int windows;
  int first_out, first_in;  // the numbers of the first window and of what it reads
  int64_t panel;            // the element that its panel begins at
  Divider by_x, by_y, by_z;
};

struct DilatedWgradParams : DilatedParams {
  float* transposed;  // the panels, while they are made
  int64_t panel_floats;
  DilatedTapParams of_run[kMaxDilatedTaps];
};

// A tile and where its steps are.
struct DilatedPlace {
  int run;
  int tile;        // among those of the run
  int first_step;  // among all
  int steps;
};

__device__ inline DilatedPlace PlaceOfStep(const DilatedParams& p, int step) {
  int run = p.runs - 1;
  while (p.run[run].first_step > step) --run;
  const int tile = (step - p.run[run].first_step) / p.run[run].steps;
  return {run, tile, p.run[run].first_step + tile * p.run[run].steps, p.run[run].steps};
}

__device__ inline DilatedPlace PlaceOfTile(const DilatedParams& p, int number) {
  int run = p.runs - 1;
  while (p.run[run].first_tile > number) --run;
  const int tile = number - p.run[run].first_tile;
  return {run, tile, p.run[run].first_step + tile * p.run[run].steps, p.run[run].steps};
}

// The first step of a worker that shares steps; for a number one too large, the end of the steps.
__device__ inline int FirstStep(const DilatedParams& p, int worker) {
  if (worker < p.tiles_alone) return PlaceOfTile(p, worker).first_step;
  worker -= p.tiles_alone;
  return p.steps_alone + worker * p.share + min(worker, p.larger_shares);
}

// How a block's threads copy `rows` rows of `floats` floats, four floats at a time.
template <int kCopiedRows, int kFloats, int kThreads>
struct DilatedCopies {
  static constexpr int kInRow = kFloats / 4;
  static constexpr int kCount = kCopiedRows * kInRow / kThreads;  // of each thread
  static_assert(kCopiedRows * kInRow % kThreads == 0, "all threads copy as much");
  static constexpr bool kSameColumn = kThreads % kInRow == 0;

  static __device__ int Row(int i) {
    if constexpr (kSameColumn) {
      return static_cast<int>(threadIdx.x / kInRow) + i * (kThreads / kInRow);
    }
    return static_cast<int>((threadIdx.x + static_cast<unsigned>(i * kThreads)) / kInRow);
  }
  static __device__ int Column(int i) {
    if constexpr (kSameColumn) return static_cast<int>(threadIdx.x % kInRow) * 4;
    return static_cast<int>((threadIdx.x + static_cast<unsigned>(i * kThreads)) % kInRow) * 4;
  }
};

// The input's gradient: weights, by channels and depth, times y, by depth and positions. The
// weights are rounded to TF32 while they are copied. y goes to the tensor cores unchanged, and they
// truncate it to TF32.
template <typename Tile>
class DilatedDgrad {
  using First = DilatedCopies<Tile::kDepth, Tile::kInner, Tile::kThreads>;
  using Second = DilatedCopies<Tile::kOuter, Tile::kDepth, Tile::kThreads>;
  static_assert(Second::kSameColumn, "a thread's copies are of the same channels");

 public:
  using Params = DilatedDgradParams;
  static constexpr int kTableBytes = Tile::kOuter * 16;

  static __device__ int OuterTile(const Params& p, const DilatedPlace& place) {
    return p.run_outer[place.run] + place.tile / p.inner_tiles;
  }
  static __device__ int InnerTile(const Params& p, const DilatedPlace& place) {
    return place.tile % p.inner_tiles;
  }

  // Where an outer index of a tile begins in the result, negative if it is outside.
  static __device__ int Destination(const Params& p, const DilatedPlace& place, int outer) {
    uint64_t taps;
    int source;
    return Position(p, OuterTile(p, place) * Tile::kOuter + outer, &taps, &source);
  }

  __device__ DilatedDgrad(const Params& p, const DilatedPlace& place, int step, void* table)
      : p_(p),
        taps_(static_cast<uint64_t*>(table)),
        sources_(reinterpret_cast<int*>(taps_ + Tile::kOuter)),
        destinations_(sources_ + Tile::kOuter),
        inner_(InnerTile(p, place) * Tile::kInner) {
    for (int i = static_cast<int>(threadIdx.x); i < Tile::kOuter; i += Tile::kThreads) {
      destinations_[i] =
          Position(p, OuterTile(p, place) * Tile::kOuter + i, &taps_[i], &sources_[i]);
    }
    rest_ = p.run_taps[place.run];
    for (int i = step / p.tap_steps; i > 0; --i) rest_ &= rest_ - 1;
    channel_ = step % p.tap_steps * Tile::kDepth;
  }

  __device__ int DestinationOf(int outer) const { return destinations_[outer]; }
  __device__ int inner() const { return inner_; }

  // All of the block's threads synchronize between these two.
  __device__ void Prepare() {}
  __device__ void Start() { NextTap(); }

  // Begins copy `i` of a step's operands, or writes zeros unless `live`.
  static constexpr int kCopies = First::kCount + Second::kCount;
  __device__ void Copy(int i, bool live, float* first, float* second) const {
    if (i < First::kCount) {
      const int row = First::Row(i), column = inner_ + First::Column(i);
      const bool inside = live & (channel_ + row < p_.out_channels) & (column < p_.in_channels);
      const int from = ((channel_ + row) * p_.taps + tap_) * p_.in_channels + column;
      CopyAsync(first + row * Tile::kFirstStride + First::Column(i), p_.w + (inside ? from : 0),
                inside);
    } else {
      i -= First::kCount;
      const int channel = channel_ + Second::Column(0);
      const bool inside = live & ((inside_ >> i & 1) != 0) & (channel < p_.out_channels);
      CopyAsync(second + Swizzled(Second::Row(i), Second::Column(0)),
                p_.y + (inside ? source_[i] + channel : 0), inside);
    }
  }

  __device__ void Find() {}

  // To the next step.
  __device__ void Advance() {
    channel_ += Tile::kDepth;
    if (channel_ >= p_.out_channels) {
      channel_ = 0;
      rest_ &= rest_ - 1;
      NextTap();
    }
  }

 private:
  // The element of the result where position `number` begins, the taps that read it, and the
  // element of y where it begins. Negative, and no taps, behind the last position.
  static __device__ int Position(const Params& p, int number, uint64_t* taps, int* source) {
    *taps = 0;
    *source = 0;
    if (number >= p.positions) return -1;
    int i = p.regions - 1;
    while (p.region[i].first > number) --i;
    const DilatedRegion& region = p.region[i];
    int rest = number - region.first;
    const int x = rest % region.size[2] + region.start[2];
    rest /= region.size[2];
    const int y = rest % region.size[1] + region.start[1];
    rest /= region.size[1];
    const int z = rest % region.size[0] + region.start[0];
    const int image = rest / region.size[0];
    *taps = region.taps;
    *source = (((image * p.out[0] + z) * p.out[1] + y) * p.out[2] + x) * p.out_channels;
    return (((image * p.in[0] + z) * p.in[1] + y) * p.in[2] + x) * p.in_channels;
  }

  __device__ void NextTap() {
    tap_ = rest_ == 0 ? 0 : __ffsll(static_cast<long long>(rest_)) - 1;
    inside_ = 0;
    const int offset = p_.tap_offset[tap_] * p_.out_channels;
#pragma unroll
    for (int i = 0; i < Second::kCount; ++i) {
      const bool inside = (taps_[Second::Row(i)] & rest_ & -rest_) != 0;
      inside_ |= static_cast<unsigned>(inside) << i;
      source_[i] = sources_[Second::Row(i)] + offset;
    }
  }

  const Params& p_;
  // Of the tile's positions, in shared memory.
  uint64_t* const taps_;
  int* const sources_;
  int* const destinations_;
  const int inner_;
  uint64_t rest_;  // the taps that are still to do, this one too
  int tap_ = 0;
  int channel_;
  unsigned inside_ = 0;  // whether the tap reads the position, for each that the thread copies
  int source_[Second::kCount];
};

// The weights' gradient: x, by channels and windows, times y, by windows and output channels.
template <typename Tile>
class DilatedWgrad {
  using First = DilatedCopies<Tile::kDepth, Tile::kInner, Tile::kThreads>;
  using Second = DilatedCopies<Tile::kOuter, Tile::kDepth, Tile::kThreads>;

 public:
  using Params = DilatedWgradParams;
  static constexpr int kTableBytes = (Tile::kStages + 1) * Tile::kDepth * 4;

  static __device__ int Destination(const Params& p, const DilatedPlace& place, int outer) {
    const int out_channel = place.tile % p.outer_tiles * Tile::kOuter + outer;
    if (out_channel >= p.out_channels) return -1;
    return (out_channel * p.taps + p.of_run[place.run].tap) * p.in_channels;
  }
  static __device__ int InnerTile(const Params& p, const DilatedPlace& place) {
    return place.tile / p.outer_tiles;
  }

  __device__ DilatedWgrad(const Params& p, const DilatedPlace& place, int step, void* table)
      : p_(p),
        place_(place),
        table_(static_cast<int*>(table)),
        outer_(place.tile % p.outer_tiles * Tile::kOuter),
        inner_(InnerTile(p, place) * Tile::kInner),
        panel_stride_(place.steps * Tile::kDepth),
        panel_(p.panels + p.of_run[place.run].panel + step * Tile::kDepth),
        window_(step * Tile::kDepth) {}

  __device__ int DestinationOf(int outer) const { return Destination(p_, place_, outer); }
  __device__ int inner() const { return inner_; }

  __device__ void Prepare() {
    for (int i = 0; i <= Tile::kStages; ++i) Find();
  }
  __device__ void Start() {}

  static constexpr int kCopies = First::kCount + Second::kCount;
  __device__ void Copy(int i, bool live, float* first, float* second) const {
    if (i < First::kCount) {
      const int window = First::Row(i), inner = inner_ + First::Column(i);
      const int source = table_[slot_ * Tile::kDepth + window];
      const bool inside = live & (source >= 0) & (inner < p_.in_channels);
      CopyAsync(first + window * Tile::kFirstStride + First::Column(i),
                p_.x + (inside ? source + inner : 0), inside);
    } else {
      i -= First::kCount;
      const int outer = Second::Row(i), window = Second::Column(i);
      const bool inside = live & (outer_ + outer < p_.out_channels);
      const int64_t from = static_cast<int64_t>(outer_ + outer) * panel_stride_ + window;
      CopyAsync(second + Swizzled(outer, window), inside ? panel_ + from : p_.panels, inside);
    }
  }

  __device__ void Advance() {
    slot_ = slot_ == Tile::kStages ? 0 : slot_ + 1;
    panel_ += Tile::kDepth;
  }

  // Fills the table for the first step that is not in it, in the slot of a step that all threads
  // have copied.
  __device__ void Find() {
    const int lane = static_cast<int>(threadIdx.x);
    int* const at = table_ + found_ * Tile::kDepth + lane;
    found_ = found_ == Tile::kStages ? 0 : found_ + 1;
    int window = window_ + lane;
    window_ += Tile::kDepth;
    if (lane >= Tile::kDepth) return;
    const DilatedTapParams& tap = p_.of_run[place_.run];
    if (window >= tap.windows) {
      *at = -1;
      return;
    }
    const int x = tap.by_x.Split(&window);
    const int y = tap.by_y.Split(&window);
    const int z = tap.by_z.Split(&window);
    *at = (tap.first_in + ((window * p_.in[0] + z) * p_.in[1] + y) * p_.in[2] + x) * p_.in_channels;
  }

 private:
  const Params& p_;
  const DilatedPlace place_;
  // For the steps in flight and one more, and for each window: the element where its part of x
  // begins, or -1.
  int* const table_;
  const int outer_, inner_;
  const int panel_stride_;
  const float* panel_;  // y of the step to copy next
  int window_;          // the first of the step to find next
  int found_ = 0;       // where that goes
  int slot_ = 0;        // of the step to copy next
};

constexpr int kTransposeThreads = 256;
constexpr int kTransposeChannels = 128;  // for a block

// For the weights' gradient y is copied for each tap: by output channels, each with the windows
// whose tap reads x, rounded to TF32, and padded with zeros to whole steps. A block does one step
// of one tap, for some channels. The tensor cores need the elements of a sum side by side.
template <typename Params>
__global__ void DilatedTranspose(const __grid_constant__ Params p) {
  constexpr int kDepth = kSwizzled, kStride = kTransposeChannels + 1;
  float* const tile = SharedMemory<float>();
  const int parts = (p.out_channels + kTransposeChannels - 1) / kTransposeChannels;
  int step = static_cast<int>(blockIdx.x) / parts;
  const int channel = static_cast<int>(blockIdx.x) % parts * kTransposeChannels;
  int run = p.runs - 1;
  while (p.of_run[run].panel > static_cast<int64_t>(step) * kDepth * p.out_channels) --run;
  const DilatedTapParams& tap = p.of_run[run];
  step -= static_cast<int>(tap.panel / (kDepth * p.out_channels));
  constexpr int kWarps = kTransposeThreads / 32;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  // Unrolled, so that all of a thread's reads are in flight together.
#pragma unroll
  for (int k = 0; k < kDepth / kWarps; ++k) {
    const int row = warp + k * kWarps;
    int window = step * kDepth + row;
    const bool inside = window < tap.windows;
    const int x = tap.by_x.Split(&window);
    const int y = tap.by_y.Split(&window);
    const int z = tap.by_z.Split(&window);
    const int at = tap.first_out + ((window * p.out[0] + z) * p.out[1] + y) * p.out[2] + x;
#pragma unroll
    for (int j = 0; j < kTransposeChannels / 32; ++j) {
      const int i = lane + 32 * j;
      float value = 0;
      if (inside && channel + i < p.out_channels) {
        value = ToTf32(p.y[at * p.out_channels + channel + i]);
      }
      tile[row * kStride + i] = value;
    }
  }
  __syncthreads();
  float* const panel = p.transposed + tap.panel;
  const int64_t stride = static_cast<int64_t>(p.run[run].steps) * kDepth;
#pragma unroll
  for (int k = 0; k < kTransposeChannels / kWarps; ++k) {
    const int i = warp + k * kWarps;
    if (channel + i >= p.out_channels) break;
    panel[(channel + i) * stride + step * kDepth + lane] = tile[lane * kStride + i];
  }
}

// A lane's elements of the first operand of one step. Rows of the products are distributed such
// that the rows of a lane are neighbors.
template <typename Tile>
struct DilatedFragments {
  static constexpr int kM = Tile::kWarpgroup / 64, kParts = Tile::kDepth / 8;

  float a[kParts][kM][4];

  // The tile's row of sums[m][..][2 * half].
  static __device__ int Row(int m, int half) {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    return warp / 4 * Tile::kWarpgroup + m * 64 + warp % 4 * 16 + lane / 4 * 2 + half;
  }

  __device__ void Load(const float* first) {
    const float* const from =
        first + static_cast<int>(threadIdx.x % 4) * Tile::kFirstStride + Row(0, 0);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Pack<float, 2> pair = *reinterpret_cast<const Pack<float, 2>*>(
              from + (8 * part + 4 * half) * Tile::kFirstStride + 64 * m);
          a[part][m][2 * half] = ToTf32(pair.value[0]);
          a[part][m][2 * half + 1] = ToTf32(pair.value[1]);
        }
      }
    }
  }
};

template <typename Work, typename Tile>
constexpr int kDilatedSharedBytes =
    Tile::kStages * Tile::kStageFloats * 4 + Work::kTableBytes + kSwizzleBytes;

// Sums steps [first, last) of one tile.
template <typename Work, typename Tile>
__device__ void DilatedPiece(const typename Work::Params& p, const DilatedPlace& place, int first,
                             int last, float* partial, float* shared) {
  using Fragments = DilatedFragments<Tile>;
  const int steps = last - first;
  Work work(p, place, first, shared + Tile::kStages * Tile::kStageFloats);
  work.Prepare();
  __syncthreads();
  work.Start();
  const auto after = [&](float* stage) {
    return stage == shared + (Tile::kStages - 1) * Tile::kStageFloats ? shared
                                                                      : stage + Tile::kStageFloats;
  };
  constexpr int kAhead = Tile::kStages - 2;  // steps that are copied before they are needed
  float* to = shared;                        // where the next step is copied to
  const auto copy = [&](int step) {
#pragma unroll
    for (int i = 0; i < Work::kCopies; ++i) {
      work.Copy(i, step < steps, to + Tile::kSecondFloats, to);
    }
    CommitCopies();
    work.Advance();
    to = after(to);
  };
  for (int step = 0; step < kAhead; ++step) copy(step);

  float sums[Fragments::kM][kProductColumns / 2];
#pragma unroll
  for (int m = 0; m < Fragments::kM; ++m) {
#pragma unroll
    for (int i = 0; i < kProductColumns / 2; ++i) sums[m][i] = 0;
  }
  Fragments fragments[2];
  WaitForCopies<kAhead - 1>();
  ShowTensorCores();
  __syncthreads();
  fragments[0].Load(shared + Tile::kSecondFloats);
  float* stage = shared;
  // While the products of one step run, the next one's operand is loaded.
  const auto multiply = [&](int step, const Fragments& now, Fragments* next) {
    BeginProducts();
#pragma unroll
    for (int part = 0; part < Fragments::kParts; ++part) {
#pragma unroll
      for (int m = 0; m < Fragments::kM; ++m) {
        MultiplyAdd(now.a[part][m], stage, 8 * part, sums[m]);
      }
    }
    CommitProducts();
    // To the slot of the step before the last: its products were done before the last barrier.
    copy(step + kAhead);
    work.Find();  // for a step that is copied two steps from now at the earliest
    WaitForProducts<1>();
    WaitForCopies<kAhead - 1>();
    ShowTensorCores();
    __syncthreads();
    stage = after(stage);
    next->Load(stage + Tile::kSecondFloats);  // after the last step: what is not used
  };
  int step = 0;
  for (; step + 1 < steps; step += 2) {
    multiply(step, fragments[0], &fragments[1]);
    multiply(step + 1, fragments[1], &fragments[0]);
  }
  if (step < steps) multiply(step, fragments[0], &fragments[1]);
  WaitForProducts<0>();
  WaitForCopies<0>();

#pragma unroll
  for (int n = 0; n < kProductColumns / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int outer = 8 * n + static_cast<int>(threadIdx.x % 4) * 2 + j;
      const int destination = work.DestinationOf(outer);
      float* const row = partial != nullptr ? partial + outer * Tile::kInner
                                            : p.result + destination + work.inner();
      const int columns = partial != nullptr ? Tile::kInner
                          : destination < 0  ? 0
                                             : p.in_channels - work.inner();
#pragma unroll
      for (int m = 0; m < Fragments::kM; ++m) {
        const int inner = Fragments::Row(m, 0);
        const Pack<float, 2> pair{{sums[m][4 * n + j], sums[m][4 * n + 2 + j]}};
        if (inner < columns) *reinterpret_cast<Pack<float, 2>*>(row + inner) = pair;
      }
    }
  }
  __syncthreads();
}

template <typename Work, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    DilatedSum(const __grid_constant__ typename Work::Params p) {
  float* const unaligned = SharedMemory<float>();
  float* const shared =
      unaligned + (kSwizzleBytes - SharedAddress(unaligned) % kSwizzleBytes) % kSwizzleBytes / 4;
  const int worker = static_cast<int>(blockIdx.x);
  if (!p.streamed) {
    const DilatedPlace place = PlaceOfTile(p, worker);
    DilatedPiece<Work, Tile>(p, place, 0, place.steps, nullptr, shared);
    return;
  }
  const int last = FirstStep(p, worker + 1);
  for (int step = FirstStep(p, worker); step < last;) {
    const DilatedPlace place = PlaceOfStep(p, step);
    const int first = step - place.first_step;
    const int end = min(place.steps, last - place.first_step);
    float* const partial =
        first == 0 ? nullptr
                   : p.partial + static_cast<int64_t>(worker) * Tile::kOuter * Tile::kInner;
    DilatedPiece<Work, Tile>(p, place, first, end, partial, shared);
    step = place.first_step + end;
  }
}

constexpr int kDilatedAddThreads = 256;
constexpr int kDilatedAddOuter = 16;  // of a tile, for a block

// Adds the partial sums of all workers after a tile's first one to the tile, in their order. Block
// (worker, part) does it if that worker was the second.
template <typename Work, typename Tile>
__global__ void DilatedAdd(const __grid_constant__ typename Work::Params p) {
  constexpr int kParts = Tile::kOuter / kDilatedAddOuter;
  const int worker = static_cast<int>(blockIdx.x) / kParts + 1;
  const int part = static_cast<int>(blockIdx.x) % kParts;
  const int step = FirstStep(p, worker);
  const DilatedPlace place = PlaceOfStep(p, step);
  if (step == place.first_step || FirstStep(p, worker - 1) > place.first_step) return;
  int end = worker + 1;
  while (end < p.workers && FirstStep(p, end) < place.first_step + place.steps) ++end;
  const int first_inner = Work::InnerTile(p, place) * Tile::kInner;
  constexpr int kInRow = Tile::kInner / 4;
#pragma unroll
  for (int i = 0; i < kDilatedAddOuter * kInRow / kDilatedAddThreads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kDilatedAddThreads;
    const int outer = part * kDilatedAddOuter + at / kInRow, inner = at % kInRow * 4;
    const int destination = Work::Destination(p, place, outer);
    if (destination < 0 || first_inner + inner >= p.in_channels) continue;
    Pack<float, 4>* const result =
        reinterpret_cast<Pack<float, 4>*>(p.result + destination + first_inner + inner);
    Pack<float, 4> sum = *result;
    for (int other = worker; other < end; ++other) {
      const Pack<float, 4> more = *reinterpret_cast<const Pack<float, 4>*>(
          p.partial + (static_cast<int64_t>(other) * Tile::kOuter + outer) * Tile::kInner + inner);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum.value[j] += more.value[j];
    }
    *result = sum;
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_DILATED_MATMUL_CUH_
