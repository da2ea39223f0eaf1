// What a thread owns of a line of y, and how it reads x for that: see ResampleLoad.

#ifndef JAX_CONVGRAD_CUDA_RESAMPLE_LINES_CUH_
#define JAX_CONVGRAD_CUDA_RESAMPLE_LINES_CUH_

#include <cstdint>

#include "cuda/resample_elements.cuh"
#include "cuda/resample_stage.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// kRows: of the ring, or that are summed up. kTaps and kMid: as many taps along the width and along
// the middle axis have their weights in registers, and are read ahead; with kTaps of 0, there may
// be any number.
template <typename Element, ResampleLoad kLoadKind, bool kIsPacked, bool kGrows, int kRowCount,
          int kTapCount, int kMidCount, int kStepCount>
struct Lines {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  static constexpr ResampleLoad kLoad = kLoadKind;
  static constexpr bool kPacked = kIsPacked, kGrow = kGrows;
  static constexpr int kRows = kRowCount, kTaps = kTapCount;
  static constexpr bool kPairs = kLoad == ResampleLoad::kPairs;
  static constexpr bool kStrip = kLoad == ResampleLoad::kStrip || kPairs, kAny = kTaps == 0;
  static constexpr int kMid = kAny ? 0 : kMidCount;
  // Columns from one output to the next: kWindow: just as many; kStrip: at most, or 0 for any. And
  // for kWindow the columns of all of a thread's outputs, which are aligned; and those in front of
  // them, and behind, that its taps reach as well.
  static constexpr bool kWindow = kLoad == ResampleLoad::kWindow;
  static constexpr bool kSpread = kLoad == ResampleLoad::kSpread;
  static constexpr bool kShifted = kLoad == ResampleLoad::kShifted;
  static constexpr bool kSideBySide = kPacked || kShifted;
  static constexpr bool kStagedElements = kLoad == ResampleLoad::kStaged;
  static constexpr bool kStaged = kStagedElements || (kStrip && !kPacked && !kAny);
  static constexpr int kStep = kStepCount, kCore = 8, kMargin = kWindow ? (kTaps - kStep) / 2 : 0;
  static constexpr int kCorePiece = 16 / sizeof(T), kCorePieces = kCore / kCorePiece;
  // Wide margins are read as the cores that they belong to.
  static constexpr bool kWide = kMargin > 2;
  static constexpr int kSingles = kWide ? 0 : kMargin;
  static constexpr int kWindowPieces = kWide ? 3 * kCorePieces : kCorePieces;
  static constexpr int kBefore = kWide ? kCore : 0;
  // Elements of a thread: of 16 bytes where they are read or written at once, but fewer where many
  // rows would take too many registers. Where few columns make one, large strips have fewer ends
  // that overlap.
  static constexpr int kVector = kSpread || kShifted               ? 16 / sizeof(T)
                                 : kPairs                          ? 16 / sizeof(Sum)
                                 : kWindow                         ? kCore / (kStep > 0 ? kStep : 1)
                                 : kLoad == ResampleLoad::kVectors ? 16 / sizeof(T)
                                 : kStaged && kStrip && kStep > 0  ? 12
                                 : kStrip && kRows <= (kPacked ? 6 : 4) && sizeof(T) < 8
                                     ? 8
                                     : 16 / sizeof(Sum);
  // Elements that one read takes; reads that begin somewhere else; and those that follow each, one
  // for each tap.
  static constexpr int kPiece = kLoad == ResampleLoad::kVectors || (kStrip && kPacked)
                                    ? (kVector * sizeof(T) > 16 ? 16 / sizeof(T) : kVector)
                                    : 1;
  static constexpr int kReads = kVector / kPiece;
  static constexpr int kReadTaps = kStrip || kAny ? 1 : kTaps;
  // kSpread: columns of x that a thread's outputs lie on, and those beside them that taps reach.
  static constexpr int kBase = kSpread ? kVector / (kStep > 0 ? kStep : 1) : 1;
  static constexpr int kBeside = kSpread ? kTaps / 2 : 0;
  static_assert(!kSpread || (kBase > 0 && kBeside <= 1), "one column beside is read");
  static constexpr int kMidReads = kAny ? 1 : kMid;
  // Whether a row is read ahead; no more than registers can hold. In strips it is several.
  static constexpr int kRowWords =
      kMidReads * (kStaged   ? 0
                   : kWindow ? 4 * kWindowPieces + 2 * kSingles
                   : kSpread ? Piece<T, kBase>::kWords + 2 * kBeside
                             : kReads * kReadTaps * Piece<T, kPiece>::kWords);
  static constexpr bool kFetches = !kAny && kRowWords <= 32;
  // kStaged: rows that are copied, waited for and met for together, and how many rows are on their
  // way while those are read. In strips what is done for each row weighs as much as its elements.
  static constexpr int kTogether = kStrip && kStaged && !kGrow ? 2 : 1;
  static constexpr int kStagedAhead = kTogether > 1 ? kTogether * 2 : sizeof(T) > 2 ? 2 : 3;
  static constexpr int kAhead = kStaged                                               ? kStagedAhead
                                : !kFetches || !(kStrip || kWindow) || kRowWords > 16 ? 1
                                : kRowWords <= 4                                      ? 4
                                                                                      : 2;
  // Rows that are brought closer than memory before they are read ahead, at the beginning and then
  // on.
  static constexpr int kEarly = kFetches || kStaged ? 6 : 0;
  static constexpr int kFurther = kStrip && !kStaged && kFetches ? 8 : 0;
  static constexpr int kStages = kStaged ? kAhead + kTogether : 0;
  static constexpr int kSumPack = 16 / sizeof(Sum);
  static constexpr int kMostThreads = 256;  // of a block
  // Blocks at a time on a multiprocessor, which limits registers.
  static constexpr int kHeld = kAhead * kRowWords + kRows * kVector +
                               (kPairs                ? 2 * kTaps
                                : kStaged             ? (kStrip ? 13 : 2 * kReads * kReadTaps)
                                : kFetches || kWindow ? kReads * kReadTaps
                                                      : 0);
  static constexpr int kBlocks =
      sizeof(Sum) == 8 || (kShifted && sizeof(T) == 2) || kHeld > 48 || kPairs ? 2
      : kHeld <= (sizeof(T) == 4 && kLoad == ResampleLoad::kVectors ? 28 : 24) ? 4
                                                                               : 3;
  static constexpr bool kWritesVectors = !kStrip && kPacked;
  static constexpr int kWords = kVector * sizeof(T) / 4;  // of a vector as it is written

