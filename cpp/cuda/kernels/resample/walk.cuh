// The kernel of resample. The block walks along the first resampled axis, combines the other axes
// on the way, and keeps everything that it needs twice in registers:
//
//   grow    a ring of the last rows of x. Each row of y is a combination of them.
//   shrink  the sums of those rows of y that a row of x adds to. The oldest is written when the
//           last row that it reads has been added. A schedule in shared memory has the weights of a
//           row of x for them, and how many are done after it. If no schedule fits the bands, for
//           example because their starts are not ascending, y is gathered row by row.
//
// A row is combined from x as it is read, by one thread alone: memory is read once, and repeated
// reads come from the caches. But where many neighboring elements become few along the width and
// the inner run is short, the threads' reads would be far apart. There, if all bands are alike,
// they read whole vectors and a few elements beside them (kWindow). Otherwise they own elements of
// x, and combine the columns in shared memory when a row of y is done (kStrip), two columns per
// thread if each is made of many elements (kPairs). In aligned lines of one channel they make two
// columns each from rows of x in shared memory (kColumns). Where columns become many times as many,
// threads read vectors and write a few elements from each (kSpread), or pass elements on so that
// writes are vectors (kShifted).
//
// Rows of x go through shared memory (stage.cuh) where threads would otherwise read single
// elements, or the same ones: strips of lines that are not aligned, kColumns, and many taps of few
// columns that become many (kStaged).
//
// Fast path: sums of many weights are accumulated without testing for zero weights. If the result
// is NaN, it is computed once more without the zero weights (0 * inf must not contribute). kPairs
// and kColumns accumulate all sums this way, and test what they wrote when their walk is done.
//
// Each element of y is written once, by one thread and in one order.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_WALK_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_WALK_CUH_

#include <cstdint>

#include "cuda/kernels/resample/direct.cuh"
#include "cuda/kernels/resample/lines.cuh"
#include "cuda/kernels/resample/schedule.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename ShapeType>
struct Walk : Lines<ShapeType> {
  using Base = Lines<ShapeType>;
  using Base::Bring;
  using Base::Combine;
  using Base::Enter;
  using Base::Fetch;
  using Base::first_column;
  using Base::form;
  using Base::kAhead;
  using Base::kAsRead;
  using Base::kBase;
  using Base::kBrings;
  using Base::kColumns;
  using Base::kFetches;
  using Base::kGrow;
  using Base::kMidReads;
  using Base::kPairs;
  using Base::kPlain;
  using Base::kRecord;
  using Base::kRound;
  using Base::kRows;
  using Base::kShifted;
  using Base::kSpread;
  using Base::kStaged;
  using Base::kStagedElements;
  using Base::kStages;
  using Base::kStep;
  using Base::kStrip;
  using Base::kSumPack;
  using Base::kTaps;
  using Base::kVector;
  using Base::kWindow;
  using Base::kWritesVectors;
  using Base::NextRow;
  using Base::RowOf;
  using Base::StateOf;
  using Base::strip_sums;
  using Base::task;
  using Base::tiling;
  using typename Base::State;
  using typename Base::Sum;
  using typename Base::T;

  Sum* const row_weights;  // shrink: [table_rows, kRecord], grow: [chunk, kRows]
  int* const row_starts;   // grow: in x, the last twice
  int* const ends;         // shrink: [2 * chunk], for making the schedule, and a flag
  int* const misfit;       // kStrip, kColumns, kWindow, kSpread and kStaged
  const int line_in_warp;  // whether all threads of a line belong to one warp
  const int stage_end;     // kStaged: of the slots, from the first on
  int64_t first_row = 0;
  int rows = 0;     // of y
  int sums_at = 0;  // kStrip: where the half of the sums is that is written next

