// What a thread owns of a line of y, and how it reads x for that: see ResampleLoad.

#ifndef JAX_CONVGRAD_CUDA_RESAMPLE_LINES_CUH_
#define JAX_CONVGRAD_CUDA_RESAMPLE_LINES_CUH_

#include <cstdint>

#include "cuda/resample_elements.cuh"

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
  int* const strip_results;  // kStrip: where each element of y begins to read a line's sums
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
        strip_results(reinterpret_cast<int*>(shared + tiling.results_at)) {}

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
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_RESAMPLE_LINES_CUH_
