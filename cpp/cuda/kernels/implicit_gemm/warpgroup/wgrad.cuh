// wgrad of 8 to 64 channels on Hopper, as wgrad_params.h has it: warpgroups multiply
// tiles of x and y's gradient that bulk copies have brought into shared memory, in the order they
// lie in. A product's operands are lines of channels, one for each position, that the tensor cores
// read across. Lines may begin at any pixel, since the swizzling of pieces goes by their address.
// So all taps read the same copy of a pixel, and nothing is gathered or transposed.
//
// One warp loads. Barriers tell the others what has arrived, and it what they are done with. Each
// warpgroup has sums of its taps in registers through all steps of the block. At the end these go
// into the workspace, through shared memory where warpgroups have the same taps. A second kernel
// adds the blocks' parts. All in a fixed order.
//
// What is around x or y is multiplied as zeros, as is what is in a tile beyond the last position.
// So a NaN or an infinity of x may be in the gradients of all taps of its channel, and one of y's
// gradient in those of all taps of its own, also of taps that read it nowhere. No other channel's
// gradients have it.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/bulk_copy.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/warpgroup_product.cuh"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warpgroup/ring.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_params.h"

namespace jax_convgrad {

// Units of a set by their columns, as WgradInstance has them, and warpgroups at most.
template <int kColumns_, int kUnits_, int kExtraColumns_, int kMaxWarpgroups_>
struct WgradUnits {
  static constexpr int kColumns = kColumns_;
  static constexpr int kUnits = kUnits_;
  static constexpr int kExtraColumns = kExtraColumns_;
  static constexpr int kAll = kUnits + (kExtraColumns > 0 ? 1 : 0);
  static constexpr int kSums = (kColumns * kUnits + kExtraColumns) / 2;  // of a thread
  static constexpr int kMaxThreads = kMaxWarpgroups_ * 128 + 32;
};

// What a block has in shared memory.
struct WgradShared {
  unsigned char *x, *y;
  BulkBarrier *x_full, *x_empty, *y_full, *y_empty;

  __device__ WgradShared(const GemmWgradParams& p, unsigned char* begin) {
    x = begin;
    y = x + p.rings.x_slots * p.rings.x_slot_bytes;
    x_full = reinterpret_cast<BulkBarrier*>(begin + p.barrier_offset);
    x_empty = x_full + p.rings.x_slots;
    y_full = x_empty + p.rings.x_slots;
    y_empty = y_full + p.rings.y_slots;
  }
};

// By one thread: loads all planes of the steps.
__device__ inline void LoadWgrad(const GemmWgradParams& p, const WgradShared& shared, int step,
                                 int end, int first_plane) {
  const WgradRings& rings = p.rings;
  RingPlace x, y;
  while (step < end) {
    const GemmPlace at = WgradPlaceOf(p.walk, p.first, p.dilation[0], step, end);
    const int y_row = at.y + p.padding[1] - (p.taps.kernel[1] - 1) * p.dilation[1];
    // Ahead of the first step are the planes of y that it needs but the newest.
    for (int i = 1 - rings.planes; i < at.steps; ++i) {
      const int z = at.z + i * p.dilation[0];
      if (i >= 0) {
        shared.x_empty[x.slot].Wait(x.odd ^ 1);
        shared.x_full[x.slot].Expect(rings.x_box_bytes);
        BulkCopy(shared.x + x.slot * rings.x_slot_bytes, p.x, 0, at.x - p.padding[2], at.y, z,
                 at.image, &shared.x_full[x.slot]);
        x.Next(rings.x_slots);
      }
      shared.y_empty[y.slot].Wait(y.odd ^ 1);
      shared.y_full[y.slot].Expect(rings.y_box_bytes);
      BulkCopy(shared.y + y.slot * rings.y_slot_bytes, p.y, 0, at.x, y_row,
               z + p.padding[0] - first_plane * p.dilation[0], at.image, &shared.y_full[y.slot]);
      y.Next(rings.y_slots);
    }
    step += at.steps;
  }
}

// An operand whose lines are across the depth, as SwizzledOperand, of lines that are not known
// before the kernel runs.
struct WgradOperand {
  static constexpr bool kAcross = true;