  CONVGRAD_DEVICE Walk(const ResampleTask& the_task, char* the_shared)
      : Base(the_task, the_shared),
        row_weights(reinterpret_cast<Sum*>(the_shared + tiling.weights_at)),
        row_starts(reinterpret_cast<int*>(row_weights + tiling.chunk * kRows)),
        ends(reinterpret_cast<int*>(row_weights + tiling.table_rows * kRecord)),
        misfit(reinterpret_cast<int*>(the_shared + tiling.flag_at)),
        line_in_warp(Opaque(tiling.line_threads <= 32 && 32 % tiling.line_threads == 0 ? 1 : 0)),
        stage_end(Opaque(kStages * tiling.stage_slot_bytes)) {}

  CONVGRAD_DEVICE void Run(uint32_t block) {
    Digits digits{block};
    const int channel_tile = digits.Next(tiling.channel_tiles);
    const int column_tile = digits.Next(tiling.column_tiles);
    const int mid_tile = digits.Next(tiling.mid_tiles);
    first_row = int64_t{digits.Next(tiling.chunks)} * tiling.chunk;
    rows = static_cast<int>(Min(tiling.chunk, task.walk.out - first_row));
    const int64_t batch_tile = digits.rest;
    ForEachThread<false>(tiling.threads, [&](int thread) {
      State& mine = StateOf(thread);
      Enter(thread, mine, channel_tile, column_tile, mid_tile, batch_tile);
      if constexpr (kSpread) BringFirst(mine, column_tile);
      mine.y += first_row * task.y_walk;
    });
    if constexpr (kStrip || kColumns || kWindow || kSpread || kStagedElements) {
      ForEachThread(tiling.threads, [&](int thread) {
        if (thread == 0) *misfit = 0;
        if constexpr (kPairs) {
          ClearPairs(*this, thread);
        } else if constexpr (kColumns) {
          ClearStage(*this, thread);
        } else if constexpr (kStrip) {
          CopyWeights(*this, thread);
        }
      });
      ForEachThread(tiling.threads, [&](int thread) {
        if (StateOf(thread).misfit) *misfit = 1;
      });
      if (*misfit) {
        WriteDirectly();
        return;
      }
    }
    if constexpr (kStaged && kGrow) {
      MakeRing(*this);
      GrowStaged();
    } else if constexpr (kGrow) {
      MakeRing(*this);
      Grow();
    } else {
      int low = 0;
      const int there = tiling.table_rows == 0 ? -1 : FindRows(*this, low);
      if (there > 0) BeginReading(low, there);
      if (there >= 0 && MakeSchedule(*this, low, there)) {
        Shrink(low, there);
      } else if constexpr (kStrip || kColumns || kWindow) {
        WriteDirectly();
      } else {
        Gather();
      }
      if constexpr (kPlain) WriteNumbers();
    }
  }

