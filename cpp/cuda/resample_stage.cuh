// Rows of x on their way through shared memory, for threads that need them otherwise than memory
// gives them: copied as they lie, in aligned pieces of 16 bytes, several rows ahead and through no
// register. Where a line begins within its first piece differs from row to row.

#ifndef JAX_CONVGRAD_CUDA_RESAMPLE_STAGE_CUH_
#define JAX_CONVGRAD_CUDA_RESAMPLE_STAGE_CUH_

#include <cstdint>
#include <cstring>

#include "cuda/resample_elements.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// Copies begin and are waited for in groups, each of what a thread began to copy since the last.
CONVGRAD_DEVICE void EndCopyGroup() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until at most kPending of a thread's groups are on their way.
template <int kPending>
CONVGRAD_DEVICE void AwaitCopies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// Copies a piece to shared memory without waiting for it.
CONVGRAD_DEVICE void CopyPiece(char* to, uintptr_t piece) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(piece)
               : "memory");
#elif defined(__CUDA_ARCH__)
  *reinterpret_cast<uint4*>(to) = __ldg(reinterpret_cast<const uint4*>(piece));
#else
  memcpy(to, reinterpret_cast<const void*>(piece), kStagePieceBytes);
#endif
}

// A thread's part of the rows of a line.
template <typename T>
struct StagedLine {
  uintptr_t from;  // of the row that is copied next: what is staged, from the thread's first piece
  uint32_t low;    // of the row that is read next: the last bits of where what is staged begins
  int copy_at;     // in a slot: the thread's first piece
  int read_at;     // and where it reads, if rows began where a piece does
  bool copies;
  bool inside;  // all pieces lie inside x

  // Begins to copy as many of the kRows rows that are next as are there, to a slot each: of
  // `pieces` each `step`th from `first` on, and not more than kCopies, if that is not 0; kAll says
  // that all of these are there.
  template <int kRows, int kCopies, bool kAll>
  CONVGRAD_DEVICE void Copy(char* slots, int slot_bytes, int rows, int64_t row_bytes, int first,
                            int step, int pieces, const void* x, int64_t x_bytes) const {
    char* const slot = slots + copy_at;
    if (!inside || rows < kRows) {
      CONVGRAD_ROLLED
      for (int row = 0; row < rows && row < kRows; ++row) {
        CopyInside(slot + row * slot_bytes, PieceOf(from + static_cast<uintptr_t>(row * row_bytes)),
                   first, step, pieces, reinterpret_cast<uintptr_t>(x),
                   reinterpret_cast<uintptr_t>(x) + static_cast<uintptr_t>(x_bytes));
      }
      return;
    }
    CONVGRAD_UNROLL
    for (int row = 0; row < kRows; ++row) {
      uintptr_t piece = PieceOf(from + static_cast<uintptr_t>(row * row_bytes));
      char* to = slot + row * slot_bytes;
      if constexpr (kCopies > 0) {
        CONVGRAD_UNROLL
        for (int i = 0; i < kCopies; ++i) {
          if (kAll || i + 1 < kCopies || first + i * step < pieces) {
            CopyPiece(to + i * step * kStagePieceBytes,
                      piece + static_cast<uintptr_t>(i * step * kStagePieceBytes));
          }
        }
      } else {
        CopyPiece(to, piece);  // the first is there, and few lines have more
        CONVGRAD_ROLLED
        for (int i = first + step; i < pieces; i += step) {
          piece += static_cast<uintptr_t>(step * kStagePieceBytes);
          to += step * kStagePieceBytes;
          CopyPiece(to, piece);
        }
      }
    }
  }

  CONVGRAD_DEVICE static uintptr_t PieceOf(uintptr_t at) {
    return at & ~uintptr_t{kStagePieceBytes - 1};
  }

  // The same where x begins or ends: nothing outside is read.
  CONVGRAD_DEVICE_CALL static void CopyInside(char* to, uintptr_t piece, int first, int step,
                                              int pieces, uintptr_t x, uintptr_t x_end) {
    CONVGRAD_ROLLED
    for (int i = first; i < pieces; i += step) {
      if (piece >= x && piece + kStagePieceBytes <= x_end) {
        CopyPiece(to, piece);
      } else {
        CONVGRAD_ROLLED
        for (int at = 0; at < kStagePieceBytes; at += static_cast<int>(sizeof(T))) {
          if (piece + at >= x && piece + at < x_end) {
            *reinterpret_cast<T*>(to + at) = *reinterpret_cast<const T*>(piece + at);
          }
        }
      }
      piece += static_cast<uintptr_t>(step * kStagePieceBytes);
      to += step * kStagePieceBytes;
    }
  }

  // Where a thread reads the row that is next, which is in a slot.
  CONVGRAD_DEVICE const T* Next(const char* slot, uint32_t row_step) {
    const char* const at = slot + read_at + static_cast<int>(low & (kStagePieceBytes - 1));
    low += row_step;
    return reinterpret_cast<const T*>(at);
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_RESAMPLE_STAGE_CUH_