  struct State {
    const T* x;  // the line's
    T* y;
    int owned;  // elements
    int offsets[kReads];
    int64_t columns[kReads];
    int64_t mid;
    int stage_begin, first;  // kStaged: in a line of x; its element of a line of y
    Sum weights[kReads][kReadTaps];
    Sum mid_weights[kMidReads];
    Piece<T, kCorePiece> core[kAhead][kMidReads][kWindowPieces];  // kWindow
    Piece<T, 1> margin[kAhead][kMidReads][2 * kSingles + 1];
    bool margins[2];  // whether there are columns in front, and behind
    Piece<T, kPiece> pieces[kAhead][kFetches ? kMidReads : 1][kReads][kFetches ? kReadTaps : 1];
    Sum rows[kRows][kVector];
    Sum sum[kVector];
    // kStrip: the elements of y.
    int line, lane, results;
    // kPairs: where each element of x is in the strip; where the pair's window begins there, where
    // its first element is in a line of y, and how many it has.
    int places[kVector];
    int pair_from, pair_to, pair_columns;
    Sum pair_weights[2][kPairs ? kTaps : 1];
    // kSpread.
    Piece<T, kBase> base[kMidReads];
    Piece<T, 1> beside[kMidReads][2 * kBeside + 1];
    bool there[2];                     // whether there are columns in front, and behind
    uint32_t words[kWords + 1];        // kShifted: a vector as it is written
    StagedLine<T> stage;               // kStaged
    Sum together[kTogether][kVector];  // kStaged strips: rows that are read together
    bool misfit;  // a column reads what is not in the strip, the window or the stage
  };

  const ResampleTask& task;
  const ResampleForm& form;
  const ResampleTiling& tiling;
  int* const strip_results;  // kStrip: where each element of y begins to read a line's sums
  char* const stages;        // kStaged: [kStages, lines, stage_pitch]
  int64_t first_column = 0;
#ifdef __CUDA_ARCH__
  State state;
  CONVGRAD_DEVICE State& StateOf(int) { return state; }
#else
  State states[1024];
  State& StateOf(int thread) { return states[thread]; }
#endif

  CONVGRAD_DEVICE Lines(const ResampleTask& the_task, char* shared)
      : task(the_task),
        form(the_task.form),
        tiling(the_task.tiling),
        strip_results(reinterpret_cast<int*>(shared + tiling.results_at)),
        stages(shared + tiling.stage_at) {}

  CONVGRAD_DEVICE int ColumnsHere() const {
    return static_cast<int>(Least(tiling.columns, form.width.out - first_column));
  }
  CONVGRAD_DEVICE int64_t WidthStart(int64_t column) const {
    return form.width.resampled ? ClampedStart(form.width, column) : column;
  }
  CONVGRAD_DEVICE int WidthTaps() const {
    return form.width.resampled ? static_cast<int>(form.width.taps) : 1;
  }
  CONVGRAD_DEVICE Sum WidthWeight(int64_t column, int tap) const {
    if (!form.width.resampled) return tap == 0 ? Sum(1) : Sum(0);
    return tap < form.width.taps ? WeightAt<Sum>(form.width, column, tap) : Sum(0);
  }

