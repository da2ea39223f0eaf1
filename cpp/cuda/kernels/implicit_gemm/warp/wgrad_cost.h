// How long a tiling of wgrad by warps is likely to take, by a count of what the kernel does.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_COST_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_COST_H_

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/warp/wgrad_params.h"
#include "cuda/kernels/implicit_gemm/warp/wgrad_tiling.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace warp_wgrad {

// Of a multiprocessor of an H200, about, in cycles. Only ratios matter here. It has four parts,
// each with tensor cores, and warps that issue an instruction in a cycle.
constexpr int kQuarters = 4;
constexpr double kHalvesProduct = 6.3;  // by the tensor cores of a quarter: 16x8x16
constexpr double kFloatsProduct = 6.6;  // and 16x8x8
constexpr double kSharedBytes = 128;    // that shared memory gives or takes
constexpr double kCachedBytes = 40;     // from the second cache
constexpr double kMemoryBytes = 13;     // from memory
constexpr double kPieceIssue = 32;      // instructions for a piece that a thread copies
constexpr double kRoundIssue = 16;      // and rounds
constexpr double kStepCycles = 350;     // of waiting at a step's barrier
constexpr double kLatency = 1500;       // from a free slot to what is copied there
constexpr double kLaunchCycles = 4000;
constexpr double kStoredBytes = 12;  // of partial sums
constexpr double kVisible = 0.15;    // of what is hidden behind what takes longer

// What a step takes a block, of what its multiprocessor has: the busiest quarter's tensor cores and
// instructions, and shared memory.
struct StepCycles {
  double tensor_cores = 0, issue = 0, shared = 0;
};

// How much longer reads of x take, since they are of pixels that begin in the same banks: where
// a row of the tile ends, the next one's pixels are not those behind it. Positions are read by 8,
// or of floats every other one of 8, which then take 32 bytes each.
inline double BankConflicts(const WarpWgradParams& p, bool floats) {
  constexpr int kSampled = 64;
  constexpr int kRead = 8;
  const int positions = std::min(kSampled, p.chunks * kWarpWgradChunk);
  int reads = 0, turns = 0, row = 0, column = 0;
  for (int begin = 0; begin < positions; begin += kRead) {
    int used[2][kRead] = {};  // of the banks, 16 bytes each
    for (int i = 0; i < kRead && begin + i < p.positions; ++i) {
      const int at = WarpPixel(p.x, row * p.strides[1], column * p.strides[2]) / kWarpPieceBytes;
      ++used[floats ? i % 2 : 0][at % kRead];
      if (floats) ++used[i % 2][(at + 1) % kRead];
      if (++column == p.walk.columns) {
        column = 0;
        ++row;
      }
    }
    for (int i = 0; i < (floats ? 2 : 1); ++i) {
      ++reads;
      turns += std::max(1, *std::max_element(used[i], used[i] + kRead));
    }
  }
  return static_cast<double>(turns) / reads;
}

inline StepCycles ProductCycles(const Tiling& t, bool floats) {
  const WarpWgradParams& p = t.params;
  const double fragments = static_cast<double>(t.fragments);
  // Of a chunk and a unit, and of a chunk alone.
  const double unit_products = (floats ? 4 : 2) * fragments;
  const double unit_tensor = unit_products * (floats ? kFloatsProduct : kHalvesProduct);
  const double unit_shared = (floats ? 8 : 4) * BankConflicts(p, floats);
  const double unit_issue = unit_products + (floats ? 8 : 3);
  const double chunk_shared = (floats ? 8 : 4) * fragments + 2;
  const double chunk_issue = (floats ? 8 : 1) * fragments + 14;
  double units_of[kQuarters] = {}, chunks_of[kQuarters] = {}, units = 0, chunks = 0;
  const int all =
      static_cast<int>(int64_t{p.taps[0].each} * p.taps[1].each * p.taps[2].each * p.inputs.each);
  for (int warp = 0; warp < p.groups * p.depth_warps; ++warp) {
    const int group = warp % p.groups % p.output_groups, depth = warp / p.groups;
    const double own = WarpWgradFirstUnit(all, group + 1, p.output_groups) -
                       WarpWgradFirstUnit(all, group, p.output_groups);
    const double multiplied = static_cast<double>(CeilDivide(p.chunks - depth, p.depth_warps));
    units_of[warp % kQuarters] += own * multiplied;
    chunks_of[warp % kQuarters] += multiplied;
    units += own * multiplied;
    chunks += multiplied;
  }
  StepCycles cycles;
  for (int i = 0; i < kQuarters; ++i) {
    cycles.tensor_cores = std::max(cycles.tensor_cores, units_of[i] * unit_tensor);
    cycles.issue = std::max(cycles.issue, units_of[i] * unit_issue + chunks_of[i] * chunk_issue);
  }
  cycles.shared = units * unit_shared + chunks * chunk_shared;
  return cycles;
}

