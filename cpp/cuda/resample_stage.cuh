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

  // Begins to copy the row that is next to a slot: of `pieces` each `step`th from `first` on, and
  // not more than kCopies, if that is not 0; kAll says that all of these are there.
  template <int kCopies, bool kAll>
  CONVGRAD_DEVICE void Copy(char* slot, int first, int step, int pieces, const void* x,
                            int64_t x_bytes) const {
    uintptr_t piece = from & ~uintptr_t{kStagePieceBytes - 1};
    char* to = slot + copy_at;
    if (!inside) {
      CopyInside(to, piece, first, step, pieces, reinterpret_cast<uintptr_t>(x),
                 reinterpret_cast<uintptr_t>(x) + static_cast<uintptr_t>(x_bytes));
      return;
    }
    if constexpr (kCopies > 0) {
      CONVGRAD_UNROLL
      for (int i = 0; i < kCopies; ++i) {
        if (kAll || i + 1 < kCopies || first + i * step < pieces) {
          CopyPiece(to + i * step * kStagePieceBytes,
                    piece + static_cast<uintptr_t>(i * step * kStagePieceBytes));
        }
      }
    } else {
      CONVGRAD_ROLLED
      for (int i = first; i < pieces; i += step) {
        CopyPiece(to, piece);
        piece += static_cast<uintptr_t>(step * kStagePieceBytes);
        to += step * kStagePieceBytes;
      }
    }
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
};

// What lies from an element of each row of x on is staged. The thread reads from the `element`th of
// that on.
template <typename Lines>
CONVGRAD_DEVICE void EnterStage(const Lines& lines, typename Lines::State& mine, int begin,
                                int element = 0) {
  const int line = mine.line < lines.tiling.lines ? mine.line : lines.tiling.lines - 1;
  mine.stage_begin = begin;
  mine.stage.copy_at = Opaque(line * lines.tiling.stage_pitch + mine.lane * kStagePieceBytes);
  mine.stage.read_at = Opaque(line * lines.tiling.stage_pitch +
                              element * static_cast<int>(sizeof(typename Lines::T)));
  mine.stage.copies = mine.line < lines.tiling.lines && mine.lane < lines.tiling.stage_pieces;
}

// Elements of a row that are staged wherever it begins.
template <typename Lines>
CONVGRAD_DEVICE int StageRoom(const Lines& lines) {
  using T = typename Lines::T;
  constexpr int kPieceElements = kStagePieceBytes / static_cast<int>(sizeof(T));
  return lines.tiling.stage_pieces * kPieceElements - (kPieceElements - 1);
}

// Rows of x from `row` to before `end` are copied next, and read.
template <typename Lines>
CONVGRAD_DEVICE void BeginRows(const Lines& lines, typename Lines::State& mine, int row, int end) {
  const auto at = [&](int64_t of) {
    return reinterpret_cast<uintptr_t>(mine.x + (of * lines.task.x_walk + mine.stage_begin));
  };
  const auto aligned = [](uintptr_t to) { return to & ~uintptr_t{kStagePieceBytes - 1}; };
  const uintptr_t x = reinterpret_cast<uintptr_t>(lines.task.x), first = at(row);
  mine.stage.inside =
      aligned(first) >= x &&
      aligned(at(end - 1)) + static_cast<uintptr_t>(lines.tiling.stage_pieces) * kStagePieceBytes <=
          x + static_cast<uintptr_t>(lines.task.x_bytes);
  mine.stage.from = first + static_cast<uintptr_t>(mine.lane) * kStagePieceBytes;
  mine.stage.low = static_cast<uint32_t>(first);
}

// Begins to copy the row that is next: a group of copies, also if it is not there.
template <typename Lines>
CONVGRAD_DEVICE void CopyRow(const Lines& lines, typename Lines::State& mine, int slot,
                             bool there) {
  using T = typename Lines::T;
  if (there && mine.stage.copies) {
    // In strips, threads copy as much as they own.
    constexpr int kBytes = Lines::kVector * static_cast<int>(sizeof(T));
    constexpr int kCopies = Lines::kStrip ? (kBytes + kStagePieceBytes - 1) / kStagePieceBytes : 0;
    mine.stage.template Copy<kCopies, kBytes % kStagePieceBytes == 0>(
        lines.stages + slot, mine.lane, lines.tiling.line_threads, lines.tiling.stage_pieces,
        lines.task.x, lines.task.x_bytes);
  }
  mine.stage.from += static_cast<uintptr_t>(lines.task.x_walk) * sizeof(T);
  EndCopyGroup();
}

// Where a thread reads the row that is next, which is in a slot.
template <typename Lines>
CONVGRAD_DEVICE const typename Lines::T* NextStaged(const Lines& lines, typename Lines::State& mine,
                                                    int slot) {
  const char* const at = lines.stages + slot + mine.stage.read_at +
                         static_cast<int>(mine.stage.low & (kStagePieceBytes - 1));
  mine.stage.low +=
      static_cast<uint32_t>(lines.task.x_walk) * static_cast<uint32_t>(sizeof(typename Lines::T));
  return reinterpret_cast<const typename Lines::T*>(at);
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_RESAMPLE_STAGE_CUH_