  // What a thread keeps.
  CONVGRAD_DEVICE void Enter(int thread, State& mine, int channel_tile, int column_tile,
                             int mid_tile, int64_t batch_tile) {
    int place = thread;
    if constexpr (kShifted) {
      // The first thread of a warp does what the last of that before does, and passes it on.
      place = thread / 32 * 31 + thread % 32 - 1;
      if (place < 0) place = 0;
    }
    mine.line = place / tiling.line_threads;
    mine.lane = place % tiling.line_threads;
    if (kShifted && thread == 0 && column_tile > 0) mine.lane = -1;
    mine.owned = kVector;
    // Threads that own nothing do as others, but write nothing.
    const auto clamp = [&mine](int64_t at, int64_t size) {
      if (at < size) return at;
      mine.owned = 0;
      return size - 1;
    };
    const int64_t line = clamp(mine.line, tiling.lines);
    const bool many_mids = task.mid.out > 1;
    mine.mid = many_mids ? clamp(int64_t{mid_tile} * tiling.lines + line, task.mid.out) : 0;
    const int64_t batch = many_mids ? batch_tile
                                    : clamp(batch_tile * tiling.lines + line,
                                            form.batch[0] * form.batch[1] * form.batch[2]);
    const BatchAt at(form, Digits{static_cast<uint32_t>(batch)});
    const int64_t mid_start = task.mid.resampled ? ClampedStart(task.mid, mine.mid) : mine.mid;
    mine.x = static_cast<const T*>(task.x) + at.x + mid_start * task.x_mid;
    mine.y = static_cast<T*>(task.y) + at.y + mine.mid * task.y_mid;
    if constexpr (!kAny) {
      CONVGRAD_UNROLL
      for (int q = 0; q < kMidReads; ++q) {
        mine.mid_weights[q] = !task.mid.resampled ? Sum(q == 0 ? 1 : 0)
                              : q < task.mid.taps ? WeightAt<Sum>(task.mid, mine.mid, q)
                                                  : Sum(0);
      }
    }
    const int inner = static_cast<int>(form.inner);
    mine.misfit = false;
    if constexpr (kWindow) {
      const int first = (column_tile * tiling.line_threads + mine.lane) * kVector;
      EnterWindow(mine, static_cast<int>(clamp(first, form.width.out) / kVector * kVector));
    } else if constexpr (kSpread) {
      const int first = (column_tile * tiling.line_threads + mine.lane) * kVector;
      EnterSpread(mine, static_cast<int>(clamp(first, form.width.out) / kVector * kVector));
    } else if constexpr (kPairs) {
      first_column = int64_t{column_tile} * tiling.columns;
      EnterPairs(mine);
    } else if constexpr (kStrip) {
      first_column = int64_t{column_tile} * tiling.columns;
      EnterStrip(mine);
    } else if constexpr (kLoad == ResampleLoad::kVectors) {
      first_column = int64_t{column_tile} * tiling.columns;
      const int64_t column = clamp(first_column + mine.lane / tiling.vectors, form.width.out);
      const int64_t channel =
          clamp(int64_t{channel_tile} * tiling.vectors + mine.lane % tiling.vectors,
                inner / kVector) *
          kVector;
      ReadFrom(mine, 0, column, channel);
      mine.y += column * inner + channel;
    } else {
      if constexpr (kStaged) {
        const int64_t begin = int64_t{column_tile} * tiling.line_threads * kVector;
        const int64_t end =
            Least(begin + int64_t{tiling.line_threads} * kVector, form.width.out * form.inner);
        const int64_t a = WidthStart(begin / inner), b = WidthStart((end - 1) / inner);
        EnterStage(mine, static_cast<int>((a < b ? a : b) * inner));
      }
      const int run = static_cast<int>(form.width.out) * inner;
      const int first =
          (column_tile * tiling.line_threads + (kSideBySide ? mine.lane : 0)) * kVector +
          (kSideBySide ? 0 : mine.lane);
      mine.y += first;
      mine.first = first;
      int owned = 0;
      CONVGRAD_UNROLL
      for (int u = 0; u < kVector; ++u) {
        int element = first + (kSideBySide ? u : u * tiling.line_threads);
        if (element < run) {
          ++owned;
        } else {
          element = run - 1;
        }
        ReadFrom(mine, u, element / inner, element % inner);
      }
      if constexpr (kShifted) {
        // A thread may write when it owns nothing, as the vector in front may end in its.
        mine.owned = mine.owned == 0 || thread % 32 == 0 ? 0 : run;
      } else {
        mine.owned = mine.owned == 0 ? 0 : owned;
      }
    }
  }

  // What lies from an element of each row of x on is staged.
  CONVGRAD_DEVICE void EnterStage(State& mine, int begin) const {
    const int line = mine.line < tiling.lines ? mine.line : tiling.lines - 1;
    mine.stage_begin = begin;
    mine.stage.copy_at = Opaque(line * tiling.stage_pitch + mine.lane * kStagePieceBytes);
    mine.stage.read_at =
        Opaque(line * tiling.stage_pitch +
               (kStrip ? StripPlace(mine.lane, 0) * static_cast<int>(sizeof(T)) : 0));
    mine.stage.copies = mine.line < tiling.lines && mine.lane < tiling.stage_pieces;
  }
  // Elements of a row that are staged wherever it begins.
  CONVGRAD_DEVICE int StageRoom() const {
    constexpr int kPieceElements = kStagePieceBytes / static_cast<int>(sizeof(T));
    return tiling.stage_pieces * kPieceElements - (kPieceElements - 1);
  }