  uint32_t low, high;

  // Begins `pixel` pixels behind `first`, with `line` channels each, and has `step` of them to the
  // next shift or tap.
  __device__ WgradOperand(const void* first, int pixel, int step, int line) {
    const int pieces = line / 8;  // of 16 bytes, of a pixel
    const uint32_t swizzle = line == 64 ? 1 : line == 32 ? 2 : 3;
    low = (SharedAddress(first) >> 4) + static_cast<uint32_t>(pixel * pieces) +
          (static_cast<uint32_t>(step * pieces) << 16);
    high = static_cast<uint32_t>(8 * pieces) | swizzle << 30;  // 8 pixels to the next 8
  }

  __device__ uint64_t described() const { return uint64_t{high} << 32 | low; }
};

// A warpgroup's products of all steps. Those that share a tile take its rows in turns, or each of
// them 16 columns of every row in turns.
template <typename T, typename Units>
__device__ inline void MultiplyWgrad(const GemmWgradParams& p, const WgradShared& shared, int step,
                                     int end, int first_plane, int set, int split,
                                     float (&sums)[Units::kSums]) {
  const WgradRings& rings = p.rings;
  // In pieces of 16 bytes.
  const uint32_t x_pixel = static_cast<uint32_t>(p.in_line) / 8;
  const uint32_t y_pixel = static_cast<uint32_t>(p.out_line) / 8;
  const uint32_t x_slot = static_cast<uint32_t>(rings.x_slot_bytes) / 16;
  const uint32_t y_slot = static_cast<uint32_t>(rings.y_slot_bytes) / 16;
  uint32_t x_first[Units::kAll], y_first[Units::kAll];
  int back[Units::kAll];
#pragma unroll
  for (int i = 0; i < Units::kAll; ++i) {
    const WgradOffsets at =
        WgradOffsetsOf(p.taps, p.dilation, rings, WgradUnitOf(p.taps, set, i), first_plane);
    back[i] = at.back;
    x_first[i] = WgradOperand(shared.x, at.x_at, at.x_step, p.in_line).low;
    y_first[i] = WgradOperand(shared.y, at.y_at, at.y_step, p.out_line).low;
  }
  WgradOperand of_x(shared.x, 0, 0, p.in_line), of_y(shared.y, 0, 0, p.out_line);
  const int first_row = split % p.row_splits, column_splits = p.splits / p.row_splits;
  const int first_column = split / p.row_splits, columns = p.walk.columns / kWgradDepth;
  const uint32_t x_next = static_cast<uint32_t>(column_splits * kWgradDepth) * x_pixel;
  const uint32_t y_next = static_cast<uint32_t>(column_splits * kWgradDepth) * y_pixel;
  const uint32_t x_next_row = static_cast<uint32_t>(p.row_splits * rings.x_pitch) * x_pixel;
  const uint32_t y_next_row = static_cast<uint32_t>(p.row_splits * rings.y_pitch) * y_pixel;
  const uint32_t x_first_row =
      static_cast<uint32_t>(first_row * rings.x_pitch + first_column * kWgradDepth) * x_pixel;
  const uint32_t y_first_row =
      static_cast<uint32_t>(first_row * rings.y_pitch + first_column * kWgradDepth) * y_pixel;
  const int rows = p.walk.rows;
  constexpr const T* kType = nullptr;

  RingPlace x, newest;  // that are waited for
  int oldest = 0;       // plane of y that is not free
  const auto release_oldest = [&] {
    ArriveWarp(&shared.y_empty[oldest]);
    if (++oldest == rings.y_slots) oldest = 0;
  };
  const auto wait_for_newest = [&] { shared.y_full[newest.slot].Wait(newest.odd); };
  while (step < end) {
    const int steps = GemmPlaceOf(p.walk, step, end).steps;
    for (int i = 1; i < rings.planes; ++i) {
      wait_for_newest();
      newest.Next(rings.y_slots);
    }
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      shared.x_full[x.slot].Wait(x.odd);
      wait_for_newest();
      uint32_t x_begin[Units::kAll], y_begin[Units::kAll];
#pragma unroll
      for (int unit = 0; unit < Units::kAll; ++unit) {
        const int slot = newest.slot - back[unit];
        y_begin[unit] =
            y_first[unit] + static_cast<uint32_t>(slot < 0 ? slot + rings.y_slots : slot) * y_slot;
        x_begin[unit] = x_first[unit] + static_cast<uint32_t>(x.slot) * x_slot;
      }
      uint32_t x_of_row = x_first_row, y_of_row = y_first_row;
      BeginProducts();
#pragma unroll 1
      for (int row = first_row; row < rows; row += p.row_splits) {
        uint32_t x_at = x_of_row, y_at = y_of_row;
        x_of_row += x_next_row;
        y_of_row += y_next_row;
#pragma unroll 1
        for (int column = first_column; column < columns; column += column_splits) {
#pragma unroll
          for (int unit = 0; unit < Units::kAll; ++unit) {
            of_x.low = x_begin[unit] + x_at;
            of_y.low = y_begin[unit] + y_at;
            float* const of_unit = sums + unit * (Units::kColumns / 2);
            if constexpr (Units::kExtraColumns > 0) {
              if (unit == Units::kUnits) {
                MultiplySwizzled<Units::kExtraColumns>(kType, of_y, of_x, true, of_unit);
                continue;
              }
            }
            MultiplySwizzled<Units::kColumns>(kType, of_y, of_x, true, of_unit);
          }
          x_at += x_next;
          y_at += y_next;
        }
      }
      CommitProducts();
      WaitForProducts<0>();
      ArriveWarp(&shared.x_empty[x.slot]);
      release_oldest();
      x.Next(rings.x_slots);
      newest.Next(rings.y_slots);
    }
    for (int i = 1; i < rings.planes; ++i) release_oldest();
    step += steps;
  }
}

