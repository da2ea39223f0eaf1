// The kernel of resample. The block walks along the first axis that is resampled, the others being
// combined on the way, and keeps all that it needs twice in registers:
//
//   grow    a ring of the last rows of x. Each row of y is a combination of them.
//   shrink  the sums of those rows of y that a row of x adds to. The oldest is written when the
//           last row that it reads has been added. A schedule in shared memory says which weights
//           a row of x has for them, and how many are done after it. Bands that no schedule fits,
//           such as those of starts in disorder, are gathered: row by row of y.
//
// A row is combined from x as it is read, by one thread alone, with no shared memory: memory is
// read once, and what is read again comes from the caches. But where many neighbouring elements
// become few along the width and the inner run is short, threads would read far apart. There they
// read whole vectors and a few elements beside them, if all bands are alike (kWindow), or own
// elements of x, and combine the columns in shared memory when a row of y is done (kStrip).
//
// Each element of y is written once, by one thread and in one order.

#ifndef JAX_CONVGRAD_CUDA_RESAMPLE_WALK_CUH_
#define JAX_CONVGRAD_CUDA_RESAMPLE_WALK_CUH_

#include <cstdint>

#include "cuda/resample_direct.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// kRows: of the ring, or that are summed up. kTaps and kMid: as many taps along the width and along
// the middle axis have their weights in registers, and are read ahead; with kTaps of 0, there may
// be any number.
template <typename Element, ResampleLoad kLoadKind, bool kIsPacked, bool kGrows, int kRowCount,
          int kTapCount, int kMidCount, int kStepCount = 0>
struct Walk {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  static constexpr ResampleLoad kLoad = kLoadKind;
  static constexpr bool kPacked = kIsPacked, kGrow = kGrows;
  static constexpr int kRows = kRowCount, kTaps = kTapCount;
  static constexpr bool kStrip = kLoad == ResampleLoad::kStrip, kAny = kTaps == 0;
  static constexpr int kMid = kAny ? 0 : kMidCount;
  // kWindow: columns from one output to the next; those of all of a thread's outputs, which are
  // aligned; and those in front of them, and behind, that its taps reach as well.
  static constexpr bool kWindow = kLoad == ResampleLoad::kWindow;
  static constexpr int kStep = kStepCount, kCore = 8, kMargin = kWindow ? (kTaps - kStep) / 2 : 0;
  static constexpr int kCorePiece = 16 / sizeof(T), kCorePieces = kCore / kCorePiece;
  // Wide margins are read as the cores that they belong to.
  static constexpr bool kWide = kMargin > 2;
  static constexpr int kSingles = kWide ? 0 : kMargin;
  static constexpr int kWindowPieces = kWide ? 3 * kCorePieces : kCorePieces;
  static constexpr int kBefore = kWide ? kCore : 0;
  // Elements of a thread: of 16 bytes where they are read or written at once, but fewer where many
  // rows would take too many registers.
  static constexpr int kVector = kWindow                           ? kCore / (kStep > 0 ? kStep : 1)
                                 : kLoad == ResampleLoad::kVectors ? 16 / sizeof(T)
                                 : kStrip && kRows * sizeof(Sum) <= 16 && sizeof(T) < 8
                                     ? 8
                                     : 16 / sizeof(Sum);
  // Elements that one read takes; reads that begin somewhere else; and those that follow each, one
  // for each tap.
  static constexpr int kPiece = kLoad == ResampleLoad::kVectors || (kStrip && kPacked)
                                    ? (kVector * sizeof(T) > 16 ? 16 / sizeof(T) : kVector)
                                    : 1;
  static constexpr int kReads = kVector / kPiece;
  static constexpr int kReadTaps = kStrip || kAny ? 1 : kTaps;
  static constexpr int kMidReads = kAny ? 1 : kMid;
  // Whether a row is read ahead; no more than registers can hold. In strips it is several.
  static constexpr int kRowWords =
      kMidReads *
      (kWindow ? 4 * kWindowPieces + 2 * kSingles : kReads * kReadTaps * Piece<T, kPiece>::kWords);
  static constexpr bool kFetches = !kAny && kRowWords <= 32;
  static constexpr int kAhead = !kFetches || !(kStrip || kWindow) || kRowWords > 16 ? 1
                                : kRowWords <= 4                                    ? 4
                                                                                    : 2;
  static constexpr int kSumPack = 16 / sizeof(Sum);
  static constexpr int kMostThreads = 256;  // of a block
  // Blocks at a time on a multiprocessor, which limits registers.
  static constexpr int kHeld =
      kAhead * kRowWords + kRows * kVector + (kFetches || kWindow ? kReads * kReadTaps : 0);
  static constexpr int kBlocks = sizeof(Sum) == 8 || kHeld > 48 ? 2 : kHeld <= 24 ? 4 : 3;
  static constexpr bool kWritesVectors = !kStrip && kPacked;