  CONVGRAD_DEVICE void ReadFrom(State& mine, int read, int64_t column, int64_t channel) const {
    mine.columns[read] = column;
    mine.offsets[read] = static_cast<int>(WidthStart(column) * form.inner + channel);
    if constexpr (kStaged) {
      const int inner = static_cast<int>(form.inner), reach = (WidthTaps() - 1) * inner;
      mine.offsets[read] -= mine.stage_begin;
      if (mine.offsets[read] < 0 || mine.offsets[read] + reach >= StageRoom()) {
        mine.misfit = true;
        mine.offsets[read] = 0;
      }
    }
    if constexpr (!kAny) {
      CONVGRAD_UNROLL
      for (int t = 0; t < kReadTaps; ++t) mine.weights[read][t] = WidthWeight(column, t);
    }
  }

  CONVGRAD_DEVICE void EnterWindow(State& mine, int column) const {
    const int begin = column * kStep, in = static_cast<int>(form.width.in);
    const int taps = static_cast<int>(form.width.taps);
    mine.offsets[0] = begin;
    mine.margins[0] = begin > 0;
    mine.margins[1] = begin + kCore < in;
    mine.y += column;
    CONVGRAD_UNROLL
    for (int k = 0; k < kVector; ++k) {
      // The first column of x that has a weight here, counted from where the band begins, and how
      // many weights are not zero.
      const int start = ClampedStart(form.width, column + k);
      const int shift = begin + k * kStep - kMargin - start;
      int used = 0;
      CONVGRAD_ROLLED
      for (int t = 0; t < taps; ++t) {
        used += WeightAt<Sum>(form.width, column + k, t) != Sum(0);
      }
      CONVGRAD_UNROLL
      for (int t = 0; t < kTaps; ++t) {
        const int tap = shift + t, at = start + tap;
        const Sum weight =
            tap >= 0 && tap < taps ? WeightAt<Sum>(form.width, column + k, tap) : Sum(0);
        mine.weights[k][t] = weight;
        used -= weight != Sum(0);
        // What has no weight must not be read, but here everything is.
        if (weight == Sum(0) && at >= 0 && at < in) mine.misfit = true;
      }
      if (used != 0) mine.misfit = true;
    }
  }

  // The first column of x, counted from kBeside in front of the thread's first, that its k-th
  // output may reach with kTaps: with an even number, those of the second half of a column's
  // outputs reach further on.
  CONVGRAD_DEVICE static constexpr int SpreadFirst(int k) {
    constexpr int kOf = kStep > 0 ? kStep : 1;
    return k / kOf + (kTaps % 2 == 0 && k % kOf >= kOf / 2 ? 1 : 0);
  }

  CONVGRAD_DEVICE void EnterSpread(State& mine, int column) const {
    constexpr int kOf = kStep > 0 ? kStep : 1;
    const int begin = column / kOf, in = static_cast<int>(form.width.in);
    const int taps = static_cast<int>(form.width.taps);
    mine.offsets[0] = begin;
    mine.there[0] = begin > 0;
    mine.there[1] = begin + kBase < in;
    mine.y += column;
    CONVGRAD_UNROLL
    for (int k = 0; k < kVector; ++k) {
      const int start = ClampedStart(form.width, column + k);
      const int shift = begin - kBeside + SpreadFirst(k) - start;
      int used = 0;
      CONVGRAD_ROLLED
      for (int t = 0; t < taps; ++t) {
        used += WeightAt<Sum>(form.width, column + k, t) != Sum(0);
      }
      CONVGRAD_UNROLL
      for (int t = 0; t < kTaps; ++t) {
        const int tap = shift + t;
        const Sum weight =
            tap >= 0 && tap < taps ? WeightAt<Sum>(form.width, column + k, tap) : Sum(0);
        mine.weights[k][t] = weight;
        used -= weight != Sum(0);
      }
      if (used != 0) mine.misfit = true;
    }
  }

  CONVGRAD_DEVICE void FetchSpread(State& mine, const T* line) const {
    const T* at = line + mine.offsets[0];
    CONVGRAD_UNROLL
    for (int q = 0; q < kMidReads; ++q) {
      at = Opaque(at);
      const bool there = kMidReads == 1 || mine.mid_weights[q] != Sum(0);
      Piece<T, kBase> base{};
      if (there) base.Read(at);
      mine.base[q] = base;
      CONVGRAD_UNROLL
      for (int i = 0; i < 2 * kBeside; ++i) {
        Piece<T, 1> piece{};
        if (there && mine.there[i < kBeside ? 0 : 1]) {
          piece.Read(at + (i < kBeside ? i - kBeside : kBase + i - kBeside));
        }
        mine.beside[q][i] = piece;
      }
      at += task.x_mid;
    }
  }

