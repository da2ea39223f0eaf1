// Rows of x on their way through shared memory, for threads that need them in another order than
// memory has them: copied unchanged, in aligned pieces of 16 bytes, several rows ahead and through
// no register. Where a line begins within its first piece differs from row to row.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_STAGE_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_STAGE_CUH_

#include <cstdint>
#include <cstring>

#include "cuda/kernels/resample/elements.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// Copies begin, and are waited for, in groups: the copies that a thread began since the last group.
CONVGRAD_DEVICE void EndCopyGroup() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending of a thread's groups are in flight.
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
struct StagedLine {
  uintptr_t from;  // of the row that is copied next: what is staged, from the thread's first piece
  // Of the row that is read next: the last bits of where what is staged begins, less those of the
  // line in a slot.
  uint32_t low;
  int copy_at;  // in the first slot of the block: the thread's first piece
  int read_at;  // and where it reads, if rows began where a piece does
  bool copies;
};

// Stages each row of x from some element on. The thread reads from the `element`th of these on.
template <typename Lines>
CONVGRAD_DEVICE void EnterStage(const Lines& lines, typename Lines::State& mine, int begin,
                                int element = 0) {
  const int line = mine.line < lines.tiling.lines ? mine.line : lines.tiling.lines - 1;
  const int line_at = lines.tiling.stage_at + line * lines.tiling.stage_pitch;
  mine.stage_begin = begin;
  mine.stage.copy_at = Opaque(line_at + mine.lane * kStagePieceBytes);
  mine.stage.read_at = Opaque(line_at + element * static_cast<int>(sizeof(typename Lines::T)));
  mine.stage.copies = mine.line < lines.tiling.lines && mine.lane < lines.tiling.stage_pieces;
}

// Elements of a row that are staged, wherever the row begins.
template <typename Lines>
CONVGRAD_DEVICE int StageRoom(const Lines& lines) {
  using T = typename Lines::T;
  constexpr int kPieceElements = kStagePieceBytes / static_cast<int>(sizeof(T));
  return lines.tiling.stage_pieces * kPieceElements - (kPieceElements - 1);
}

// Sets the next row of x to copy, and to read, to `row`.
template <typename Lines>
CONVGRAD_DEVICE void BeginRows(const Lines& lines, typename Lines::State& mine, int row) {
  const uintptr_t first =
      reinterpret_cast<uintptr_t>(mine.x + (row * lines.task.x_walk + mine.stage_begin));
  mine.stage.from = first + static_cast<uintptr_t>(mine.lane) * kStagePieceBytes;
  mine.stage.low = static_cast<uint32_t>(first) -
                   static_cast<uint32_t>(mine.stage.copy_at - mine.lane * kStagePieceBytes);
}

// Where a thread's first piece of the next row to copy goes. Pieces have the same positions in the
// stage's cache lines as in memory: otherwise a warp's copy took 14 cycles of shared memory instead
// of 4.
template <typename Lines>
CONVGRAD_DEVICE char* CopyTo(const Lines& lines, const typename Lines::State& mine, int slot) {
  char* const to = lines.shared + slot + mine.stage.copy_at;
  if constexpr (Lines::kColumns)
    return to;  // rows are aligned, though mostly to less than a cache line
  const uint32_t off =
      static_cast<uint32_t>(mine.stage.from) - static_cast<uint32_t>(mine.stage.copy_at);
  return to + (off & (kStageLineBytes - kStagePieceBytes));
}

// Begins to copy the next row to a slot. All of its pieces are inside x, which holds for the rows
// from stage_from to before stage_to.
template <typename Lines>
CONVGRAD_DEVICE void CopyRow(const Lines& lines, const typename Lines::State& mine, int slot) {
  using T = typename Lines::T;
  const int step = lines.tiling.line_threads, pieces = lines.tiling.stage_pieces;
  uintptr_t piece = mine.stage.from & ~uintptr_t{kStagePieceBytes - 1};
  char* to = CopyTo(lines, mine, slot);
  if constexpr (Lines::kStrip) {
    // Threads copy as much as they own; those that own nothing repeat the copies of another thread.
    constexpr int kBytes = Lines::kVector * static_cast<int>(sizeof(T));
    constexpr int kCopies = (kBytes + kStagePieceBytes - 1) / kStagePieceBytes;
    constexpr bool kAll = kBytes % kStagePieceBytes == 0;
    CONVGRAD_UNROLL
    for (int i = 0; i < kCopies; ++i) {
      if (kAll || i + 1 < kCopies || mine.lane + i * step < pieces) {
        CopyPiece(to + i * step * kStagePieceBytes,
                  piece + static_cast<uintptr_t>(i * step * kStagePieceBytes));
      }
    }
  } else if (pieces <= step) {
    if (mine.stage.copies) CopyPiece(to, piece);
  } else if (mine.stage.copies) {
    CONVGRAD_ROLLED
    for (int i = mine.lane; i < pieces; i += step) {
      CopyPiece(to, piece);
      piece += static_cast<uintptr_t>(step * kStagePieceBytes);
      to += step * kStagePieceBytes;
    }
  }
}

// The same at the beginning and the end of x: nothing outside is read.
template <typename T>
CONVGRAD_DEVICE_CALL void CopyInside(char* to, uintptr_t from, int first, int step, int pieces,
                                     uintptr_t x, uintptr_t x_end) {
  uintptr_t piece = from & ~uintptr_t{kStagePieceBytes - 1};
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

// Either of them, if the row exists.
template <typename Lines>
CONVGRAD_DEVICE void CopyAnyRow(const Lines& lines, const typename Lines::State& mine, int slot,
                                int row, int end) {
  using T = typename Lines::T;
  const ResampleTiling& tiling = lines.tiling;
  if (row >= tiling.stage_from && row < Min(tiling.stage_to, end)) {
    CopyRow(lines, mine, slot);
  } else if (row < end && mine.stage.copies) {
    const uintptr_t x = reinterpret_cast<uintptr_t>(lines.task.x);
    CopyInside<T>(CopyTo(lines, mine, slot), mine.stage.from, mine.lane, tiling.line_threads,
                  tiling.stage_pieces, x, x + static_cast<uintptr_t>(lines.task.x_bytes));
  }
}

// After a row was copied or did not exist: commits a group of copies either way.
template <typename Lines>
CONVGRAD_DEVICE void EndRow(const Lines& lines, typename Lines::State& mine) {
  mine.stage.from += static_cast<uintptr_t>(lines.task.x_walk_bytes);
  EndCopyGroup();
}

// The position at which a thread reads the next row, which is in a slot.
template <typename Lines>
CONVGRAD_DEVICE const typename Lines::T* NextStaged(const Lines& lines, typename Lines::State& mine,
                                                    int slot) {
  const int low = Lines::kColumns ? 0 : static_cast<int>(mine.stage.low & (kStageLineBytes - 1));
  mine.stage.low += static_cast<uint32_t>(lines.task.x_walk_bytes);
  return reinterpret_cast<const typename Lines::T*>(lines.shared + mine.stage.read_at + slot + low);
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_STAGE_CUH_
