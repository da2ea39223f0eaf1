// The parameters that an instance of the kernel of resample was compiled for, and what follows from
// them.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SHAPE_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SHAPE_CUH_

#include <cstdint>

#include "cuda/kernels/resample/elements.cuh"
#include "cuda/kernels/resample/stage.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// kRows: of the ring, or that are summed up. kTaps and kMid: as many taps along the width and along
// the middle axis have their weights in registers, and are read ahead; with kTaps of 0, there may
// be any number.
template <typename Element, ResampleLoad kLoadKind, bool kIsPacked, bool kGrows, int kRowCount,
          int kTapCount, int kMidCount, int kStepCount = 0>
struct Shape {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  static constexpr ResampleLoad kLoad = kLoadKind;
  static constexpr bool kPacked = kIsPacked, kGrow = kGrows;
  static constexpr int kRows = kRowCount, kTaps = kTapCount;
  static constexpr bool kAny = kTaps == 0;
  static constexpr int kMid = kAny ? 0 : kMidCount;

  static constexpr bool kVectors = kLoad == ResampleLoad::kVectors;
  static constexpr bool kWindow = kLoad == ResampleLoad::kWindow;
  static constexpr bool kSpread = kLoad == ResampleLoad::kSpread;
  static constexpr bool kShifted = kLoad == ResampleLoad::kShifted;
  static constexpr bool kPairs = kLoad == ResampleLoad::kPairs;
  static constexpr bool kColumns = kLoad == ResampleLoad::kColumns;
  static constexpr bool kStrip = kLoad == ResampleLoad::kStrip || kPairs;
  static constexpr bool kStagedElements = kLoad == ResampleLoad::kStaged;
  static constexpr bool kStaged = kStagedElements || kColumns || (kStrip && !kPacked && !kAny);

  // Whether rows and columns are added without testing for zero weights.
  static constexpr bool kPlain = kPairs || kColumns;

