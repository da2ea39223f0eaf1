// Rows of x on their way through shared memory, for threads that need them in another order than
// memory has them: copied unchanged, in aligned pieces of 16 bytes, several rows ahead and through
// no register. Where a line begins within its first piece differs from row to row.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_STAGE_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_STAGE_CUH_

#include <cstdint>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/resample/line.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// A row at the beginning or the end of x: nothing outside is read.
template <typename T>
__device__ __attribute__((noinline)) void CopyInside(char* to, uintptr_t from, int first, int step,
                                                     int pieces, uintptr_t x, uintptr_t x_end) {
  uintptr_t piece = from & ~uintptr_t{kStagePieceBytes - 1};
#pragma unroll 1
  for (int i = first; i < pieces; i += step) {
    if (piece >= x && piece + kStagePieceBytes <= x_end) {
      CopyPiece(to, piece);
    } else {
#pragma unroll 1
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

// How rows lie in a slot of the stage.
enum class StageRows {
  kAnywhere,  // of any number of pieces
  kOwned,     // of as many pieces as the line's threads own elements
  kAligned,   // of any number, each beginning with a whole piece
};

// A thread's part of the rows of its line. kVector: elements that it owns, with kOwned.
template <typename T, int kStages, StageRows kRowsLie, int kVector = 0>
struct Stage {
  static constexpr bool kShifts = kRowsLie != StageRows::kAligned;

  uintptr_t from;  // of the row that is copied next: what is staged, from the thread's first piece
  // Of the row that is read next: the last bits of where what is staged begins, less those of the
  // line in a slot.
  uint32_t low;
  int begin;    // in a line of x
  int copy_at;  // in the first slot of the block: the thread's first piece
  int read_at;  // and where it reads, if rows began where a piece does
  bool copies;
  const int end;  // of the slots, from the first on

  CONVGRAD_DEVICE explicit Stage(const Line<T>& line)
      : end(Opaque(kStages * line.tiling.stage_slot_bytes)) {}

  // Stages each row of x from some element on. The thread reads from the `element`th of these on.
  CONVGRAD_DEVICE void Enter(const Line<T>& line, int begin_at, int element = 0) {
    const ResampleTiling& tiling = line.tiling;
    const int number = line.number < tiling.lines ? line.number : tiling.lines - 1;
    const int line_at = tiling.stage_at + number * tiling.stage_pitch;
    begin = begin_at;
    copy_at = Opaque(line_at + line.lane * kStagePieceBytes);
    read_at = Opaque(line_at + element * static_cast<int>(sizeof(T)));
    copies = line.number < tiling.lines && line.lane < tiling.stage_pieces;
  }

  // Elements of a row that are staged, wherever the row begins.
  CONVGRAD_DEVICE static int Room(const Line<T>& line) {
    constexpr int kPieceElements = kStagePieceBytes / static_cast<int>(sizeof(T));
    return line.tiling.stage_pieces * kPieceElements - (kPieceElements - 1);
  }

  CONVGRAD_DEVICE int NextSlot(const Line<T>& line, int slot) const {
    const int next = slot + line.tiling.stage_slot_bytes;
    return next == end ? 0 : next;
  }

  // Begins to copy as many rows as there are slots but one, from `row` on, to a stage that no
  // thread reads any more.
  CONVGRAD_DEVICE void Begin(const Line<T>& line, int row, int slot, int row_end) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(line.x + (row * line.task.x_walk + begin));
    from = first + static_cast<uintptr_t>(line.lane) * kStagePieceBytes;
    low = static_cast<uint32_t>(first) -
          static_cast<uint32_t>(copy_at - line.lane * kStagePieceBytes);
#pragma unroll 1
    for (int k = 0; k + 1 < kStages; ++k) {
      CopyAnyRow(line, slot, row + k, row_end);
      EndRow(line);
      slot = NextSlot(line, slot);
    }
  }

  // Begins to copy the next row to a slot. All of its pieces are inside x, which holds for the rows
  // from stage_from to before stage_to.
  CONVGRAD_DEVICE void CopyRow(const Line<T>& line, int slot) const {
    const int step = line.tiling.line_threads, pieces = line.tiling.stage_pieces;
    uintptr_t piece = from & ~uintptr_t{kStagePieceBytes - 1};
    char* to = CopyTo(line, slot);
    if constexpr (kRowsLie == StageRows::kOwned) {
      // Threads copy as much as they own; those that own nothing repeat the copies of another
      // thread.
      constexpr int kBytes = kVector * static_cast<int>(sizeof(T));
      constexpr int kCopies = (kBytes + kStagePieceBytes - 1) / kStagePieceBytes;
      constexpr bool kAll = kBytes % kStagePieceBytes == 0;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        if (kAll || i + 1 < kCopies || line.lane + i * step < pieces) {
          CopyPiece(to + i * step * kStagePieceBytes,
                    piece + static_cast<uintptr_t>(i * step * kStagePieceBytes));
        }
      }
    } else if (pieces <= step) {
      if (copies) CopyPiece(to, piece);
    } else if (copies) {
#pragma unroll 1
      for (int i = line.lane; i < pieces; i += step) {
        CopyPiece(to, piece);
        piece += static_cast<uintptr_t>(step * kStagePieceBytes);
        to += step * kStagePieceBytes;
      }
    }
  }

  // The same wherever the row is, if it exists.
  CONVGRAD_DEVICE void CopyAnyRow(const Line<T>& line, int slot, int row, int row_end) const {
    const ResampleTiling& tiling = line.tiling;
    if (row >= tiling.stage_from && row < Min(tiling.stage_to, row_end)) {
      CopyRow(line, slot);
    } else if (row < row_end && copies) {
      const uintptr_t x = reinterpret_cast<uintptr_t>(line.task.x);
      CopyInside<T>(CopyTo(line, slot), from, line.lane, tiling.line_threads, tiling.stage_pieces,
                    x, x + static_cast<uintptr_t>(line.task.x_bytes));
    }
  }

  // After a row was copied or did not exist: commits a group of copies either way.
  CONVGRAD_DEVICE void EndRow(const Line<T>& line) {
    from += static_cast<uintptr_t>(line.task.x_walk_bytes);
    CommitCopies();
  }

  // Waits until all threads of a line see the rows that it began to copy, except the last kPending.
  template <int kPending>
  CONVGRAD_DEVICE void Await(const Line<T>& line) const {
    WaitForCopies<kPending>();
    line.MeetInLine();
  }

  // The position at which a thread reads the next row, which is in a slot.
  CONVGRAD_DEVICE const T* Next(const Line<T>& line, int slot) {
    const int shift = kShifts ? static_cast<int>(low & (kStageLineBytes - 1)) : 0;
    low += static_cast<uint32_t>(line.task.x_walk_bytes);
    return reinterpret_cast<const T*>(line.shared + read_at + slot + shift);
  }

 private:
  // Where a thread's first piece of the next row to copy goes. Pieces have the same positions in
  // the stage's cache lines as in memory: otherwise a warp's copy took 14 cycles of shared memory
  // instead of 4. Aligned rows may be aligned to less than a cache line.
  CONVGRAD_DEVICE char* CopyTo(const Line<T>& line, int slot) const {
    char* const to = line.shared + slot + copy_at;
    if constexpr (!kShifts) return to;
    const uint32_t off = static_cast<uint32_t>(from) - static_cast<uint32_t>(copy_at);
    return to + (off & (kStageLineBytes - kStagePieceBytes));
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_STAGE_CUH_
