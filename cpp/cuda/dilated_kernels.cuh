// The gradients of a dilated convolution as matrix products in tiles. For the input's gradient a
// tile is some positions of x by some input channels, and it sums over the taps that read any of
// its positions, and over the output channels. For the weights' gradient there is a product for
// each tap: a tile is some output channels by some input channels, and it sums over the windows of
// which the tap reads x. What is summed is cut into steps. A worker, one block, does
// consecutive steps of consecutive tiles. What it sums of a tile that the worker before it began
// goes to the workspace, and is added afterwards.

#ifndef JAX_CONVGRAD_CUDA_DILATED_KERNELS_CUH_
#define JAX_CONVGRAD_CUDA_DILATED_KERNELS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/depthwise_elements.cuh"
#include "cuda/dilated_work.h"
#include "cuda/tensor_core.cuh"

namespace jax_convgrad {

// How a block's work lies in shared memory and among its warps, each of which multiplies 64 rows by
// 64 columns. The tile is kOuter positions or output channels times kInner input channels, which
// are neighbours in memory.
template <int kOuter_, int kInner_, int kDepth_, int kStages_, int kBlocks_>
struct DilatedTile {
  static constexpr int kOuter = kOuter_;
  static constexpr int kInner = kInner_;
  static constexpr int kDepth = kDepth_;    // of one step
  static constexpr int kStages = kStages_;  // of steps in shared memory at once
  static constexpr int kBlocks = kBlocks_;  // on a multiprocessor at once
  static constexpr int kWarp = 64;
  static constexpr int kThreads = 32 * (kOuter / kWarp) * (kInner / kWarp);
};

struct DilatedSteps {
  int first_tile;
  int first_step;
  int steps;  // of each tile
};

constexpr int kMostDilatedRuns = 2 * kMostDilatedRegions + 1;

struct DilatedParams {
  const float* y;
  const float* w;
  const float* x;
  float* result;
  float* partial;
  int batch, in_channels, out_channels, taps;
  int in[3], out[3];
  int workers;
  bool streamed;  // the steps in equal shares; else each worker does one tile
  int steps;      // in all
  int outer_tiles, inner_tiles;
  int runs;
  DilatedSteps run[kMostDilatedRuns];
};

struct DilatedDgradParams : DilatedParams {
  int positions;
  int tap_steps;  // of one tap
  int regions;
  DilatedRegion region[kMostDilatedRegions];
  uint64_t run_taps[kMostDilatedRuns];
  int tap_offset[kMostDilatedTaps];  // from a position's number in y to the window's
};

struct DilatedTapParams {
  int tap;
  int windows;
  int first_out, first_in;  // the numbers of the first window and of what it reads
  Divider by_x, by_y, by_z;
};

struct DilatedWgradParams : DilatedParams {
  DilatedTapParams of_run[kMostDilatedTaps];
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

// The first step of a worker that shares steps, or that of the one after the last.
__device__ inline int FirstStep(const DilatedParams& p, int worker) {
  return static_cast<int>(static_cast<int64_t>(p.steps) * worker / p.workers);
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

__device__ inline void LoadPair(const float* at, float* first, float* second) {
  const Pack<float, 2> pair = *reinterpret_cast<const Pack<float, 2>*>(at);
  *first = pair.value[0];
  *second = pair.value[1];
}

// The input's gradient: weights, by channels and depth, times y, by depth and positions.
template <typename Tile>
class DilatedDgrad {
  using First = DilatedCopies<Tile::kDepth, Tile::kInner, Tile::kThreads>;
  using Second = DilatedCopies<Tile::kOuter, Tile::kDepth, Tile::kThreads>;
  static_assert(Second::kSameColumn, "a thread's copies are of the same channels");

 public:
  using Params = DilatedDgradParams;
  static constexpr bool kOuterFirst = false;  // the first operand is that of the inner side
  static constexpr int kColumnWarps = Tile::kOuter / Tile::kWarp;
  // Floats between rows in shared memory: a warp's lanes then read from all banks at once.
  static constexpr int kFirstStride = Tile::kInner + 4;    // rows of one depth
  static constexpr int kSecondStride = Tile::kDepth + 8;  // rows of one position
  static constexpr int kFirstFloats = Tile::kDepth * kFirstStride;
  static constexpr int kSecondFloats = Tile::kOuter * kSecondStride;
  static constexpr int kTableBytes = Tile::kOuter * 16;

  static __device__ int OuterTile(const Params& p, const DilatedPlace& place) {
    return (p.run[place.run].first_tile + place.tile) / p.inner_tiles;
  }
  static __device__ int InnerTile(const Params& p, const DilatedPlace& place) {
    return place.tile % p.inner_tiles;
  }

  // Where an outer index of a tile begins in the result, negative if nowhere.
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

  // Between these two the block waits for all its threads.
  __device__ void Prepare() {}
  __device__ void Start() { NextTap(); }

  // Begins copy `i` of a step's operands, of zeros unless `live`.
  static constexpr int kCopies = First::kCount + Second::kCount;
  __device__ void Copy(int i, bool live, float* first, float* second) const {
    if (i < First::kCount) {
      const int row = First::Row(i), column = inner_ + First::Column(i);
      const bool inside =
          live & (channel_ + row < p_.out_channels) & (column < p_.in_channels);
      const int from = ((channel_ + row) * p_.taps + tap_) * p_.in_channels + column;
      CopyAsync(first + row * kFirstStride + First::Column(i), p_.w + (inside ? from : 0), inside);
    } else {
      i -= First::kCount;
      const int channel = channel_ + Second::Column(0);
      const bool inside = live & ((inside_ >> i & 1) != 0) & (channel < p_.out_channels);
      CopyAsync(second + Second::Row(i) * kSecondStride + Second::Column(0),
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

  // Lane `lane`'s elements of the first operand, a 16x8 matrix, and of the second, an 8x8 one, at
  // row or column `at` and depth `depth`. Which depth comes first is the same for both.
  static __device__ void LoadFirst(const float* first, int at, int depth, int lane,
                                   float (&a)[4]) {
    const float* const from = first + (depth + lane % 4 * 2) * kFirstStride + at + lane / 4 * 2;
    LoadPair(from, &a[0], &a[1]);
    LoadPair(from + kFirstStride, &a[2], &a[3]);
  }
  static __device__ void LoadSecond(const float* second, int at, int depth, int lane,
                                    float (&b)[2]) {
    LoadPair(second + (at + lane / 4) * kSecondStride + depth + lane % 4 * 2, &b[0], &b[1]);
  }

 private:

  // The element of the result that position `number` begins at, the taps that read it, and the
  // element of y that it begins at there. Negative, and no taps, behind the last position.
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

// The weights' gradient: y, by output channels and windows, times x, by windows and channels.
template <typename Tile>
class DilatedWgrad {
  using First = DilatedCopies<Tile::kDepth, Tile::kOuter, Tile::kThreads>;
  using Second = DilatedCopies<Tile::kDepth, Tile::kInner, Tile::kThreads>;

 public:
  using Params = DilatedWgradParams;
  static constexpr bool kOuterFirst = true;
  static constexpr int kColumnWarps = Tile::kInner / Tile::kWarp;
  static constexpr int kFirstStride = Tile::kOuter + 8;
  static constexpr int kSecondStride = Tile::kInner + 8;
  static constexpr int kFirstFloats = Tile::kDepth * kFirstStride;
  static constexpr int kSecondFloats = Tile::kDepth * kSecondStride;
  static constexpr int kTableBytes = (Tile::kStages + 1) * Tile::kDepth * 8;

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
        window_(step * Tile::kDepth) {}

  __device__ int DestinationOf(int outer) const {
    return Destination(p_, place_, outer);
  }
  __device__ int inner() const { return inner_; }

  __device__ void Prepare() {
    for (int i = 0; i <= Tile::kStages; ++i) Find();
  }
  __device__ void Start() {}

  static constexpr int kCopies = First::kCount + Second::kCount;
  __device__ void Copy(int i, bool live, float* first, float* second) const {
    const int* const table = table_ + slot_ * Tile::kDepth * 2;
    if (i < First::kCount) {
      const int window = First::Row(i), outer = outer_ + First::Column(i);
      const int source = table[2 * window];
      const bool inside = live & (source >= 0) & (outer < p_.out_channels);
      CopyAsync(first + window * kFirstStride + First::Column(i),
                p_.y + (inside ? source + outer : 0), inside);
    } else {
      i -= First::kCount;
      const int window = Second::Row(i), inner = inner_ + Second::Column(i);
      const int source = table[2 * window + 1];
      const bool inside = live & (source >= 0) & (inner < p_.in_channels);
      CopyAsync(second + window * kSecondStride + Second::Column(i),
                p_.x + (inside ? source + inner : 0), inside);
    }
  }

  __device__ void Advance() { slot_ = slot_ == Tile::kStages ? 0 : slot_ + 1; }

  static __device__ void LoadFirst(const float* first, int at, int depth, int lane,
                                   float (&a)[4]) {
    const float* const from = first + (depth + lane % 4) * kFirstStride + at + lane / 4 * 2;
    LoadPair(from, &a[0], &a[1]);
    LoadPair(from + 4 * kFirstStride, &a[2], &a[3]);
  }
  static __device__ void LoadSecond(const float* second, int at, int depth, int lane,
                                    float (&b)[2]) {
    const float* const from = second + (depth + lane % 4) * kSecondStride + at + lane / 4;
    b[0] = from[0];
    b[1] = from[4 * kSecondStride];
  }

  // Fills the table for the first step that is not in it, in the place of one that all threads have
  // copied.
  __device__ void Find() {
    const int lane = static_cast<int>(threadIdx.x);
    int* const at = table_ + (found_ * Tile::kDepth + lane) * 2;
    found_ = found_ == Tile::kStages ? 0 : found_ + 1;
    int window = window_ + lane;
    window_ += Tile::kDepth;
    if (lane >= Tile::kDepth) return;
    const DilatedTapParams& tap = p_.of_run[place_.run];
    if (window >= tap.windows) {
      at[0] = at[1] = -1;
      return;
    }
    const int x = tap.by_x.Split(&window);
    const int y = tap.by_y.Split(&window);
    const int z = tap.by_z.Split(&window);
    at[0] = (tap.first_out + ((window * p_.out[0] + z) * p_.out[1] + y) * p_.out[2] + x) *
            p_.out_channels;
    at[1] =
        (tap.first_in + ((window * p_.in[0] + z) * p_.in[1] + y) * p_.in[2] + x) * p_.in_channels;
  }

 private:
  const Params& p_;
  const DilatedPlace place_;
  // For the steps in flight and one more, and for each window: what it reads of y and x begins at
  // these elements, or -1.
  int* const table_;
  const int outer_, inner_;
  int window_;     // the first of the step to find next
  int found_ = 0;  // where that goes
  int slot_ = 0;   // of the step to copy next
};

// A lane's elements of the operands at one depth. Rows of the products are dealt out such that those
// that a lane holds are neighbours; what sums[m][n][2 * half + j] is, Row and Column say.
template <typename Work>
struct DilatedFragments {
  static constexpr int kM = 4, kN = 8;

  float a[kM][4];
  float b[kN][2];

  static __device__ int Lane() { return static_cast<int>(threadIdx.x % 32); }
  static __device__ int WarpRow() {
    return static_cast<int>(threadIdx.x / 32) / Work::kColumnWarps * 64;
  }
  static __device__ int WarpColumn() {
    return static_cast<int>(threadIdx.x / 32) % Work::kColumnWarps * 64;
  }
  static __device__ int Row(int m, int half) { return WarpRow() + 16 * m + Lane() / 4 * 2 + half; }
  static __device__ int Column(int n, int j) { return WarpColumn() + 8 * n + Lane() % 4 * 2 + j; }

  __device__ void RoundFirst(int m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[m][i] = ToTf32(a[m][i]);
  }
  __device__ void RoundSecond() {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) b[n][i] = ToTf32(b[n][i]);
    }
  }

  // Quarter `m` of the elements.
  __device__ void Load(const float* first, const float* second, int depth, int m) {
    Work::LoadFirst(first, WarpRow() + 16 * m, depth, Lane(), a[m]);
#pragma unroll
    for (int n = 2 * m; n < 2 * m + 2; ++n) {
      Work::LoadSecond(second, WarpColumn() + 8 * n, depth, Lane(), b[n]);
    }
  }
};

// Floats of a step's operands in shared memory.
template <typename Work>
constexpr int kDilatedStageFloats = Work::kFirstFloats + Work::kSecondFloats;

template <typename Work, typename Tile>
constexpr int kDilatedSharedBytes =
    Tile::kStages * kDilatedStageFloats<Work> * 4 + Work::kTableBytes;

// Sums steps [first, last) of one tile.
template <typename Work, typename Tile>
__device__ void DilatedPiece(const typename Work::Params& p, const DilatedPlace& place, int first,
                             int last, float* partial, float* shared) {
  using Fragments = DilatedFragments<Work>;
  constexpr int kStage = kDilatedStageFloats<Work>;
  constexpr int kParts = Tile::kDepth / 8;  // of a step
  const int steps = last - first;
  Work work(p, place, first, shared + Tile::kStages * kStage);
  work.Prepare();
  __syncthreads();
  work.Start();
  float* to = shared;  // where the next step is copied to
  const auto after = [&](auto* stage) {
    return stage == shared + (Tile::kStages - 1) * kStage ? shared : stage + kStage;
  };
  for (int step = 0; step < Tile::kStages - 1; ++step) {
#pragma unroll
    for (int i = 0; i < Work::kCopies; ++i) {
      work.Copy(i, step < steps, to, to + Work::kFirstFloats);
    }
    CommitCopies();
    work.Advance();
    to = after(to);
  }

  float sums[Fragments::kM][Fragments::kN][4];
#pragma unroll
  for (int m = 0; m < Fragments::kM; ++m) {
#pragma unroll
    for (int n = 0; n < Fragments::kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
    }
  }
  Fragments fragments[2];
  WaitForCopies<Tile::kStages - 2>();
  __syncthreads();
#pragma unroll
  for (int m = 0; m < Fragments::kM; ++m) {
    fragments[0].Load(shared, shared + Work::kFirstFloats, 0, m);
  }
  // Copies are begun between the products, so that the tensor cores need not wait.
  constexpr int kSlots = (kParts - 1) * Fragments::kM;
  constexpr int kSlotCopies = (Work::kCopies + kSlots - 1) / kSlots;
  const float* stage = shared;
  for (int step = 0; step < steps; ++step) {
    const float* const next = after(stage);
    const bool live = step + Tile::kStages - 1 < steps;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const bool last_part = part == kParts - 1;
      if (last_part) {
        // The next step has arrived, and nobody reads this one any more. After the last step this
        // loads what is not used.
        CommitCopies();
        WaitForCopies<Tile::kStages - 2>();
        __syncthreads();
      }
      const float* const from = last_part ? next : stage;
      Fragments& now = fragments[part % 2];
      now.RoundSecond();
#pragma unroll
      for (int m = 0; m < Fragments::kM; ++m) {
        fragments[(part + 1) % 2].Load(from, from + Work::kFirstFloats,
                                       last_part ? 0 : 8 * (part + 1), m);
        now.RoundFirst(m);
        MultiplyAdd(now.a[m], now.b, m % 2 == 1, sums[m]);
        if (!last_part) {
          const int slot = part * Fragments::kM + m;
#pragma unroll
          for (int i = slot * kSlotCopies; i < (slot + 1) * kSlotCopies; ++i) {
            if (i < Work::kCopies) work.Copy(i, live, to, to + Work::kFirstFloats);
          }
        }
      }
    }
    work.Find();
    work.Advance();
    to = after(to);
    stage = next;
  }
  WaitForCopies<0>();

  // Two neighbours at a time.
  const auto store = [&](int outer, int inner, float low, float high) {
    const Pack<float, 2> pair{{low, high}};
    if (partial != nullptr) {
      *reinterpret_cast<Pack<float, 2>*>(partial + outer * Tile::kInner + inner) = pair;
      return;
    }
    const int destination = work.DestinationOf(outer);
    if (destination < 0 || work.inner() + inner >= p.in_channels) return;
    *reinterpret_cast<Pack<float, 2>*>(p.result + destination + work.inner() + inner) = pair;
  };
#pragma unroll
  for (int n = 0; n < Fragments::kN; ++n) {
#pragma unroll
    for (int m = 0; m < Fragments::kM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float(&sum)[4] = sums[m][n];
        if constexpr (Work::kOuterFirst) {
          store(Fragments::Row(m, i), Fragments::Column(n, 0), sum[2 * i], sum[2 * i + 1]);
        } else {
          store(Fragments::Column(n, i), Fragments::Row(m, 0), sum[i], sum[i + 2]);
        }
      }
    }
  }
  __syncthreads();
}

template <typename Work, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    DilatedSum(const __grid_constant__ typename Work::Params p) {
  float* const shared = SharedMemory<float>();
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

// Adds to a tile what other workers than its first have summed of it, in their order. Block (worker,
// part) does it if that worker was the second.
template <typename Work, typename Tile>
__global__ void DilatedAdd(const __grid_constant__ typename Work::Params p) {
  constexpr int kParts = Tile::kOuter / kDilatedAddOuter;
  const int worker = static_cast<int>(blockIdx.x) / kParts + 1;
  const int part = static_cast<int>(blockIdx.x) % kParts;
  const int step = FirstStep(p, worker);
  const DilatedPlace place = PlaceOfStep(p, step);
  if (step == place.first_step || FirstStep(p, worker - 1) > place.first_step) return;
  const int first_inner = Work::InnerTile(p, place) * Tile::kInner;
  for (int i = static_cast<int>(threadIdx.x); i < kDilatedAddOuter * Tile::kInner / 4;
       i += kDilatedAddThreads) {
    const int outer = part * kDilatedAddOuter + i / (Tile::kInner / 4);
    const int inner = i % (Tile::kInner / 4) * 4;
    const int destination = Work::Destination(p, place, outer);
    if (destination < 0 || first_inner + inner >= p.in_channels) continue;
    Pack<float, 4>* const result =
        reinterpret_cast<Pack<float, 4>*>(p.result + destination + first_inner + inner);
    Pack<float, 4> sum = *result;
    for (int other = worker; other < p.workers; ++other) {
      if (FirstStep(p, other) >= place.first_step + place.steps) break;
      const Pack<float, 4> more = *reinterpret_cast<const Pack<float, 4>*>(
          p.partial + (static_cast<int64_t>(other) * Tile::kOuter + outer) * Tile::kInner + inner);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum.value[j] += more.value[j];
    }
    *result = sum;
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_DILATED_KERNELS_CUH_