  struct State {
    const T* x;  // the line's
    T* y;
    int owned;  // elements
    int offsets[kReads];
    int64_t columns[kReads];
    int64_t mid;
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
    bool misfit;  // a column reads what is not in the strip
  };

  const ResampleTask& task;
  const ResampleForm& form;
  const ResampleTiling& tiling;
  char* const shared;
  Sum* const row_weights;    // shrink: [table_rows, kRows], grow: [chunk, kRows]
  int* const row_marks;      // shrink: rows of y done after each row of x; grow: starts
  int* const ends;           // shrink: [2 * chunk], for making the schedule, and a flag
  Sum* const width_weights;  // kStrip: [columns, width_pitch]
  Sum* const strip_sums;     // kStrip: [2, lines, strip_pitch]
  int* const strip_results;  // kStrip: where each element of y begins to read a line's sums
  int* const misfit;         // kStrip and kWindow
#ifdef __CUDA_ARCH__
  State state;
  CONVGRAD_DEVICE State& StateOf(int) { return state; }
#else
  State states[1024];
  State& StateOf(int thread) { return states[thread]; }
#endif
  int64_t first_row = 0, first_column = 0;
  int rows = 0;  // of y
  int parity = 0;

  CONVGRAD_DEVICE Walk(const ResampleTask& the_task, char* the_shared)
      : task(the_task),
        form(the_task.form),
        tiling(the_task.tiling),
        shared(the_shared),
        row_weights(reinterpret_cast<Sum*>(shared + tiling.weights_at)),
        row_marks(reinterpret_cast<int*>(row_weights +
                                         (kGrow ? tiling.chunk : tiling.table_rows) * kRows)),
        ends(row_marks + tiling.table_rows),
        width_weights(reinterpret_cast<Sum*>(shared + tiling.width_weights_at)),
        strip_sums(reinterpret_cast<Sum*>(shared + tiling.strip_at)),
        strip_results(reinterpret_cast<int*>(shared + tiling.results_at)),
        misfit(reinterpret_cast<int*>(shared + tiling.flag_at)) {}

  CONVGRAD_DEVICE void Run(uint32_t block) {
    Digits digits{block};
    const int channel_tile = digits.Next(tiling.channel_tiles);
    const int column_tile = digits.Next(tiling.column_tiles);
    const int mid_tile = digits.Next(tiling.mid_tiles);
    first_row = int64_t{digits.Next(tiling.chunks)} * tiling.chunk;
    rows = static_cast<int>(Least(tiling.chunk, task.walk.out - first_row));
    const int64_t batch_tile = digits.rest;
    ForEachThread<false>(tiling.threads, [&](int thread) {
      Enter(thread, StateOf(thread), channel_tile, column_tile, mid_tile, batch_tile);
    });
    if constexpr (kStrip) {
      const int taps = static_cast<int>(form.width.taps);
      const int columns = ColumnsHere();
      ForEachThread(tiling.threads, [&](int thread) {
        if (thread == 0) *misfit = 0;
        CONVGRAD_ROLLED
        for (int i = thread; i < columns * tiling.width_pitch; i += tiling.threads) {
          const int column = i / tiling.width_pitch, tap = i % tiling.width_pitch;
          width_weights[i] =
              tap < taps ? WeightAt<Sum>(form.width, first_column + column, tap) : Sum(0);
        }
      });
    }
    if constexpr (kWindow) {
      ForEachThread(tiling.threads, [&](int thread) {
        if (thread == 0) *misfit = 0;
      });
    }
    if constexpr (kStrip || kWindow) {
      ForEachThread(tiling.threads, [&](int thread) {
        if (StateOf(thread).misfit) *misfit = 1;
      });
      if (*misfit) {
        WriteDirectly();
        return;
      }
    }
    if constexpr (kGrow) {
      MakeRing();
      Grow();
    } else {
      int low = 0;
      const int there = tiling.table_rows == 0 ? -1 : FindRows(low);
      if (there >= 0 && MakeSchedule(low, there)) {
        Shrink(low, there);
      } else if constexpr (kStrip || kWindow) {
        WriteDirectly();
      } else {
        Gather();
      }
    }
  }

