// cuda/kernels/common/warpgroup_product.cuh on the processor. A thread does what its lane gets.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_WARPGROUP_PRODUCT_CUH_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_WARPGROUP_PRODUCT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "cuda/kernels/common/bulk_copy.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/tensor_core.cuh"
#include "cuda/kernels/common/warp_product.cuh"

namespace jax_convgrad {

enum class Lines { kAlongDepth, kAcrossDepth };

template <Lines kLines>
class WarpgroupOperand {
 public:
  WarpgroupOperand(const void* first, uint32_t panel_bytes)
      : first_(static_cast<const unsigned char*>(first)), panel_bytes_(panel_bytes) {
    if ((first_ - shared_memory) % 1024 != 0) emulated_cuda::Fail("an operand is not aligned");
  }

  // Of a row of a, or a column of b.
  template <typename T>
  float At(int row, int depth) const {
    const bool along = kLines == Lines::kAlongDepth;
    const int line = along ? row : depth, element = along ? depth : row;
    const unsigned char* const panel = first_ + element / 64 * static_cast<int64_t>(panel_bytes_);
    T value;
    std::memcpy(&value, panel + line * 128 + (element % 64 / 8 ^ line % 8) * 16 + element % 8 * 2,
                sizeof value);
    return Widen(value);
  }

 private:
  const unsigned char* first_;
  uint32_t panel_bytes_;
};

template <int kColumns, typename T, Lines kA, Lines kB>
void MultiplyAdd(const T*, const WarpgroupOperand<kA>& a, const WarpgroupOperand<kB>& b, int depth,
                 float* sums) {
  static_assert(kColumns == 128 || kColumns == 64, "as there are instructions for");
  if (depth % 16 != 0) emulated_cuda::Fail("a depth is no multiple of 16");
  emulated_cuda::products[threadIdx.x].begun.push_back([=] {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    for (int i = 0; i < kColumns / 2; ++i) {
      const int row = warp % 4 * 16 + lane / 4 + i % 4 / 2 * 8;
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      for (int k = depth; k < depth + 16; ++k) {
        sums[i] += a.template At<T>(row, k) * b.template At<T>(column, k);
      }
    }
  });
}

class WarpgroupColumns {
 public:
  explicit WarpgroupColumns(const void* first) : first_(static_cast<const unsigned char*>(first)) {
    if ((first_ - shared_memory) % 256 != 0) emulated_cuda::Fail("an operand is not aligned");
  }

  template <typename T>
  float At(int column, int depth) const {
    T value;
    std::memcpy(&value, first_ + column * 32 + (depth / 8 ^ column / 4 % 2) * 16 + depth % 8 * 2,
                sizeof value);
    return Widen(value);
  }

 private:
  const unsigned char* first_;
};

template <int kColumns, typename T>
void MultiplyAdd(const T*, const uint32_t (&a)[4], const WarpgroupColumns& b, bool adds,
                 float* sums) {
  static_assert(kColumns == 64 || kColumns == 32, "as there are instructions for");
  // A lane's own two rows, of which four lanes have parts.
  struct Rows {
    float at[2][16];
  } rows;
  emulated_cuda::TogetherWithWarp(
      {emulated_cuda::WarpCall::kRows, a, &rows}, [](const emulated_cuda::LaneCall* lanes) {
        for (unsigned i = 0; i < emulated_cuda::kWarpThreads; ++i) {
          Rows* const out = static_cast<Rows*>(lanes[i].out);
          for (unsigned r = 0; r < 4; ++r) {
            for (unsigned t = 0; t < 4; ++t) {
              const uint32_t word = static_cast<const uint32_t*>(lanes[i / 4 * 4 + t].in)[r];
              for (unsigned which = 0; which < 2; ++which) {
                const uint16_t bits = emulated_cuda::HalfOf(word, which);
                T value;
                std::memcpy(&value, &bits, sizeof value);
                out->at[r % 2][r / 2 * 8 + t * 2 + which] = Widen(value);
              }
            }
          }
        }
      });
  std::array<uint32_t, 4> begun_with;
  std::copy(a, a + 4, begun_with.begin());
  emulated_cuda::products[threadIdx.x].begun.push_back([=, &a] {
    if (!std::equal(begun_with.begin(), begun_with.end(), a)) {
      emulated_cuda::Fail("an operand in registers was overwritten");
    }
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int i = 0; i < kColumns / 2; ++i) {
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float sum = adds ? sums[i] : 0;
      for (int k = 0; k < 16; ++k) sum += rows.at[i % 4 / 2][k] * b.At<T>(column, k);
      sums[i] = sum;
    }
  });
}