// The cycles until the last block is done.
inline double CyclesOf(const Tiling& t, int64_t element_bytes) {
  const ImplicitGemmProblem& problem = t.view.problem;
  const WarpWgradParams& p = t.params;
  StepCycles step = ProductCycles(t, element_bytes == 4);
  const double x_plane = static_cast<double>(p.x.rows) * p.x.columns * p.x.pieces;
  const double y_plane = static_cast<double>(p.y.rows) * p.y.columns * p.y.pieces;
  const double pieces = p.advance * x_plane + y_plane;
  const double bytes = pieces * kWarpPieceBytes;
  const bool rounds = element_bytes == 4;
  step.shared += bytes * (rounds ? 3 : 1) / kSharedBytes;
  step.issue += pieces * (kPieceIssue + (rounds ? kRoundIssue : 0)) / 32 / kQuarters;

  // Blocks with other units read the same from memory at about the same time. A step's own of x are
  // the pixels between its windows and those of its neighbors.
  const double own =
      static_cast<double>(p.positions) *
      static_cast<double>(
          std::min<int64_t>(p.x.channel_bytes * GemmVolume(problem.in) / GemmVolume(problem.out),
                            int64_t{1} << 30) +
          p.y.channel_bytes);
  const double residents = static_cast<double>(t.residents());
  const double resources[] = {step.tensor_cores, step.shared, step.issue, bytes / kCachedBytes,
                              own / kMemoryBytes / p.result_tiles};
  const double most = *std::max_element(resources, resources + 5);
  double rest = -most;
  for (const double resource : resources) rest += resource;
  const double busy = most + kVisible * rest;
  const double chain = std::max(step.tensor_cores, step.issue) + kStepCycles;
  const double cycles =
      std::max({residents * busy + kStepCycles / residents, chain, kLatency / (p.y_slots - 1)});

  const int64_t steps = CeilDivide(p.walk.steps, p.walk.blocks);
  const bool cuts = steps % p.walk.length != 0 && p.walk.length % steps != 0;
  const double begins = static_cast<double>(CeilDivide(steps, p.walk.length) + (cuts ? 1 : 0));
  const double begin = (p.held - p.advance) * x_plane * kWarpPieceBytes / kCachedBytes * residents +
                       (2 * p.held > p.x_slots ? kLatency / 2 : 0);
  const int64_t places = problem.device.multiprocessors * t.residents();
  const double waves = static_cast<double>(CeilDivide(t.blocks(), places));
  const double parts_bytes = static_cast<double>(ResultCount(problem) * 4 * p.walk.blocks);
  const double stored =
      2 * parts_bytes / kStoredBytes / static_cast<double>(problem.device.multiprocessors);
  double added = 0;
  for (int warps = p.depth_warps; warps > 1; warps = (warps + 1) / 2) added += 400;
  return kLaunchCycles + stored + added +
         waves * (kLatency + begins * begin + static_cast<double>(steps) * cycles);
}

}  // namespace warp_wgrad
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_COST_H_