  // Columns of x from one column of y to the next: kWindow: just as many; kStrip: at most, or 0 for
  // any. kSpread: columns of y of each of x.
  static constexpr int kStep = kStepCount;
  // kWindow: the columns of x of all of a thread's outputs, which are aligned; and those in front
  // of them, and behind, that its taps reach as well.
  static constexpr int kCore = 8, kMargin = kWindow ? (kTaps - kStep) / 2 : 0;
  static constexpr int kCorePiece = 16 / sizeof(T), kCorePieces = kCore / kCorePiece;
  // Wide margins are read like the cores that they belong to.
  static constexpr bool kWide = kMargin > 2;
  static constexpr int kSingles = kWide ? 0 : kMargin;
  static constexpr int kWindowPieces = kWide ? 3 * kCorePieces : kCorePieces;
  static constexpr int kBefore = kWide ? kCore : 0;
  // Elements of a thread: 16 bytes where they are read or written at once, but fewer where many
  // rows would take too many registers. Where a few columns become one, large strips have fewer
  // ends that overlap. But where eight do, 12 elements of 16 bits took 1.7 to 1.8 times the
  // roofline instead of 1.6; of 32 bits, 1.4 as well.
  static constexpr int kVector = kVectors || kSpread || kShifted  ? 16 / sizeof(T)
                                 : kPairs                         ? 16 / sizeof(Sum)
                                 : kColumns                       ? 2
                                 : kWindow                        ? kCore / (kStep > 0 ? kStep : 1)
                                 : kStaged && kStrip && kStep > 0 ? 12
                                 : kStrip && kRows <= (kPacked ? 6 : 4) && sizeof(T) < 8
                                     ? 8
                                     : 16 / sizeof(Sum);
  static constexpr bool kSideBySide = kPacked || kShifted;
  // Elements that one read takes; reads that begin somewhere else; and those that follow each, one
  // for each tap.
  static constexpr int kPiece =
      kVectors || (kStrip && kPacked) ? (kVector * sizeof(T) > 16 ? 16 / sizeof(T) : kVector) : 1;
  static constexpr int kReads = kVector / kPiece;
  static constexpr int kReadTaps = kStrip || kAny ? 1 : kTaps;
  // kSpread: columns of x that a thread's outputs lie on, and those beside them that taps reach.
  static constexpr int kBase = kSpread ? kVector / (kStep > 0 ? kStep : 1) : 1;
  static constexpr int kBeside = kSpread ? kTaps / 2 : 0;
  static_assert(!kSpread || (kBase > 0 && kBeside <= 1), "one column beside is read");
  static constexpr int kMidReads = kAny ? 1 : kMid;
  // Whether a row is read ahead, if registers can hold it.
  static constexpr int kRowWords =
      kMidReads * (kStaged   ? 0
                   : kWindow ? 4 * kWindowPieces + 2 * kSingles
                   : kSpread ? Piece<T, kBase>::kWords + 2 * kBeside
                             : kReads * kReadTaps * Piece<T, kPiece>::kWords);
  static constexpr bool kFetches = !kAny && kRowWords <= 32;
  // The number of rows read ahead: several in strips. When rows of strips were copied and
  // synchronized by twos, gradients of linear upsampling took 1.5 instead of 1.4 times the memory
  // roofline on an H100, or 1.7 instead of 1.4 where threads have 12 elements; by fours, 2.4. With
  // pairs, which leave few registers, Lanczos downsampling took 1.50 with three rows, 1.56 with
  // two, and 1.53 with four, because some registers were spilled to memory.
  static constexpr int kAhead = kColumns  ? 6
                                : kStaged ? sizeof(T) > 2 ? 2 : 3
                                : kPairs  ? 3
                                : !kFetches || !(kStrip || kWindow) || kRowWords > 16 ? 1
                                : kRowWords <= 4                                      ? 4
                                                                                      : 2;
  // Whether rows can be prefetched before they are read ahead: see ResampleTiling. Not rows of
  // windows: the gradient of 2x linear upsampling took 1.6 instead of 1.2 times the roofline.
  static constexpr bool kBrings = kStrip && !kStaged && kFetches && sizeof(T) >= 4;
  static constexpr int kStages = kStaged ? kAhead + 1 : 0;
  static constexpr int kRound = kStaged ? 1 : kAhead;  // rows of x that are added between checks
  static_assert(kRound <= kMaxRound, "the schedule has room for a round that is not full");
  // Whether elements are added directly from where they were read to.
  static constexpr bool kAsRead = kStrip && !kStaged && kMid == 1 && sizeof(T) == sizeof(Sum);
  static constexpr int kSumPack = 16 / sizeof(Sum);
  static_assert(!kColumns || (kTaps % kSumPack == 0 && sizeof(T) == 4),
                "windows are read as packs");
  static constexpr int kRecord = RecordSize(kRows, sizeof(Sum));
  static constexpr int kMaxThreads = jax_convgrad::kMaxThreads;
  // Blocks at a time on a multiprocessor, which limits registers.
  static constexpr int kHeld = kAhead * kRowWords + kRows * kVector +
                               (kPairs || kColumns    ? 2 * kTaps
                                : kStaged             ? (kStrip ? 13 : 2 * kReads * kReadTaps)
                                : kFetches || kWindow ? kReads * kReadTaps
                                                      : 0);
  static constexpr int kBlocks =
      sizeof(Sum) == 8 || (kShifted && sizeof(T) == 2) || kHeld > 48 || kPairs || kColumns ? 2
      : kHeld <= (sizeof(T) == 4 && kVectors ? 28 : 24)                                    ? 4
                                                                                           : 3;
  static constexpr bool kWritesVectors = !kStrip && kPacked;
  static constexpr int kWords = kVector * sizeof(T) / 4;  // kShifted: of a vector as it is written

  // The values that a thread keeps.
  struct State {
    const T* x;     // the line's
    const T* next;  // the row of x that is fetched next
    T* y;
    int owned;  // elements
    int offsets[kReads];
    int64_t columns[kReads];
    int64_t mid;
    int stage_begin;  // kStaged: in a line of x
    int first;        // kElements, kStaged, kShifted: its element of a line of y
    Sum weights[kReads][kReadTaps];
    Sum mid_weights[kMidReads];
    Piece<T, kCorePiece> core[kAhead][kMidReads][kWindowPieces];  // kWindow
    Piece<T, 1> margin[kAhead][kMidReads][2 * kSingles + 1];
    bool margins[2];  // whether there are columns in front, and behind
    Piece<T, kPiece> pieces[kAhead][kFetches ? kMidReads : 1][kReads][kFetches ? kReadTaps : 1];
    Sum rows[kRows][kVector];
    Sum sum[kVector];
    int line, lane;
    int results;  // kStrip, kPairs, kColumns: elements of y of the block's columns
    // kPairs: where each element of x is in the strip, and where the pair's window begins there.
    // kPairs and kColumns: where the pair's first element is in a line of y, and how many it has.
    int places[kVector];
    int pair_from, pair_to, pair_columns;
    Sum pair_weights[2][kPairs || kColumns ? kTaps : 1];
    bool numbers;  // kPlain: whether all that was written are numbers
    // kSpread: the columns of x that its outputs lie on, and those beside them.
    Piece<T, kBase> base[kMidReads];
    Piece<T, 1> beside[kMidReads][2 * kBeside + 1];
    bool there[2];               // whether there are columns in front, and behind
    uint32_t words[kWords + 1];  // kShifted: a vector as it is written
    StagedLine stage;            // kStaged
    bool misfit;                 // a column reads what is not in the strip, window or stage
  };
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SHAPE_CUH_