  CONVGRAD_DEVICE void CombineSpread(const State& mine, Sum (&sums)[kVector]) const {
    constexpr int kValues = kBase + 2 * kBeside;
    Sum values[kValues];
    Sum probe = 0;  // not a number if a value is not finite
    CONVGRAD_UNROLL
    for (int i = 0; i < kValues; ++i) {
      values[i] = 0;
      CONVGRAD_UNROLL
      for (int q = 0; q < kMidReads; ++q) {
        const Sum value = i < kBeside ? mine.beside[q][i < kBeside ? i : 0].At(0)
                          : i < kBeside + kBase
                              ? mine.base[q].At(i < kBeside + kBase ? i - kBeside : 0)
                              : mine.beside[q][i < kBeside + kBase ? 0 : i - kBase].At(0);
        values[i] = kMidReads == 1 ? value : values[i] + mine.mid_weights[q] * value;
      }
      probe += Sum(0) * values[i];
    }
    CONVGRAD_UNROLL
    for (int k = 0; k < kVector; ++k) {
      sums[k] = 0;
      CONVGRAD_UNROLL
      for (int t = 0; t < kTaps; ++t) sums[k] += mine.weights[k][t] * values[SpreadFirst(k) + t];
    }
    if (probe == Sum(0)) return;
    CONVGRAD_UNROLL
    for (int k = 0; k < kVector; ++k) {
      sums[k] = 0;
      CONVGRAD_UNROLL
      for (int t = 0; t < kTaps; ++t) {
        if (mine.weights[k][t] == Sum(0)) continue;
        sums[k] += mine.weights[k][t] * values[SpreadFirst(k) + t];
      }
    }
  }

  CONVGRAD_DEVICE void EnterPairs(State& mine) const {
    const int inner = static_cast<int>(form.inner), columns = ColumnsHere();
    const int taps = static_cast<int>(form.width.taps);
    const int a = ClampedStart(form.width, first_column);
    const int b = ClampedStart(form.width, first_column + columns - 1);
    const int begin = (a < b ? a : b) * inner / kVector * kVector, origin = begin / inner;
    const int run = static_cast<int>(form.width.in) * inner;
    const int at = begin + mine.lane * kVector;
    mine.offsets[0] = at < run ? at : run - kVector;  // read for nothing, not used
    mine.results = mine.owned == 0 ? 0 : columns * inner;
    mine.y += first_column * inner;
    CONVGRAD_UNROLL
    for (int i = 0; i < kVector; ++i) {
      mine.places[i] = (at + i) % inner * tiling.channel_pitch + (at + i) / inner - origin;
    }
    const int first = mine.lane / inner * 2, channel = mine.lane % inner;
    mine.pair_columns = columns - first < 0 ? 0 : columns - first > 2 ? 2 : columns - first;
    mine.pair_to = first * inner + channel;
    int starts[2];
    CONVGRAD_UNROLL
    for (int k = 0; k < 2; ++k) {
      const int column = first + k < columns ? first + k : columns - 1;
      starts[k] = ClampedStart(form.width, first_column + column) - origin;
    }
    const int low = (starts[0] < starts[1] ? starts[0] : starts[1]) & ~3;
    const int most = tiling.channel_pitch - kTaps;
    const int from = low < 0 ? 0 : low < most ? low : most;
    mine.pair_from = channel * tiling.channel_pitch + from;
    const int room = (tiling.line_threads * kVector - (begin - origin * inner)) / inner;
    CONVGRAD_UNROLL
    for (int k = 0; k < 2; ++k) {
      const int shift = starts[k] - from;
      if (shift < 0 || shift + taps > kTaps || starts[k] + taps > room) mine.misfit = true;
      const int64_t column = first_column + Least(first + k, columns - 1);
      CONVGRAD_UNROLL
      for (int t = 0; t < (kPairs ? kTaps : 0); ++t) {
        const int tap = t - shift;
        mine.pair_weights[k][t] =
            tap >= 0 && tap < taps ? WeightAt<Sum>(form.width, column, tap) : Sum(0);
      }
    }
  }

  CONVGRAD_DEVICE void FetchWindow(State& mine, int slot, const T* line) const {
    const T* at = line + mine.offsets[0];
    CONVGRAD_UNROLL
    for (int q = 0; q < kMidReads; ++q) {
      at = Opaque(at);
      const bool there = kMidReads == 1 || mine.mid_weights[q] != Sum(0);
      CONVGRAD_UNROLL
      for (int i = 0; i < kWindowPieces; ++i) {
        const int from = i * kCorePiece - kBefore;
        Piece<T, kCorePiece> piece{};
        if (there && (from >= 0 || mine.margins[0]) && (from < kCore || mine.margins[1])) {
          piece.Read(at + from);
        }
        mine.core[slot][q][i] = piece;
      }
      CONVGRAD_UNROLL
      for (int side = 0; side < 2; ++side) {
        CONVGRAD_UNROLL
        for (int i = 0; i < kSingles; ++i) {
          Piece<T, 1> piece{};
          if (there && mine.margins[side]) piece.Read(at + (side == 0 ? i - kMargin : kCore + i));
          mine.margin[slot][q][side * kSingles + i] = piece;
        }
      }
      at += task.x_mid;
    }
  }