 private:
  // Prefetches the rows of x that the walk begins with while tables are read: as many as there are
  // threads for, a cache line each. All blocks may begin at once, and would leave memory idle until
  // they have their tables. Times the memory roofline on an H100: 1.18 instead of 1.35.
  CONVGRAD_DEVICE void BringFirst(const State& mine, int column_tile) const {
    constexpr int kLine = 128 / static_cast<int>(sizeof(T));
    const int columns = tiling.line_threads * kBase, begin = column_tile * columns;
    const int here = static_cast<int>(Min(columns, form.width.in - begin));
    const int pieces = (here + kLine - 1) / kLine;
    const int64_t in = task.walk.in, out = task.walk.out;
    const int first = Max(0, static_cast<int>(first_row * in / out) - 1);
    const int64_t end = Min(in, (first_row + rows) * in / out + 2);
    const int row = first + mine.lane / pieces;
    if (row < end) BringCloser(mine.x + row * task.x_walk + begin + mine.lane % pieces * kLine);
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

  // Waits until all threads of a line see the rows that it began to copy, except the last kPending.
  template <int kPending>
  CONVGRAD_DEVICE void AwaitRows() const {
    AwaitCopies<kPending>();
    MeetInLine([](int) {});
  }

  CONVGRAD_DEVICE int NextSlot(int slot) const {
    const int next = slot + tiling.stage_slot_bytes;
    return next == stage_end ? 0 : next;
  }

  // Begins to copy kAhead rows of x, from `row` on, to a stage that no thread reads any more.
  CONVGRAD_DEVICE void BeginCopies(int row, int slot, int end) {
    const int first_slot = slot;
    ForEachThread<false>(tiling.threads, [&](int thread) {
      State& mine = StateOf(thread);
      slot = first_slot;
      BeginRows(*this, mine, row);
      CONVGRAD_ROLLED
      for (int k = 0; k < kAhead; ++k) {
        CopyAnyRow(*this, mine, slot, row + k, end);
        EndRow(*this, mine);
        slot = NextSlot(slot);
      }
    });
  }

  // Like Grow, with rows of x from the stage.
  CONVGRAD_DEVICE void GrowStaged() {
    const int in = static_cast<int>(task.walk.in);
    // Copies of rows of x end with the last row's, unless starts are not ascending.
    int end = row_starts[rows - 1] + kRows;
    end = end < in ? end : in;
    int base = 0, next = -1;  // the ring's first row; the next one in the stage
    int slot = 0, before = kAhead * tiling.stage_slot_bytes;  // its slot, and that before
    CONVGRAD_ROLLED
    for (int row = 0; row < rows; ++row) {
      const int start = row_starts[row];
      int steps = start - base, until = start + kRows;
      until = until < in ? until : in;
      const bool anew = row == 0 || steps < 0 || steps > kRows;
      if (anew) {
        steps = kRows;
        next = start;
      }
      if (anew || until > end) {
        if (until > end) end = in;
        AwaitRows<0>();
        BeginCopies(next, slot, end);
      }
      base = start;
      CONVGRAD_ROLLED
      for (int s = 0; s < steps; ++s) {
        AwaitRows<kAhead - 1>();
        ForEachThread<false>(tiling.threads, [&](int thread) {
          State& mine = StateOf(thread);
          // To the slot of the row before, which all threads have read.
          CopyAnyRow(*this, mine, before, next + kAhead, end);
          EndRow(*this, mine);
          CONVGRAD_UNROLL
          for (int k = 0; k + 1 < kRows; ++k) {
            CONVGRAD_UNROLL
            for (int i = 0; i < kVector; ++i) mine.rows[k][i] = mine.rows[k + 1][i];
          }
          if (next < in) {
            Combine(mine, slot, next, mine.rows[kRows - 1]);
          } else {
            CONVGRAD_UNROLL
            for (int i = 0; i < kVector; ++i) mine.rows[kRows - 1][i] = 0;
          }
        });
        ++next;
        before = slot;
        slot = NextSlot(slot);
      }
      Sum weights[kRows];
      LoadRowWeights(row, weights);
      WriteFromRing(weights);
    }
  }

  CONVGRAD_DEVICE void Grow() {
    const int last = static_cast<int>(task.walk.in) - 1;
    const auto fetch = [&](int row) {
      ForEachThread<false>(tiling.threads, [&](int thread) {
        State& mine = StateOf(thread);
        Fetch(mine, 0, RowOf(mine, row < last ? row : last));
      });
    };
    int base = 0, next = -1;  // the ring's first row, and that which was fetched
    // Shared memory is read a row ahead; so are weights where registers are left for them.
    constexpr bool kWeightsAhead =
        kSpread ? kTaps == 2 && kMidReads == 1 : kShifted && sizeof(T) >= 4;
    int following = row_starts[0];
    Sum weights[kRows], following_weights[kRows];
    if constexpr (kWeightsAhead) LoadRowWeights(0, following_weights);
    CONVGRAD_ROLLED
    for (int row = 0; row < rows; ++row) {
      const int start = following;
      following = row_starts[row + 1];
      if constexpr (kWeightsAhead) {
        CONVGRAD_UNROLL
        for (int k = 0; k < kRows; ++k) weights[k] = following_weights[k];
        LoadRowWeights(row + 1 < rows ? row + 1 : row, following_weights);
      }
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
        if (s + 1 == steps && following > next) next = following;
        fetch(next);
      }
      if constexpr (!kWeightsAhead) LoadRowWeights(row, weights);
      WriteFromRing(weights);
    }
  }

