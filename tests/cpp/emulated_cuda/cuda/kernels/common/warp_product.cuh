// cuda/kernels/common/warp_product.cuh on the processor. The last lane of a warp to call does what
// all of them asked for, and fails if they asked for different things.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_WARP_PRODUCT_CUH_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_WARP_PRODUCT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda/kernels/common/copy_async.cuh"

namespace emulated_cuda {

enum class WarpCall { kMatrices, kTransposedMatrices, kMultiplyAdd, kShuffle };

// What a lane calls with, and where it wants the result.
struct LaneCall {
  WarpCall call;
  const void* in = nullptr;
  void* out = nullptr;
  uint32_t b[2] = {0, 0};
};

inline LaneCall lane_calls[1024];

// Calls act(of all lanes) when the last of them is here.
template <typename Act>
void TogetherWithWarp(const LaneCall& mine, const Act& act) {
  const unsigned lane = threadIdx.x % kWarpThreads;
  LaneCall* const lanes = lane_calls + (threadIdx.x - lane);
  lanes[lane] = mine;
  if (lane == kWarpThreads - 1) {  // lanes run in their order
    for (unsigned i = 0; i < kWarpThreads; ++i) {
      if (lanes[i].call != mine.call) Fail("the lanes of its warp do different things");
    }
    act(static_cast<const LaneCall*>(lanes));
  }
  __syncwarp();
}

inline uint16_t HalfOf(uint32_t pair, unsigned which) {
  return static_cast<uint16_t>(pair >> (16 * which));
}

inline void LoadMatricesOfWarp(const LaneCall* lanes, bool transposed) {
  uint16_t rows[4][8][8];
  for (unsigned i = 0; i < kWarpThreads; ++i) {
    if (reinterpret_cast<uintptr_t>(lanes[i].in) % 16 != 0) Fail("a row is not aligned");
    std::memcpy(rows[i / 8][i % 8], lanes[i].in, 16);
  }
  for (unsigned i = 0; i < kWarpThreads; ++i) {
    uint32_t* const out = static_cast<uint32_t*>(lanes[i].out);
    const unsigned g = i / 4, t = i % 4 * 2;
    for (unsigned m = 0; m < 4; ++m) {
      const uint16_t low = transposed ? rows[m][t][g] : rows[m][g][t];
      const uint16_t high = transposed ? rows[m][t + 1][g] : rows[m][g][t + 1];
      out[m] = low | uint32_t{high} << 16;
    }
  }
}

template <typename ToFloat>
void MultiplyAddOfWarp(const LaneCall* lanes, const ToFloat& to_float) {
  float a[16][16], b[16][8];
  for (unsigned i = 0; i < kWarpThreads; ++i) {
    const uint32_t* const in = static_cast<const uint32_t*>(lanes[i].in);
    const unsigned g = i / 4, t = i % 4 * 2;
    for (unsigned half = 0; half < 2; ++half) {
      for (unsigned r = 0; r < 4; ++r) {
        a[g + r % 2 * 8][t + r / 2 * 8 + half] = to_float(HalfOf(in[r], half));
      }
      for (unsigned r = 0; r < 2; ++r)
        b[t + r * 8 + half][g] = to_float(HalfOf(lanes[i].b[r], half));
    }
  }
  for (unsigned i = 0; i < kWarpThreads; ++i) {
    float* const sums = static_cast<float*>(lanes[i].out);
    for (unsigned r = 0; r < 4; ++r) {
      const unsigned row = i / 4 + r / 2 * 8, column = i % 4 * 2 + r % 2;
      for (unsigned k = 0; k < 16; ++k) sums[r] += a[row][k] * b[k][column];
    }
  }
}

}  // namespace emulated_cuda

namespace jax_convgrad {

inline void LoadMatrices(const void* row, uint32_t (&matrices)[4]) {
  emulated_cuda::TogetherWithWarp(
      {emulated_cuda::WarpCall::kMatrices, row, matrices},
      [](const auto* lanes) { emulated_cuda::LoadMatricesOfWarp(lanes, false); });
}

inline void LoadTransposedMatrices(const void* row, uint32_t (&matrices)[4]) {
  emulated_cuda::TogetherWithWarp(
      {emulated_cuda::WarpCall::kTransposedMatrices, row, matrices},
      [](const auto* lanes) { emulated_cuda::LoadMatricesOfWarp(lanes, true); });
}

inline void MultiplyAdd(const __nv_bfloat16*, const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                        float (&sums)[4]) {
  emulated_cuda::TogetherWithWarp(
      {emulated_cuda::WarpCall::kMultiplyAdd, a, sums, {b0, b1}}, [](const auto* lanes) {
        emulated_cuda::MultiplyAddOfWarp(
            lanes, [](uint16_t bits) { return __bfloat162float(__nv_bfloat16{bits}); });
      });
}

inline void MultiplyAdd(const __half*, const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                        float (&sums)[4]) {
  emulated_cuda::TogetherWithWarp(
      {emulated_cuda::WarpCall::kMultiplyAdd, a, sums, {b0, b1}}, [](const auto* lanes) {
        emulated_cuda::MultiplyAddOfWarp(lanes,
                                         [](uint16_t bits) { return __half2float(__half{bits}); });
      });
}

inline uint32_t RoundedPair(const __nv_bfloat16*, float low, float high) {
  return __float2bfloat16_rn(low).bits | uint32_t{__float2bfloat16_rn(high).bits} << 16;
}

inline uint32_t RoundedPair(const __half*, float low, float high) {
  return __float2half_rn(low).bits | uint32_t{__float2half_rn(high).bits} << 16;
}

inline uint32_t FromOtherLane(uint32_t value, int mask) {
  uint32_t result = 0;
  emulated_cuda::TogetherWithWarp(
      {emulated_cuda::WarpCall::kShuffle, &value, &result, {static_cast<uint32_t>(mask), 0}},
      [](const auto* lanes) {
        for (unsigned i = 0; i < emulated_cuda::kWarpThreads; ++i) {
          std::memcpy(lanes[i].out, lanes[i ^ lanes[i].b[0]].in, sizeof(uint32_t));
        }
      });
  return result;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_WARP_PRODUCT_CUH_