  CONVGRAD_DEVICE void CombineWindow(const State& mine, int slot, Sum (&sums)[kVector]) const {
    // The middle axis first, as fewer sums are formed so.
    Sum values[kCore + 2 * kMargin];
    CONVGRAD_UNROLL
    for (int i = 0; i < kCore + 2 * kMargin; ++i) {
      const int at = i - kMargin + kBefore;  // in the pieces
      values[i] = 0;
      CONVGRAD_UNROLL
      for (int q = 0; q < kMidReads; ++q) {
        Sum value;
        if (kWide || (i >= kMargin && i < kMargin + kCore)) {
          value = mine.core[slot][q][at / kCorePiece].At(at % kCorePiece);
        } else {
          value = mine.margin[slot][q][i < kMargin ? i : i - kCore].At(0);
        }
        values[i] = kMidReads == 1 ? value : values[i] + mine.mid_weights[q] * value;
      }
    }
    CONVGRAD_UNROLL
    for (int k = 0; k < kVector; ++k) {
      sums[k] = 0;
      CONVGRAD_UNROLL
      for (int t = 0; t < kTaps; ++t) sums[k] += mine.weights[k][t] * values[k * kStep + t];
    }
  }

  CONVGRAD_DEVICE static int OddHalf(int lane) { return lane >> 4 & 1; }

  // Where in its strip a thread's element is.
  CONVGRAD_DEVICE int StripPlace(int lane, int i) const {
    if constexpr (kStaged) {
      // By half warps, of which every other one has its even and odd elements in turn: so they do
      // not meet in a bank.
      return (lane >> 4) * 16 * kVector + (i ^ OddHalf(lane)) * 16 + (lane & 15);
    }
    return (i / kPiece * tiling.line_threads + lane) * kPiece + i % kPiece;
  }

  CONVGRAD_DEVICE void EnterStrip(State& mine) const {
    const int inner = static_cast<int>(form.inner), columns = ColumnsHere();
    const int a = ClampedStart(form.width, first_column);
    const int b = ClampedStart(form.width, first_column + columns - 1);
    const int begin = (a < b ? a : b) * inner / kPiece * kPiece;
    const int run = static_cast<int>(form.width.in) * inner;
    if constexpr (kStaged) EnterStage(mine, begin);
    CONVGRAD_UNROLL
    for (int u = 0; u < (kStaged ? 0 : kReads); ++u) {
      const int at = begin + StripPlace(mine.lane, u * kPiece);
      mine.offsets[u] = at < run ? at : run - kPiece;  // read for nothing, not used
    }
    mine.results = mine.owned == 0 ? 0 : columns * inner;
    mine.y += first_column * inner;
    mine.misfit = false;
    if (mine.line != 0) return;
    const int room = kStaged ? StageRoom() : tiling.line_threads * kVector;
    CONVGRAD_ROLLED
    for (int result = mine.lane; result < columns * inner; result += tiling.line_threads) {
      const int from =
          ClampedStart(form.width, first_column + result / inner) * inner - begin + result % inner;
      strip_results[result] = (from & 0xffff) | (result / inner) << 16;
      if (from < 0 || from + (static_cast<int>(form.width.taps) - 1) * inner >= room) {
        mine.misfit = true;
      }
    }
  }

  // Rows of x from `row` to before `end` are copied next, and read.
  CONVGRAD_DEVICE void BeginRows(State& mine, int row, int end) const {
    const auto at = [&](int64_t of) {
      return reinterpret_cast<uintptr_t>(mine.x + (of * task.x_walk + mine.stage_begin));
    };
    const auto aligned = [](uintptr_t to) { return to & ~uintptr_t{kStagePieceBytes - 1}; };
    const uintptr_t x = reinterpret_cast<uintptr_t>(task.x), first = at(row);
    mine.stage.inside =
        aligned(first) >= x &&
        aligned(at(end - 1)) + static_cast<uintptr_t>(tiling.stage_pieces) * kStagePieceBytes <=
            x + static_cast<uintptr_t>(task.x_bytes);
    mine.stage.from = first + static_cast<uintptr_t>(mine.lane) * kStagePieceBytes;
    mine.stage.low = static_cast<uint32_t>(first);
  }

  // Begins to copy the kTogether rows that are next, of which `there` are there: a group of copies,
  // also if none is.
  CONVGRAD_DEVICE void CopyRows(State& mine, int slot, int there) const {
    if (there > 0 && mine.stage.copies) {
      // Threads of strips copy as much as they own, others mostly one piece.
      constexpr int kBytes = kVector * static_cast<int>(sizeof(T));
      constexpr int kCopies = kStrip ? (kBytes + kStagePieceBytes - 1) / kStagePieceBytes : 0;
      mine.stage.template Copy<kTogether, kCopies, kBytes % kStagePieceBytes == 0>(
          stages + slot, tiling.stage_slot_bytes, there, task.x_walk * int64_t{sizeof(T)},
          mine.lane, tiling.line_threads, tiling.stage_pieces, task.x, task.x_bytes);
    }
    mine.stage.from += static_cast<uintptr_t>(task.x_walk) * (kTogether * sizeof(T));
    EndCopyGroup();
  }

