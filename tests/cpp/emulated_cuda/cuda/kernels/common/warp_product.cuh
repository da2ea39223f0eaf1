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
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/tf32.cuh"

namespace emulated_cuda {

enum class WarpCall {
  kMatrices,
  kTransposedMatrices,
  kStoreMatrices,
  kMultiplyAdd,
  kRows,
  kShuffle
};

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

// `kElements` are in a word; to_float(word, which) makes a number of one.
template <unsigned kElements, typename ToFloat>
void MultiplyAddOfWarp(const LaneCall* lanes, const ToFloat& to_float) {
  constexpr unsigned kDepth = 8 * kElements;
  float a[16][kDepth], b[kDepth][8];
  for (unsigned i = 0; i < kWarpThreads; ++i) {
    const uint32_t* const in = static_cast<const uint32_t*>(lanes[i].in);
    const unsigned g = i / 4, t = i % 4 * kElements;
    for (unsigned which = 0; which < kElements; ++which) {
      for (unsigned r = 0; r < 4; ++r) {
        a[g + r % 2 * 8][t + r / 2 * kDepth / 2 + which] = to_float(in[r], which);
      }
      for (unsigned r = 0; r < 2; ++r)
        b[t + r * kDepth / 2 + which][g] = to_float(lanes[i].b[r], which);
    }
  }
  for (unsigned i = 0; i < kWarpThreads; ++i) {
    float* const sums = static_cast<float*>(lanes[i].out);
    for (unsigned r = 0; r < 4; ++r) {
      const unsigned row = i / 4 + r / 2 * 8, column = i % 4 * 2 + r % 2;
      for (unsigned k = 0; k < kDepth; ++k) sums[r] += a[row][k] * b[k][column];
    }
  }
}

}  // namespace emulated_cuda

namespace jax_convgrad {

template <typename T>
constexpr int kWordElements = 4 / static_cast<int>(sizeof(T));
template <typename T>
constexpr int kPieceElements = 16 / static_cast<int>(sizeof(T));

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
        emulated_cuda::MultiplyAddOfWarp<2>(lanes, [](uint32_t word, unsigned which) {
          return __bfloat162float(__nv_bfloat16{emulated_cuda::HalfOf(word, which)});
        });
      });
}

inline void MultiplyAdd(const __half*, const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                        float (&sums)[4]) {
  emulated_cuda::TogetherWithWarp(
      {emulated_cuda::WarpCall::kMultiplyAdd, a, sums, {b0, b1}}, [](const auto* lanes) {
        emulated_cuda::MultiplyAddOfWarp<2>(lanes, [](uint32_t word, unsigned which) {
          return __half2float(__half{emulated_cuda::HalfOf(word, which)});
        });
      });
}

inline void MultiplyAdd(const float*, const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                        float (&sums)[4]) {
  emulated_cuda::TogetherWithWarp(
      {emulated_cuda::WarpCall::kMultiplyAdd, a, sums, {b0, b1}}, [](const auto* lanes) {
        emulated_cuda::MultiplyAddOfWarp<1>(lanes, [](uint32_t word, unsigned) {
          float number;
          std::memcpy(&number, &word, 4);
          return emulated_cuda::Tf32(number);
        });
      });
}

template <typename T>
uint32_t MultipliedWord(uint32_t word) {
  if constexpr (sizeof(T) == 4) {
    float number;
    std::memcpy(&number, &word, 4);
    number = ToTf32(number);
    std::memcpy(&word, &number, 4);
  }
  return word;
}

template <typename T>
uint32_t WordOf(const T* low, const T* high) {
  uint32_t word = 0;
  std::memcpy(&word, low, sizeof(T));
  if constexpr (sizeof(T) == 4) return MultipliedWord<T>(word);
  uint16_t second = 0;
  std::memcpy(&second, high, 2);
  return word | uint32_t{second} << 16;
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