  CONVGRAD_DEVICE void WriteFromRing(const Sum (&weights)[kRows]) {
    ForEachThread<false>(tiling.threads, [&](int thread) {
      State& mine = StateOf(thread);
      if constexpr (kRows == 2) {
        if (weights[0] != Sum(0) && weights[1] != Sum(0)) {
          CONVGRAD_UNROLL
          for (int i = 0; i < kVector; ++i) {
            mine.sum[i] = weights[0] * mine.rows[0][i] + weights[1] * mine.rows[1][i];
          }
          return;
        }
      }
      // Of many weights few are zero, and few of their sums are not finite. These are computed once
      // more.
      bool number = kRows >= 4;
      CONVGRAD_UNROLL
      for (int i = 0; i < kVector; ++i) mine.sum[i] = 0;
      if constexpr (kRows >= 4) {
        CONVGRAD_UNROLL
        for (int k = 0; k < kRows; ++k) {
          CONVGRAD_UNROLL
          for (int i = 0; i < kVector; ++i) mine.sum[i] += weights[k] * mine.rows[k][i];
        }
        CONVGRAD_UNROLL
        for (int i = 0; i < kVector; ++i) number = number && mine.sum[i] == mine.sum[i];
      }
      if (number) return;
      CONVGRAD_UNROLL
      for (int i = 0; i < kVector; ++i) mine.sum[i] = 0;
      CONVGRAD_UNROLL
      for (int k = 0; k < kRows; ++k) {
        if (weights[k] == Sum(0)) continue;
        CONVGRAD_UNROLL
        for (int i = 0; i < kVector; ++i) mine.sum[i] += weights[k] * mine.rows[k][i];
      }
    });
    Write();
  }

  // The first of `there` rows of x from `low` on.
  CONVGRAD_DEVICE void BeginReading(int low, int there) {
    if constexpr (kStaged) {
      BeginCopies(low, 0, low + there);
    } else {
      CONVGRAD_UNROLL
      for (int slot = 0; slot < kAhead; ++slot) {
        ForEachThread<false>(tiling.threads, [&](int thread) {
          State& mine = StateOf(thread);
          if (slot == 0) mine.next = RowOf(mine, low);
          FetchNext(mine, slot, there - slot);
        });
      }
    }
  }

  // Reads the next row of x for later. If none is left, it reads nothing; or the last row again
  // where a row takes several reads, which would all wait behind a branch.
  CONVGRAD_DEVICE void FetchNext(State& mine, int slot, int left) const {
    if constexpr (kAsRead) {
      if (left > 0) Fetch(mine, slot, mine.next);
      mine.next = Opaque(mine.next + task.x_walk);
    } else if constexpr (kFetches) {
      Fetch(mine, slot, mine.next);
      mine.next = Opaque(mine.next + (left > 1 ? task.x_walk : 0));
    }
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
    if (there > 0) {
      CONVGRAD_ROLLED
      while (ends[done] < 0) Finish(done);  // rows in front that read nothing
    }
    if constexpr (kStaged) {
      StagedRows at{low, low + there, 0, kAhead * tiling.stage_slot_bytes};
      if (there > 0 && low + kAhead >= tiling.stage_from) {
        const int inside = static_cast<int>(Min(at.end, tiling.stage_to)) - kAhead;
        ShrinkStaged<true>(at, low, inside, done);
      }
      ShrinkStaged<false>(at, low, at.end, done);
    } else {
      const int64_t ahead = tiling.rows_ahead * task.x_walk;
      // The schedule extends to the end of the last round, where rows have no weights.
      CONVGRAD_ROLLED
      for (int first = 0; first < there; first += kRound) {
        CONVGRAD_UNROLL
        for (int slot = 0; slot < kRound; ++slot) {
          const int row = first + slot;
          Sum weights[kRows];
          const int done_now = LoadRecord(*this, row, weights);
          ForEachThread<false>(tiling.threads, [&](int thread) {
            State& mine = StateOf(thread);
            Sum sums[kVector];
            Combine(mine, slot, low + row, sums);
            if constexpr (kBrings) {
              // Pairs always do, without a look at the tiling.
              if (kPairs || tiling.rows_ahead > 0) Bring(mine, mine.next + ahead);
            }
            // Elements that are added directly stay where they were read to until then.
            if constexpr (kAsRead) Add(mine, weights, sums);
            FetchNext(mine, slot, there - row - kAhead);
            if constexpr (!kAsRead) Add(mine, weights, sums);
          });
          CONVGRAD_ROLLED
          for (int i = 0; i < done_now; ++i) Finish(done);
        }
      }
    }
    CONVGRAD_ROLLED
    while (done < rows) Finish(done);
  }