// An operand's description as the tensor cores read it, of lines along the depth or across it.
class SwizzledLines {
 public:
  SwizzledLines(uint64_t described, bool across)
      : first_(static_cast<uint32_t>(described & 0x3fff) * 16),
        next_bytes_(static_cast<int>(described >> 16 & 0x3fff) * 16),
        group_bytes_(static_cast<int>(described >> 32 & 0x3fff) * 16),
        line_bytes_(described >> 62 == 1   ? 128
                    : described >> 62 == 2 ? 64
                                           : 32),
        across_(across) {
    if (described >> 62 == 0) emulated_cuda::Fail("an operand is not swizzled");
    if (described >> 48 & 0x3fff) emulated_cuda::Fail("an operand's distances are too large");
  }

  // Of a row of a, or a column of b. Of floats, what the tensor cores take.
  template <typename T>
  float At(int row, int depth) const {
    const int bytes = static_cast<int>(sizeof(T)), elements = line_bytes_ / bytes;
    const int offset = across_ ? row / elements * next_bytes_ + depth / 8 * group_bytes_ +
                                     depth % 8 * line_bytes_ + row % elements * bytes
                               : row / 8 * group_bytes_ + row % 8 * line_bytes_ + depth * bytes;
    const uint32_t at = first_ + static_cast<uint32_t>(offset);
    if (at >= kSharedBytes_) emulated_cuda::Fail("an operand is outside of shared memory");
    T value;
    std::memcpy(&value, emulated_cuda::Swizzled(shared_memory + at, line_bytes_), sizeof value);
    if constexpr (sizeof(T) == 4) return emulated_cuda::Tf32(value);
    return Widen(value);
  }

 private:
  uint32_t first_;
  int next_bytes_, group_bytes_, line_bytes_;
  bool across_;
};

template <Lines kLines_, int kLineBytes>
class SwizzledOperand {
 public:
  static constexpr bool kAcross = kLines_ == Lines::kAcrossDepth;

  SwizzledOperand(const void* first, int group_bytes, int next_bytes = 16)
      : low_((SharedAddress(first) >> 4 & 0x3fff) | static_cast<uint32_t>(next_bytes) >> 4 << 16),
        high_(static_cast<uint32_t>(group_bytes) >> 4 | kSwizzle << 30) {
    if (SharedAddress(first) % kLineBytes != 0 || group_bytes % 16 != 0 || next_bytes % 16 != 0 ||
        group_bytes < 0 || next_bytes < 0) {
      emulated_cuda::Fail("an operand is not aligned");
    }
  }

  SwizzledOperand At(int bytes) const {
    SwizzledOperand moved = *this;
    moved.low_ += static_cast<uint32_t>(bytes >> 4);
    return moved;
  }

  uint64_t described() const { return uint64_t{high_} << 32 | low_; }

 private:
  static constexpr uint32_t kSwizzle = kLineBytes == 128 ? 1 : kLineBytes == 64 ? 2 : 3;

  uint32_t low_, high_;
};

template <int kColumns, typename T, typename A, typename B>
void MultiplySwizzled(const T*, const A& a, const B& b, bool adds, float* sums) {
  static_assert((kColumns % 16 == 0 && kColumns <= 128) || (kColumns % 32 == 0 && kColumns <= 256),
                "as there are instructions for");
  static_assert(sizeof(T) == 2 || !(A::kAcross || B::kAcross), "as there are instructions");
  constexpr int kDepth = 32 / static_cast<int>(sizeof(T));
  const SwizzledLines rows(a.described(), A::kAcross), columns(b.described(), B::kAcross);
  emulated_cuda::products[threadIdx.x].begun.push_back([=] {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    float of_a[2][kDepth];
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < kDepth; ++k) {
        of_a[half][k] = rows.template At<T>(warp % 4 * 16 + lane / 4 + half * 8, k);
      }
    }
    for (int i = 0; i < kColumns / 2; ++i) {
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float sum = adds ? sums[i] : 0;
      for (int k = 0; k < kDepth; ++k) {
        sum += of_a[i % 4 / 2][k] * columns.template At<T>(column, k);
      }
      sums[i] = sum;
    }
  });
}

inline int WarpgroupNumber() { return static_cast<int>(threadIdx.x / 128); }

inline int WarpNumber() { return static_cast<int>(threadIdx.x / 32); }

inline void StoreMatrices(void* row, const uint32_t (&matrices)[4]) {
  emulated_cuda::TogetherWithWarp(
      {emulated_cuda::WarpCall::kStoreMatrices, matrices, row}, [](const auto* lanes) {
        for (unsigned i = 0; i < emulated_cuda::kWarpThreads; ++i) {
          unsigned char* const to = static_cast<unsigned char*>(lanes[i].out);
          if (reinterpret_cast<uintptr_t>(to) % 16 != 0) {
            emulated_cuda::Fail("a row is not aligned");
          }
          for (unsigned t = 0; t < 4; ++t) {
            const void* const words = lanes[i % 8 * 4 + t].in;
            std::memcpy(to + t * 4, static_cast<const uint32_t*>(words) + i / 8, 4);
          }
        }
      });
}

template <int kCount>
void ShowSums(float (&)[kCount]) {}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_WARPGROUP_PRODUCT_CUH_