  // The thread's elements of the row that is next in the stage, its columns combined.
  CONVGRAD_DEVICE void CombineStaged(State& mine, int slot, Sum (&sums)[kVector]) const {
    const T* const from = mine.stage.Next(
        stages + slot, static_cast<uint32_t>(task.x_walk) * static_cast<uint32_t>(sizeof(T)));
    if constexpr (kStrip) {
      const T* const odd = from - 2 * OddHalf(mine.lane) * 16;
      CONVGRAD_UNROLL
      for (int i = 0; i < kVector; ++i) sums[i] = ToSum((i % 2 == 0 ? from : odd)[i * 16]);
    } else {
      switch (form.inner) {
        case 1:
          CombineTaps<1>(mine, from, sums);
          break;
        case 3:
          CombineTaps<3>(mine, from, sums);
          break;
        default:
          CombineTaps<0>(mine, from, sums);
      }
      bool number = true;
      CONVGRAD_UNROLL
      for (int i = 0; i < kVector; ++i) number = number && sums[i] == sums[i];
      if (number) return;
      // Perhaps of a weight of zero: once more without these.
      const T* const again = Opaque(from);
      const int inner = static_cast<int>(form.inner);
      CONVGRAD_UNROLL
      for (int i = 0; i < kVector; ++i) {
        sums[i] = 0;
        CONVGRAD_UNROLL
        for (int t = 0; t < kTaps; ++t) {
          if (mine.weights[i][t] == Sum(0)) continue;
          sums[i] += mine.weights[i][t] * ToSum(again[mine.offsets[i] + t * inner]);
        }
      }
    }
  }

  template <int kInner>
  CONVGRAD_DEVICE void CombineTaps(const State& mine, const T* from, Sum (&sums)[kVector]) const {
    const int inner = kInner > 0 ? kInner : static_cast<int>(form.inner);
    CONVGRAD_UNROLL
    for (int i = 0; i < kVector; ++i) sums[i] = 0;
    CONVGRAD_UNROLL
    for (int i = 0; i < kVector; ++i) {
      const T* const first = from + mine.offsets[i];
      CONVGRAD_UNROLL
      for (int t = 0; t < kTaps; ++t) sums[i] += mine.weights[i][t] * ToSum(first[t * inner]);
    }
  }

  // Has what a thread reads of kCount rows of x, those before `end`, brought closer, while it does
  // something else.
  template <int kCount>
  CONVGRAD_DEVICE void Approach(const State& mine, int row, int end) const {
    const T* at = mine.x + row * task.x_walk;
    if constexpr (kStaged) {
      at += mine.stage_begin + mine.lane * (kStagePieceBytes / static_cast<int>(sizeof(T)));
    } else {
      at += mine.offsets[0];
    }
    const char* const x_end = static_cast<const char*>(task.x) + task.x_bytes;
    CONVGRAD_UNROLL
    for (int k = 0; k < kCount; ++k, at += task.x_walk) {
      if (row + k < end && (!kStaged || reinterpret_cast<const char*>(at) < x_end)) BringCloser(at);
    }
  }

  // Reads a row of x for later, if all of its taps have room.
  CONVGRAD_DEVICE void Fetch(State& mine, int slot, int64_t row) const {
    if constexpr (kFetches && kWindow) {
      FetchWindow(mine, slot, mine.x + row * task.x_walk);
    } else if constexpr (kSpread) {
      FetchSpread(mine, mine.x + row * task.x_walk);
    } else if constexpr (kFetches) {
      const T* line = Opaque(mine.x + row * task.x_walk);
      const uint32_t inner = static_cast<uint32_t>(form.inner);
      CONVGRAD_UNROLL
      for (int q = 0; q < kMidReads; ++q) {
        CONVGRAD_UNROLL
        for (int i = 0; i < kReads; ++i) {
          const T* from = line + static_cast<uint32_t>(mine.offsets[i]);
          CONVGRAD_UNROLL
          for (int t = 0; t < kReadTaps; ++t) {
            Piece<T, kPiece> piece{};
            if ((kStrip && kMid == 1) || WeightOf(mine, q, i, t) != Sum(0)) piece.Read(from);
            mine.pieces[slot][q][i][t] = piece;
            if (t + 1 < kReadTaps) from = Opaque(from + inner);
          }
        }
        if (q + 1 < kMidReads) line = Opaque(line + task.x_mid);
      }
    }
  }

  CONVGRAD_DEVICE static Sum WeightOf(const State& mine, int q, int i, int t) {
    if constexpr (kStrip) return mine.mid_weights[q];
    if constexpr (kMidReads == 1) return mine.weights[i][t];
    return mine.mid_weights[q] * mine.weights[i][t];
  }

  CONVGRAD_DEVICE static void AddPiece(const Piece<T, kPiece>& piece, int read, Sum weight,
                                       Sum (&sums)[kVector]) {
    CONVGRAD_UNROLL
    for (int p = 0; p < kPiece; ++p) sums[read * kPiece + p] += weight * piece.At(p);
  }