 private:
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
    mine.line = thread / tiling.line_threads;
    mine.lane = thread % tiling.line_threads;
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
      const int run = static_cast<int>(form.width.out) * inner;
      const int first = (column_tile * tiling.line_threads + (kPacked ? mine.lane : 0)) * kVector +
                        (kPacked ? 0 : mine.lane);
      mine.y += first;
      int owned = 0;
      CONVGRAD_UNROLL
      for (int u = 0; u < kVector; ++u) {
        int element = first + (kPacked ? u : u * tiling.line_threads);
        if (element < run) {
          ++owned;
        } else {
          element = run - 1;
        }
        ReadFrom(mine, u, element / inner, element % inner);
      }
      mine.owned = mine.owned == 0 ? 0 : owned;
    }
  }

  CONVGRAD_DEVICE void ReadFrom(State& mine, int read, int64_t column, int64_t channel) const {
    mine.columns[read] = column;
    mine.offsets[read] = static_cast<int>(WidthStart(column) * form.inner + channel);
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
    CONVGRAD_UNROLL
    for (int i = 0; i < kVector; ++i) sums[i] = 0;
    CONVGRAD_UNROLL
    for (int q = 0; q < kMidReads; ++q) {
      Sum values[kCore + 2 * kMargin], some[kVector];
      CONVGRAD_UNROLL
      for (int i = 0; i < kCore + 2 * kMargin; ++i) {
        const int at = i - kMargin + kBefore;  // in the pieces
        if (kWide || (i >= kMargin && i < kMargin + kCore)) {
          values[i] = mine.core[slot][q][at / kCorePiece].At(at % kCorePiece);
        } else {
          values[i] = mine.margin[slot][q][i < kMargin ? i : i - kCore].At(0);
        }
      }
      CONVGRAD_UNROLL
      for (int k = 0; k < kVector; ++k) {
        some[k] = 0;
        CONVGRAD_UNROLL
        for (int t = 0; t < kTaps; ++t) some[k] += mine.weights[k][t] * values[k * kStep + t];
        if (kMidReads == 1) {
          sums[k] = some[k];
        } else {
          sums[k] += mine.mid_weights[q] * some[k];
        }
      }
    }
  }

  // Where in its strip a thread's element is.
  CONVGRAD_DEVICE int StripPlace(int lane, int i) const {
    return (i / kPiece * tiling.line_threads + lane) * kPiece + i % kPiece;
  }

  CONVGRAD_DEVICE void EnterStrip(State& mine) const {
    const int inner = static_cast<int>(form.inner), columns = ColumnsHere();
    const int a = ClampedStart(form.width, first_column);
    const int b = ClampedStart(form.width, first_column + columns - 1);
    const int begin = (a < b ? a : b) * inner / kPiece * kPiece;
    const int run = static_cast<int>(form.width.in) * inner;
    CONVGRAD_UNROLL
    for (int u = 0; u < kReads; ++u) {
      const int at = begin + StripPlace(mine.lane, u * kPiece);
      mine.offsets[u] = at < run ? at : run - kPiece;  // read for nothing, not used
    }
    mine.results = mine.owned == 0 ? 0 : columns * inner;
    mine.y += first_column * inner;
    mine.misfit = false;
    if (mine.line != 0) return;
    const int room = tiling.line_threads * kVector;
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

  // Reads a row of x for later, if all of its taps have room.
  CONVGRAD_DEVICE void Fetch(State& mine, int slot, int64_t row) const {
    if constexpr (kFetches && kWindow) {
      FetchWindow(mine, slot, mine.x + row * task.x_walk);
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
    if constexpr (kWindow) {
      if constexpr (!kFetches) FetchWindow(mine, slot, mine.x + row * task.x_walk);
      CombineWindow(mine, slot, sums);
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
        CONVGRAD_UNROLL
        for (int i = 0; i < kReads; ++i) {
          const T* from =
              line + static_cast<uint32_t>(mine.offsets[i]) + static_cast<uint32_t>(first) * inner;
          CONVGRAD_UNROLL
          for (int t = 0; t < kBatch; ++t) {
            pieces[i][t] = {};
            if (weights[i][t] != Sum(0)) pieces[i][t].Read(from);
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

  CONVGRAD_DEVICE void LoadRowWeights(int at, Sum (&weights)[kRows]) const {
    constexpr int kPack = kRows % kSumPack == 0 ? kSumPack : kRows % 2 == 0 ? 2 : 1;
    CONVGRAD_UNROLL
    for (int k = 0; k < kRows; k += kPack) {
      const auto some = Load<Sum, kPack>(row_weights + at * kRows + k);
      CONVGRAD_UNROLL
      for (int i = 0; i < kPack; ++i) weights[k + i] = some.at[i];
    }
  }

  CONVGRAD_DEVICE void MakeRing() {
    ForEachThread(tiling.threads, [&](int thread) {
      CONVGRAD_ROLLED
      for (int i = thread; i < rows * kRows; i += tiling.threads) {
        const int row = i / kRows, tap = i % kRows;
        if (task.walk.resampled) {
          row_weights[i] =
              tap < task.walk.taps ? WeightAt<Sum>(task.walk, first_row + row, tap) : Sum(0);
          if (tap == 0) row_marks[row] = ClampedStart(task.walk, first_row + row);
        } else {
          row_weights[i] = tap == 0 ? 1 : 0;
          if (tap == 0) row_marks[row] = static_cast<int>(first_row) + row;
        }
      }
    });
  }

  CONVGRAD_DEVICE void Grow() {
    const int last = static_cast<int>(task.walk.in) - 1;
    const auto fetch = [&](int row) {
      ForEachThread<false>(tiling.threads,
                           [&](int thread) { Fetch(StateOf(thread), 0, row < last ? row : last); });
    };
    int base = 0, next = -1;  // the ring's first row, and that which was fetched
    CONVGRAD_ROLLED
    for (int row = 0; row < rows; ++row) {
      const int start = row_marks[row];
      int steps = start - base;
      if (row == 0 || steps < 0 || steps > kRows) {
        steps = kRows;
        if (next != start) fetch(next = start);
      }
      base = start;
      CONVGRAD_ROLLED
      for (int s = 0; s < steps; ++s) {
        ForEachThread<false>(tiling.threads, [&](int thread) {
          State& mine = StateOf(thread);
          CONVGRAD_UNROLL
          for (int k = 0; k + 1 < kRows; ++k) {
            CONVGRAD_UNROLL
            for (int i = 0; i < kVector; ++i) mine.rows[k][i] = mine.rows[k + 1][i];
          }
          Combine(mine, 0, next < last ? next : last, mine.rows[kRows - 1]);
        });
        ++next;
        if (s + 1 == steps && row + 1 < rows && row_marks[row + 1] > next) {
          next = row_marks[row + 1];
        }
        fetch(next);
      }
      ForEachThread<false>(tiling.threads, [&](int thread) {
        State& mine = StateOf(thread);
        Sum weights[kRows];
        LoadRowWeights(row, weights);
        CONVGRAD_UNROLL
        for (int i = 0; i < kVector; ++i) mine.sum[i] = 0;
        CONVGRAD_UNROLL
        for (int k = 0; k < kRows; ++k) {
          if (weights[k] == Sum(0)) continue;
          CONVGRAD_UNROLL
          for (int i = 0; i < kVector; ++i) mine.sum[i] += weights[k] * mine.rows[k][i];
        }
      });
      Write(row);
    }
  }

  // The rows of x that are read, from `low` on: how many, or -1 if the schedule has no room for
  // them.
  CONVGRAD_DEVICE int FindRows(int& low) {
    int* const lows = ends + tiling.chunk;
    int* const flag = lows + tiling.chunk;
    const int taps = static_cast<int>(task.walk.taps);
    ForEachThread(tiling.threads, [&](int thread) {
      if (thread == 0) *flag = 0;
      CONVGRAD_ROLLED
      for (int row = thread; row < rows; row += tiling.threads) {
        const int start = ClampedStart(task.walk, first_row + row);
        int from = 0, to = taps - 1;
        CONVGRAD_ROLLED
        while (from < taps && WeightAt<Sum>(task.walk, first_row + row, from) == Sum(0)) ++from;
        CONVGRAD_ROLLED
        while (to >= from && WeightAt<Sum>(task.walk, first_row + row, to) == Sum(0)) --to;
        lows[row] = from < taps ? start + from : 0x7fffffff;
        ends[row] = from < taps ? start + to : -1;
      }
    });
    int first = 0x7fffffff, last = -1;
    CONVGRAD_ROLLED
    for (int row = 0; row < rows; ++row) {
      first = lows[row] < first ? lows[row] : first;
      last = Most(last, ends[row]);
    }
    low = first;
    const int there = last < first ? 0 : last - first + 1;
    return there > tiling.table_rows ? -1 : there;
  }

  // Makes the schedule, while the first rows are fetched. False if more rows of y than kRows are in
  // the making at a time.
  CONVGRAD_DEVICE bool MakeSchedule(int low, int there) {
    const int* const lows = ends + tiling.chunk;
    int* const flag = ends + 2 * tiling.chunk;
    const int taps = static_cast<int>(task.walk.taps);
    if (there > 0) {
      CONVGRAD_UNROLL
      for (int slot = 0; slot < kAhead; ++slot) {
        ForEachThread<false>(tiling.threads, [&](int thread) {
          Fetch(StateOf(thread), slot, low + (slot < there ? slot : there - 1));
        });
      }
    }
    ForEachThread(tiling.threads, [&](int thread) {
      CONVGRAD_ROLLED
      for (int i = thread; i < there; i += tiling.threads) {
        const int at = low + i;
        // A row of y is done when those before it are.
        int done = 0, done_after = 0, end = -1;
        CONVGRAD_ROLLED
        for (int row = 0; row < rows; ++row) {
          end = Most(end, ends[row]);
          done += end < at;
          done_after += end <= at;
        }
        row_marks[i] = done_after - done;
        CONVGRAD_UNROLL
        for (int k = 0; k < kRows; ++k) {
          Sum weight = 0;
          if (done + k < rows) {
            const int64_t row = first_row + done + k;
            const int tap = at - ClampedStart(task.walk, row);
            if (tap >= 0 && tap < taps) weight = WeightAt<Sum>(task.walk, row, tap);
          }
          row_weights[i * kRows + k] = weight;
        }
        CONVGRAD_ROLLED
        for (int row = done + kRows; row < rows; ++row) {
          if (lows[row] <= at && at <= ends[row]) *flag = 1;
        }
      }
    });
    return *flag == 0;
  }

  CONVGRAD_DEVICE void Shrink(int low, int there) {
    ForEachThread<false>(tiling.threads, [&](int thread) {
      State& mine = StateOf(thread);
      CONVGRAD_UNROLL
      for (int k = 0; k < kRows; ++k) {
        CONVGRAD_UNROLL
        for (int i = 0; i < kVector; ++i) mine.rows[k][i] = 0;
      }
    });
    int done = 0;
    const auto finish = [&] {
      ForEachThread<false>(tiling.threads, [&](int thread) {
        State& mine = StateOf(thread);
        CONVGRAD_UNROLL
        for (int i = 0; i < kVector; ++i) {
          mine.sum[i] = mine.rows[0][i];
          CONVGRAD_UNROLL
          for (int k = 0; k + 1 < kRows; ++k) mine.rows[k][i] = mine.rows[k + 1][i];
          mine.rows[kRows - 1][i] = 0;
        }
      });
      Write(done++);
    };
    if (there > 0) {
      CONVGRAD_ROLLED
      while (ends[done] < 0) finish();  // rows in front that read nothing
    }
    CONVGRAD_ROLLED
    for (int first = 0; first < there; first += kAhead) {
      CONVGRAD_UNROLL
      for (int slot = 0; slot < kAhead; ++slot) {
        const int row = first + slot;
        if (row >= there) break;
        const int marks = row_marks[row];
        Sum weights[kRows];
        LoadRowWeights(row, weights);
        ForEachThread<false>(tiling.threads, [&](int thread) {
          State& mine = StateOf(thread);
          Sum sums[kVector];
          Combine(mine, slot, low + row, sums);
          if (kFetches) {
            Fetch(mine, slot, low + (row + kAhead < there ? row + kAhead : there - 1));
          }
          CONVGRAD_UNROLL
          for (int k = 0; k < kRows; ++k) {
            if (weights[k] == Sum(0)) continue;
            CONVGRAD_UNROLL
            for (int i = 0; i < kVector; ++i) mine.rows[k][i] += weights[k] * sums[i];
          }
        });
        CONVGRAD_ROLLED
        for (int mark = 0; mark < marks; ++mark) finish();
      }
    }
    CONVGRAD_ROLLED
    while (done < rows) finish();
  }

  CONVGRAD_DEVICE void Gather() {
    CONVGRAD_ROLLED
    for (int row = 0; row < rows; ++row) {
      const Reads<Sum> reads(task.walk, first_row + row);
      ForEachThread<false>(tiling.threads, [&](int thread) {
        State& mine = StateOf(thread);
        CONVGRAD_UNROLL
        for (int i = 0; i < kVector; ++i) mine.sum[i] = 0;
        CONVGRAD_ROLLED
        for (int tap = 0; tap < reads.taps; ++tap) {
          const Sum weight = reads.Weight(tap);
          if (weight == Sum(0)) continue;
          Sum sums[kVector];
          Fetch(mine, 0, reads.start + tap);
          Combine(mine, 0, reads.start + tap, sums);
          CONVGRAD_UNROLL
          for (int i = 0; i < kVector; ++i) mine.sum[i] += weight * sums[i];
        }
      });
      Write(row);
    }
  }

  // Writes what the threads have in `sum` for a row of y.
  CONVGRAD_DEVICE void Write(int row) {
    if constexpr (kStrip) {
      Sum* const sums = strip_sums + parity * tiling.lines * tiling.strip_pitch;
      // The other half is written next: those who read this one have met once more before its turn.
      parity ^= 1;
      MeetInLine([&](int thread) {
        State& mine = StateOf(thread);
        if (mine.line >= tiling.lines) return;
        CONVGRAD_UNROLL
        for (int i = 0; i < kVector; ++i) {
          sums[mine.line * tiling.strip_pitch + StripPlace(mine.lane, i)] = mine.sum[i];
        }
      });
      ForEachThread<false>(tiling.threads,
                           [&](int thread) { WriteStrip(StateOf(thread), row, sums); });
    } else {
      ForEachThread<false>(tiling.threads, [&](int thread) {
        const State& mine = StateOf(thread);
        T* const to = Opaque(mine.y + (first_row + row) * task.y_walk);
        if constexpr (kWritesVectors) {
          if (mine.owned > 0) StoreSums(mine.sum, to);
        } else {
          CONVGRAD_UNROLL
          for (int i = 0; i < kVector; ++i) {
            if (i < mine.owned) FromSum(mine.sum[i], to[i * tiling.line_threads]);
          }
        }
      });
    }
  }

  CONVGRAD_DEVICE void WriteStrip(const State& mine, int row, const Sum* sums) const {
    const int inner = static_cast<int>(form.inner), taps = static_cast<int>(form.width.taps);
    T* const to = Opaque(mine.y + (first_row + row) * task.y_walk);
    const Sum* const line = sums + mine.line * tiling.strip_pitch;
    CONVGRAD_ROLLED
    for (int result = mine.lane; result < mine.results; result += tiling.line_threads) {
      const int packed = strip_results[result];
      const Sum* from = line + (packed & 0xffff);
      const Sum* const weights = width_weights + (packed >> 16) * tiling.width_pitch;
      Sum sum = 0;
      CONVGRAD_ROLLED
      for (int tap = 0; tap < taps; tap += kSumPack) {
        const auto some = Load<Sum, kSumPack>(weights + tap);
        CONVGRAD_UNROLL
        for (int i = 0; i < kSumPack; ++i, from += inner) {
          if (some.at[i] != Sum(0)) sum += some.at[i] * *from;
        }
      }
      FromSum(sum, to[result]);
    }
  }

  // For columns that start in disorder.
  CONVGRAD_DEVICE void WriteDirectly() {
    const bool deep = form.depth.resampled;
    ForEachThread<false>(tiling.threads, [&](int thread) {
      const State& mine = StateOf(thread);
      const int64_t mid_start = task.mid.resampled ? ClampedStart(task.mid, mine.mid) : 0;
      const T* const x = mine.x - mid_start * task.x_mid;
      const int inner = static_cast<int>(form.inner);
      CONVGRAD_ROLLED
      for (int64_t row = first_row; row < first_row + rows; ++row) {
        const int first = kStrip ? mine.lane : 0, step = kStrip ? tiling.line_threads : 1;
        const int64_t column = kStrip ? first_column : mine.offsets[0] / (kWindow ? kStep : 1);
        CONVGRAD_ROLLED
        for (int result = first; result < (kStrip ? mine.results : mine.owned); result += step) {
          FromSum(Directly<T>(form, x, deep ? row : 0, deep ? mine.mid : row,
                              column + result / inner, result % inner),
                  mine.y[row * task.y_walk + result]);
        }
      }
    });
  }

  // A phase after which the threads of each line meet.
  template <typename Body>
  CONVGRAD_DEVICE void MeetInLine(const Body& body) const {
    ForEachThread<false>(tiling.threads, body);
#ifdef __CUDA_ARCH__
    if (tiling.line_threads <= 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
#endif
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_RESAMPLE_WALK_CUH_