  struct StagedRows {
    int row, end;      // of x: that which is next, and that behind the last
    int slot, before;  // its slot, and that of the row before
  };

  // Adds rows of x up to `end`. With kInside, those that are copied meanwhile lie inside x.
  template <bool kInside>
  CONVGRAD_DEVICE void ShrinkStaged(StagedRows& at, int low, int end, int& done) {
    CONVGRAD_ROLLED
    for (; at.row < end; ++at.row) {
      Sum weights[kRows];
      const int done_now = LoadRecord(*this, at.row - low, weights);
      AwaitRows<kAhead - 1>();
      ForEachThread<false>(tiling.threads, [&](int thread) {
        State& mine = StateOf(thread);
        // To the slot of the row before, which all threads have read.
        if constexpr (kInside) {
          CopyRow(*this, mine, at.before);
        } else {
          CopyAnyRow(*this, mine, at.before, at.row + kAhead, at.end);
        }
        EndRow(*this, mine);
        Sum sums[kVector];
        Combine(mine, at.slot, at.row, sums);
        Add(mine, weights, sums);
      });
      at.before = at.slot;
      at.slot = NextSlot(at.slot);
      CONVGRAD_ROLLED
      for (int i = 0; i < done_now; ++i) Finish(done);
    }
  }

  CONVGRAD_DEVICE static void Add(State& mine, const Sum (&weights)[kRows],
                                  const Sum (&sums)[kVector]) {
    CONVGRAD_UNROLL
    for (int k = 0; k < kRows; ++k) {
      if (!kPlain && weights[k] == Sum(0)) continue;
      CONVGRAD_UNROLL
      for (int i = 0; i < kVector; ++i) mine.rows[k][i] += weights[k] * sums[i];
    }
  }