  // The thread's elements of a row of x, its columns and the middle axis combined: of what was
  // fetched, or is now.
  CONVGRAD_DEVICE void Combine(State& mine, int slot, int64_t row, Sum (&sums)[kVector]) const {
    if constexpr (kStaged) {
      (void)row;
      CombineStaged(mine, slot, sums);
      return;
    }
    if constexpr (kWindow) {
      if constexpr (!kFetches) FetchWindow(mine, slot, mine.x + row * task.x_walk);
      CombineWindow(mine, slot, sums);
      return;
    }
    if constexpr (kSpread) {
      CombineSpread(mine, sums);
      return;
    }
    if constexpr (kStrip && kMid == 1) {
      (void)row;
      CONVGRAD_UNROLL
      for (int i = 0; i < kVector; ++i) {
        sums[i] = mine.pieces[slot][0][i / kPiece][0].At(i % kPiece);
      }
    } else if constexpr (!kAny && !kFetches) {
      CONVGRAD_UNROLL
      for (int i = 0; i < kVector; ++i) sums[i] = 0;
      const T* line = Opaque(mine.x + row * task.x_walk);
      const uint32_t inner = static_cast<uint32_t>(form.inner);
      CONVGRAD_UNROLL
      for (int q = 0; q < kMidReads; ++q) {
        CONVGRAD_UNROLL
        for (int i = 0; i < kReads; ++i) {
          const T* from = line + static_cast<uint32_t>(mine.offsets[i]);
          constexpr int kBatch = kReadTaps < 4 ? kReadTaps : 4;
          CONVGRAD_UNROLL
          for (int first = 0; first < kReadTaps; first += kBatch) {
            Piece<T, kPiece> pieces[kBatch] = {};
            CONVGRAD_UNROLL
            for (int t = 0; t < kBatch; ++t) {
              if (WeightOf(mine, q, i, first + t) != Sum(0)) pieces[t].Read(from);
              from = Opaque(from + inner);
            }
            CONVGRAD_UNROLL
            for (int t = 0; t < kBatch; ++t) {
              AddPiece(pieces[t], i, WeightOf(mine, q, i, first + t), sums);
            }
          }
        }
        if (q + 1 < kMidReads) line = Opaque(line + task.x_mid);
      }
    } else if constexpr (!kAny) {
      (void)row;
      CONVGRAD_UNROLL
      for (int i = 0; i < kVector; ++i) sums[i] = 0;
      CONVGRAD_UNROLL
      for (int q = 0; q < kMidReads; ++q) {
        CONVGRAD_UNROLL
        for (int i = 0; i < kReads; ++i) {
          CONVGRAD_UNROLL
          for (int t = 0; t < kReadTaps; ++t) {
            AddPiece(mine.pieces[slot][q][i][t], i, WeightOf(mine, q, i, t), sums);
          }
        }
      }
    } else {
      CombineAny(mine, row, sums);
    }
  }

  CONVGRAD_DEVICE void CombineAny(const State& mine, int64_t row, Sum (&sums)[kVector]) const {
    CONVGRAD_UNROLL
    for (int i = 0; i < kVector; ++i) sums[i] = 0;
    constexpr int kBatch = kStrip ? 1 : kReads > 1 ? 2 : 4;
    const T* line = Opaque(mine.x + row * task.x_walk);
    const uint32_t inner = static_cast<uint32_t>(form.inner);
    const int mid_taps = task.mid.resampled ? static_cast<int>(task.mid.taps) : 1;
    const int taps = kStrip ? 1 : WidthTaps();
    CONVGRAD_ROLLED
    for (int q = 0; q < mid_taps; ++q, line = Opaque(line + task.x_mid)) {
      const Sum mid_weight = task.mid.resampled ? WeightAt<Sum>(task.mid, mine.mid, q) : Sum(1);
      if (mid_weight == Sum(0)) continue;
      CONVGRAD_ROLLED
      for (int first = 0; first < taps; first += kBatch) {
        Sum weights[kReads][kBatch];
        Piece<T, kPiece> pieces[kReads][kBatch];
        CONVGRAD_UNROLL
        for (int i = 0; i < kReads; ++i) {
          CONVGRAD_UNROLL
          for (int t = 0; t < kBatch; ++t) {
            weights[i][t] = kStrip ? Sum(1) : WidthWeight(mine.columns[i], first + t);
          }
        }
        // All weights are looked at before the first read, so that no read is waited for together
        // with a weight.
        int there = 0;
        CONVGRAD_UNROLL
        for (int i = 0; i < kReads * kBatch; ++i) {
          there |= (weights[i / kBatch][i % kBatch] != Sum(0) ? 1 : 0) << i;
        }
        there = Opaque(there);
        CONVGRAD_UNROLL
        for (int i = 0; i < kReads; ++i) {
          const T* from =
              line + static_cast<uint32_t>(mine.offsets[i]) + static_cast<uint32_t>(first) * inner;
          CONVGRAD_UNROLL
          for (int t = 0; t < kBatch; ++t) {
            pieces[i][t] = {};
            if ((there >> (i * kBatch + t) & 1) != 0) pieces[i][t].Read(from);
            if (t + 1 < kBatch) from = Opaque(from + inner);
          }
        }
        CONVGRAD_UNROLL
        for (int i = 0; i < kReads; ++i) {
          CONVGRAD_UNROLL
          for (int t = 0; t < kBatch; ++t) {
            AddPiece(pieces[i][t], i, mid_weight * weights[i][t], sums);
          }
        }
      }
    }
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_RESAMPLE_LINES_CUH_