// Stores a warpgroup's sums in the workspace, or its share of the set's, where several have the
// same set.
template <typename Units>
__device__ inline void StoreWgrad(const GemmWgradParams& p, const WgradShared& shared, int part,
                                  int first_set, int of_block, int split,
                                  const float (&sums)[Units::kSums]) {
  using Floats = Pack<float, kWgradPack>;
  constexpr int kPacks = Units::kSums / kWgradPack;  // of a thread
  const int thread = static_cast<int>(threadIdx.x) % 128;
  Floats* const partial = reinterpret_cast<Floats*>(p.partial) +
                          static_cast<int64_t>(part) * p.part_packs +
                          (first_set + of_block) * (kPacks * 128) + thread;
  const auto pack_of = [&sums](int pack) {
    Floats of;
#pragma unroll
    for (int i = 0; i < kWgradPack; ++i) of.value[i] = sums[pack * kWgradPack + i];
    return of;
  };
  if (p.splits == 1) {
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) partial[pack * 128] = pack_of(pack);
    return;
  }
  // Until nobody reads the rings any more. The threads that load have returned, and none waits for
  // them.
  __syncthreads();
  Floats* const of_set =
      reinterpret_cast<Floats*>(shared.x) + of_block * p.splits * (kPacks * 128) + thread;
#pragma unroll
  for (int pack = 0; pack < kPacks; ++pack) {
    of_set[(split * kPacks + pack) * 128] = pack_of(pack);
  }
  __syncthreads();
  for (int pack = split; pack < kPacks; pack += p.splits) {
    Floats all{};
    for (int other = 0; other < p.splits; ++other) {
      const Floats of = of_set[(other * kPacks + pack) * 128];
#pragma unroll
      for (int i = 0; i < kWgradPack; ++i) all.value[i] += of.value[i];
    }
    partial[pack * 128] = all;
  }
}