  // Writes the oldest of the sums.
  CONVGRAD_DEVICE void Finish(int& done) {
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
    ++done;
    Write();
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
          Fetch(mine, 0, RowOf(mine, reads.start + tap));
          Combine(mine, 0, reads.start + tap, sums);
          CONVGRAD_UNROLL
          for (int i = 0; i < kVector; ++i) mine.sum[i] += weight * sums[i];
        }
      });
      Write();
    }
  }

  // Writes the threads' sums in `sum` as the next row of y.
  CONVGRAD_DEVICE void Write() {
    if constexpr (kStrip) {
      Sum* const sums = strip_sums + sums_at;
      // The other half is written next: the threads that read this one synchronize before its turn.
      sums_at = tiling.strip_half - sums_at;
      MeetInLine([&](int thread) {
        State& mine = StateOf(thread);
        if (mine.owned == 0) return;
        if constexpr (kPairs) {
          StorePairs(*this, mine, sums);
        } else {
          StoreStrip(*this, mine, sums + mine.line * tiling.strip_pitch);
        }
      });
      ForEachThread<false>(tiling.threads, [&](int thread) {
        if constexpr (kPairs) {
          WritePairs(*this, StateOf(thread), sums);
        } else {
          WriteStrip(*this, StateOf(thread), sums);
        }
      });
    } else if constexpr (kColumns) {
      ForEachThread<false>(tiling.threads,
                           [&](int thread) { WriteColumns(*this, StateOf(thread)); });
    } else if constexpr (kShifted) {
      WriteShifted(*this);
    } else {
      ForEachThread<false>(tiling.threads, [&](int thread) {
        State& mine = StateOf(thread);
        T* const to = NextRow(mine);
        if constexpr (kWritesVectors) {
          if (mine.owned > 0) StoreSums<kGrow>(mine.sum, to);
        } else {
          CONVGRAD_UNROLL
          for (int i = 0; i < kVector; ++i) {
            if (i < mine.owned) FromSum(mine.sum[i], to[i * tiling.line_threads]);
          }
        }
      });
    }
  }

  // After a walk that did not test for zero weights: results that are NaN are computed once more,
  // without the zero weights.
  CONVGRAD_DEVICE void WriteNumbers() {
    const int inner = static_cast<int>(form.inner);
    ForEachThread<false>(tiling.threads, [&](int thread) {
      const State& mine = StateOf(thread);
      if (mine.numbers) return;
      T* const y = mine.y - rows * task.y_walk + mine.pair_to;
      CONVGRAD_ROLLED
      for (int at = 0; at < rows; ++at) {
        CONVGRAD_ROLLED
        for (int k = 0; k < mine.pair_columns; ++k) {
          T& result = y[at * task.y_walk + k * inner];
          if (ToSum(result) == ToSum(result)) continue;
          FromSum(Directly<T>(form, mine.x, 0, first_row + at,
                              first_column + mine.pair_to / inner + k, mine.pair_to % inner),
                  result);
        }
      }
    });
  }

  // For columns whose starts are not ascending.
  CONVGRAD_DEVICE void WriteDirectly() {
    constexpr bool kTiles = kStrip || kColumns;
    const bool deep = form.depth.resampled;
    ForEachThread<false>(tiling.threads, [&](int thread) {
      const State& mine = StateOf(thread);
      const int64_t mid_start = task.mid.resampled ? ClampedStart(task.mid, mine.mid) : 0;
      const T* const x = mine.x - mid_start * task.x_mid;
      const int inner = static_cast<int>(form.inner);
      CONVGRAD_ROLLED
      for (int64_t at = 0; at < rows; ++at) {
        const int64_t row = first_row + at;
        const int64_t column = kTiles    ? first_column
                               : kWindow ? mine.offsets[0] / (kWindow ? kStep : 1)
                               : kSpread ? mine.offsets[0] * int64_t{kStep}
                                         : 0;
        const int element = kStagedElements ? mine.first : 0;
        const int first = kTiles ? mine.lane : 0;
        const int step = kTiles || !kWritesVectors ? tiling.line_threads : 1;
        const int end = kTiles                               ? mine.results
                        : kStagedElements && !kWritesVectors ? mine.owned * step
                                                             : mine.owned;
        CONVGRAD_ROLLED
        for (int result = first; result < end; result += step) {
          FromSum(Directly<T>(form, x, deep ? row : 0, deep ? mine.mid : row,
                              column + (element + result) / inner, (element + result) % inner),
                  mine.y[at * task.y_walk + result]);
        }
      }
    });
  }

  // A phase after which the threads of each line synchronize.
  template <typename Body>
  CONVGRAD_DEVICE void MeetInLine(const Body& body) const {
    ForEachThread<false>(tiling.threads, body);
#ifdef __CUDA_ARCH__
    if (line_in_warp != 0) {
      __syncwarp();
    } else {
      __syncthreads();
    }
#endif
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_WALK_CUH_