template <typename T, typename Units>
__global__ void __launch_bounds__(Units::kMaxThreads, 1)
    ImplicitGemmWgrad(const __grid_constant__ GemmWgradParams p) {
  const WgradShared shared(p, SharedMemory<unsigned char>());
  const int warpgroups = p.sets * p.splits;
  if (threadIdx.x == 0) {
    const int warps = 4 * warpgroups;
    for (int i = 0; i < p.rings.x_slots; ++i) {
      shared.x_full[i].Init();
      shared.x_empty[i].Init(warps);
    }
    for (int i = 0; i < p.rings.y_slots; ++i) {
      shared.y_full[i].Init();
      shared.y_empty[i].Init(warps);
    }
  }
  __syncthreads();
  const int part = static_cast<int>(blockIdx.x) % p.walk.blocks;
  const int first_set = static_cast<int>(blockIdx.x) / p.walk.blocks * p.sets;
  const int first_plane = WgradFirstPlane(p.taps, p.rings, first_set);
  const int step = GemmWalkBegin(p.walk, part), end = GemmWalkBegin(p.walk, part + 1);
  const int warpgroup = WarpgroupNumber();
  if (warpgroup == warpgroups) {
    if (threadIdx.x % 32 == 0) LoadWgrad(p, shared, step, end, first_plane);
    return;
  }
  const int of_block = warpgroup / p.splits, split = warpgroup % p.splits;
  float sums[Units::kSums];
#pragma unroll
  for (float& sum : sums) sum = 0;
  MultiplyWgrad<T, Units>(p, shared, step, end, first_plane, first_set + of_block, split, sums);
  ShowSums(sums);
  StoreWgrad<Units>(p, shared, part, first_set, of_block, split, sums);
}

constexpr int kWgradSumPacks = 16;     // of a block
constexpr int kWgradSumSegments = 16;  // of the parts
constexpr int kWgradSumThreads = kWgradSumPacks * kWgradSumSegments;

// The parts' sums. Each thread adds every sixteenth part of a pack, in their order, then one adds
// what these have.
template <typename T>
__global__ void __launch_bounds__(kWgradSumThreads)
    ImplicitGemmWgradSum(const __grid_constant__ GemmWgradSumParams p) {
  using Floats = Pack<float, kWgradPack>;
  Floats* const shared = SharedMemory<Floats>();
  const int thread = static_cast<int>(threadIdx.x);
  const int of_block = thread % kWgradSumPacks, segment = thread / kWgradSumPacks;
  const int pack = static_cast<int>(blockIdx.x) * kWgradSumPacks + of_block;
  Floats sum{};
  const auto add = [&sum](const Floats& other) {
#pragma unroll
    for (int i = 0; i < kWgradPack; ++i) sum.value[i] += other.value[i];
  };
  if (pack < p.part_packs) {
    const Floats* const partial = reinterpret_cast<const Floats*>(p.partial) + pack;
#pragma unroll 8
    for (int part = segment; part < p.parts; part += kWgradSumSegments) {
      add(partial[static_cast<int64_t>(part) * p.part_packs]);
    }
  }
  shared[thread] = sum;
  __syncthreads();
  if (segment > 0 || pack >= p.part_packs) return;
  for (int other = 1; other < kWgradSumSegments; ++other) {
    add(shared[other * kWgradSumPacks + of_block]);
  }
  const WgradPackPlace place = WgradPackPlaceOf(p, pack);
  if (place.tap < 0 || place.input >= p.in_channels) return;
  T* const result = static_cast<T*>(p.result) + place.tap * p.of_tap + place.input * p.of_input +
                    place.output * p.of_output;
#pragma unroll
  for (int i = 0; i < kWgradPack; ++i) {
    const int below = i / 2 * 8;
    if (place.output + below < p.out_channels) {
      Narrow(sum.value[i], result + i % 2 * p.of_input + below * p.of_output);
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_CUH_
