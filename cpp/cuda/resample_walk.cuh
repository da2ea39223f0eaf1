// The kernel of resample. The block walks along the first axis that is resampled, the others being
// combined on the way, and keeps all that it needs twice in registers:
//
//   grow    a ring of the last rows of x. Each row of y is a combination of them.
//   shrink  the sums of those rows of y that a row of x adds to. The oldest is written when the
//           last row that it reads has been added. A schedule in shared memory says which weights
//           a row of x has for them, and how many are done after it. Bands that no schedule fits,
//           such as those of starts in disorder, are gathered: row by row of y.
//
// A row is combined from x as it is read, by one thread alone: memory is read once, and what is
// read again comes from the caches. But where many neighbouring elements become few along the width
// and the inner run is short, threads would read far apart. There they read whole vectors and a few
// elements beside them, if all bands are alike (kWindow), or own elements of x, and combine the
// columns in shared memory when a row of y is done (kStrip).
//
// Rows of x go through shared memory (resample_stage.cuh) where threads would otherwise read single
// elements: strips of lines that are not aligned, and many taps of few columns that become many
// (kStaged).
//
// Sums of many weights are formed as if none were zero, and once more without those that are if the
// result is not a number.
//
// Each element of y is written once, by one thread and in one order.

#ifndef JAX_CONVGRAD_CUDA_RESAMPLE_WALK_CUH_
#define JAX_CONVGRAD_CUDA_RESAMPLE_WALK_CUH_

#include <cstdint>

#include "cuda/resample_direct.cuh"
#include "cuda/resample_lines.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Element, ResampleLoad kLoadKind, bool kIsPacked, bool kGrows, int kRowCount,
          int kTapCount, int kMidCount, int kStepCount = 0>
struct Walk
    : Lines<Element, kLoadKind, kIsPacked, kGrows, kRowCount, kTapCount, kMidCount, kStepCount> {
  using Base =
      Lines<Element, kLoadKind, kIsPacked, kGrows, kRowCount, kTapCount, kMidCount, kStepCount>;
  using Base::BeginRows;
  using Base::ColumnsHere;
  using Base::Combine;
  using Base::CopyRows;
  using Base::Enter;
  using Base::Fetch;
  using Base::first_column;
  using Base::form;
  using Base::kAhead;
  using Base::kAny;
  using Base::kEarly;
  using Base::kFetches;
  using Base::kFurther;
  using Base::kGrow;
  using Base::kPacked;
  using Base::kPairs;
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
  using Base::kTogether;
  using Base::kVector;
  using Base::kWindow;
  using Base::kWords;
  using Base::kWritesVectors;
  using Base::OddHalf;
  using Base::StateOf;
  using Base::strip_results;
  using Base::StripPlace;
  using Base::task;
  using Base::tiling;
  using typename Base::State;
  using typename Base::Sum;
  using typename Base::T;

  Sum* const row_weights;    // shrink: [table_rows, kRows], grow: [chunk, kRows]
  int* const row_marks;      // shrink: rows of y done after each row of x; grow: starts
  int* const ends;           // shrink: [2 * chunk], for making the schedule, and a flag
  Sum* const width_weights;  // kStrip: [columns, width_pitch]
  Sum* const strip_sums;     // kStrip: [2, lines, strip_pitch]
  int* const misfit;         // kStrip, kWindow and kStaged
  const bool line_in_warp;   // all threads of a line are of one warp
  int64_t first_row = 0;
  int rows = 0;  // of y
  int parity = 0;

  CONVGRAD_DEVICE Walk(const ResampleTask& the_task, char* shared)
      : Base(the_task, shared),
        row_weights(reinterpret_cast<Sum*>(shared + tiling.weights_at)),
        row_marks(reinterpret_cast<int*>(row_weights +
                                         (kGrow ? tiling.chunk : tiling.table_rows) * kRows)),
        ends(row_marks + tiling.table_rows),
        width_weights(reinterpret_cast<Sum*>(shared + tiling.width_weights_at)),
        strip_sums(reinterpret_cast<Sum*>(shared + tiling.strip_at)),
        misfit(reinterpret_cast<int*>(shared + tiling.flag_at)),
        line_in_warp(tiling.line_threads <= 32 && 32 % tiling.line_threads == 0) {}

  CONVGRAD_DEVICE void Run(uint32_t block) {
    Digits digits{block};
    const int channel_tile = digits.Next(tiling.channel_tiles);
    const int column_tile = digits.Next(tiling.column_tiles);
    const int mid_tile = digits.Next(tiling.mid_tiles);
    first_row = int64_t{digits.Next(tiling.chunks)} * tiling.chunk;
    rows = static_cast<int>(Least(tiling.chunk, task.walk.out - first_row));
    const int64_t batch_tile = digits.rest;
    ForEachThread<false>(tiling.threads, [&](int thread) {
      State& mine = StateOf(thread);
      Enter(thread, mine, channel_tile, column_tile, mid_tile, batch_tile);
      mine.y += first_row * task.y_walk;
    });
    if constexpr (kPairs) {
      // What no thread writes is there for weights of zero.
      ForEachThread(tiling.threads, [&](int thread) {
        if (thread == 0) *misfit = 0;
        CONVGRAD_ROLLED
        for (int i = thread; i < 2 * tiling.lines * tiling.strip_pitch; i += tiling.threads) {
          strip_sums[i] = 0;
        }
      });
    } else if constexpr (kStrip) {
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
    if constexpr (kWindow || kSpread || kStagedElements) {
      ForEachThread(tiling.threads, [&](int thread) {
        if (thread == 0) *misfit = 0;
      });
    }
    if constexpr (kStrip || kWindow || kSpread || kStagedElements) {
      ForEachThread(tiling.threads, [&](int thread) {
        if (StateOf(thread).misfit) *misfit = 1;
      });
      if (*misfit) {
        WriteDirectly();
        return;
      }
    }
    if constexpr (kStaged && kGrow) {
      MakeRing();
      GrowStaged();
    } else if constexpr (kGrow) {
      MakeRing();
      Grow();
    } else {
      if (kEarly > 0 && tiling.table_rows > 0) {
        const int row = ClampedStart(task.walk, first_row);
        ForEachThread<false>(tiling.threads, [&](int thread) {
          Base::template Approach<kEarly>(StateOf(thread), row, static_cast<int>(task.walk.in));
        });
      }
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

  // Until all threads of a line see the rows that it began to copy, but for the last kPending
  // groups.
  template <int kPending>
  CONVGRAD_DEVICE void AwaitRows() const {
    AwaitCopies<kPending>();
    MeetInLine([](int) {});
  }

  CONVGRAD_DEVICE int NextSlots(int slot) const {
    const int next = slot + kTogether * tiling.stage_slot_bytes;
    return next == kStages * tiling.stage_slot_bytes ? 0 : next;
  }

  // Begins to copy kAhead rows of x, from `row` on, to a stage that nobody reads any more.
  CONVGRAD_DEVICE void BeginCopies(int row, int slot, int end) {
    const int first_slot = slot;
    ForEachThread<false>(tiling.threads, [&](int thread) {
      State& mine = StateOf(thread);
      slot = first_slot;
      BeginRows(mine, row, end);
      CONVGRAD_ROLLED
      for (int k = 0; k < kAhead; k += kTogether) {
        CopyRows(mine, slot, end - row - k);
        slot = NextSlots(slot);
      }
    });
  }

  // As Grow, with rows of x from the stage.
  CONVGRAD_DEVICE void GrowStaged() {
    const int in = static_cast<int>(task.walk.in);
    // Rows of x that are copied end with the last row's, unless starts are in disorder.
    int end = row_marks[rows - 1] + kRows;
    end = end < in ? end : in;
    int base = 0, next = -1;  // the ring's first row; that which is next in the stage
    int slot = 0, before = kAhead * tiling.stage_slot_bytes;  // its slot, and that before
    CONVGRAD_ROLLED
    for (int row = 0; row < rows; ++row) {
      const int start = row_marks[row];
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
          // To the slot of the row before, which all have read.
          CopyRows(mine, before, end - next - kAhead);
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
        slot = NextSlots(slot);
      }
      WriteFromRing(row);
    }
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
      WriteFromRing(row);
    }
  }

  CONVGRAD_DEVICE void WriteFromRing(int row) {
    Sum weights[kRows];
    LoadRowWeights(row, weights);
    ForEachThread<false>(tiling.threads, [&](int thread) {
      State& mine = StateOf(thread);
      // Of many weights few are zero, and few sums of theirs are not finite. Then they are done
      // once more.
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

  // The rows of x that are read, from `low` on: how many, or -1 if the schedule has no room for
  // them.
  CONVGRAD_DEVICE int FindRows(int& low) {
    int* const lows = ends + tiling.chunk;
    int* const flag = lows + tiling.chunk;
    const int taps = static_cast<int>(task.walk.taps);
    constexpr int kBatch = 8;
    ForEachThread(tiling.threads, [&](int thread) {
      if (thread == 0) *flag = 0;
      CONVGRAD_ROLLED
      for (int row = thread; row < rows; row += tiling.threads) {
        const int start = ClampedStart(task.walk, first_row + row);
        int from = taps, to = -1;  // the first weight that is not zero, and the last
        CONVGRAD_ROLLED
        for (int tap = 0; tap < taps; tap += kBatch) {
          CONVGRAD_UNROLL
          for (int i = 0; i < kBatch; ++i) {
            if (tap + i >= taps) continue;
            if (WeightAt<Sum>(task.walk, first_row + row, tap + i) == Sum(0)) continue;
            from = from < tap + i ? from : tap + i;
            to = tap + i;
          }
        }
        lows[row] = from < taps ? start + from : 0x7fffffff;
        ends[row] = from < taps ? start + to : -1;
      }
    });
    int first = 0x7fffffff, last = -1;
    CONVGRAD_UNROLL_BY(8)
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
    if constexpr (kStaged) {
      if (there > 0) BeginCopies(low, 0, low + there);
    } else if (there > 0) {
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
        CONVGRAD_UNROLL_BY(8)
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
        bool too_many = false;
        CONVGRAD_UNROLL_BY(4)
        for (int row = done + kRows; row < rows; ++row) {
          too_many |= (lows[row] <= at) & (at <= ends[row]);
        }
        if (too_many) *flag = 1;
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
      ++done;
      Write();
    };
    if (there > 0) {
      CONVGRAD_ROLLED
      while (ends[done] < 0) finish();  // rows in front that read nothing
    }
    const auto add = [](State& mine, const Sum(&weights)[kRows], const Sum(&sums)[kVector]) {
      CONVGRAD_UNROLL
      for (int k = 0; k < kRows; ++k) {
        if (weights[k] == Sum(0)) continue;
        CONVGRAD_UNROLL
        for (int i = 0; i < kVector; ++i) mine.rows[k][i] += weights[k] * sums[i];
      }
    };
    if constexpr (kStaged) {
      int slot = 0, before = kAhead * tiling.stage_slot_bytes;
      CONVGRAD_ROLLED
      for (int first = 0; first < there; first += kTogether) {
        AwaitRows<kAhead / kTogether - 1>();
        ForEachThread<false>(tiling.threads, [&](int thread) {
          // To the slots of the rows before, which all have read.
          CopyRows(StateOf(thread), before, there - first - kAhead);
        });
        // Those that lie behind the last row are combined for nothing.
        ForEachThread<false>(tiling.threads, [&](int thread) {
          CONVGRAD_UNROLL
          for (int k = 0; k < kTogether; ++k) {
            State& mine = StateOf(thread);
            Combine(mine, slot + k * tiling.stage_slot_bytes, low + first + k, mine.together[k]);
          }
        });
        CONVGRAD_UNROLL
        for (int k = 0; k < kTogether; ++k) {
          const int row = first + k;
          if (row >= there) break;
          const int marks = row_marks[row];
          Sum weights[kRows];
          LoadRowWeights(row, weights);
          ForEachThread<false>(tiling.threads, [&](int thread) {
            State& mine = StateOf(thread);
            add(mine, weights, mine.together[k]);
          });
          CONVGRAD_ROLLED
          for (int mark = 0; mark < marks; ++mark) finish();
        }
        before = slot;
        slot = NextSlots(slot);
      }
    } else {
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
            if constexpr (kFurther > 0) {
              Base::template Approach<1>(mine, low + row + kAhead + kFurther, low + there);
            }
            if (kFetches) {
              Fetch(mine, slot, low + (row + kAhead < there ? row + kAhead : there - 1));
            }
            add(mine, weights, sums);
          });
          CONVGRAD_ROLLED
          for (int mark = 0; mark < marks; ++mark) finish();
        }
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
      Write();
    }
  }

  // Writes what the threads have in `sum` for the row of y that is next.
  CONVGRAD_DEVICE void Write() {
    if constexpr (kStrip) {
      Sum* const sums = strip_sums + parity * tiling.lines * tiling.strip_pitch;
      // The other half is written next: those who read this one have met once more before its turn.
      parity ^= 1;
      MeetInLine([&](int thread) {
        State& mine = StateOf(thread);
        if (mine.line >= tiling.lines) return;
        Sum* const line = sums + mine.line * tiling.strip_pitch;
        if constexpr (kPairs) {
          WriteSums(mine, line);
        } else {
          Sum* const even = line + StripPlace(mine.lane, 0);
          CONVGRAD_UNROLL
          for (int i = 0; i < kVector; ++i) {
            if constexpr (kStaged) {
              (i % 2 == 0 ? even : even - OddHalf(mine.lane) * 32)[i * 16] = mine.sum[i];
            } else {
              line[StripPlace(mine.lane, i)] = mine.sum[i];
            }
          }
        }
      });
      ForEachThread<false>(tiling.threads, [&](int thread) {
        if constexpr (kPairs) {
          WritePair(StateOf(thread), sums);
        } else {
          WriteStrip(StateOf(thread), sums);
        }
      });
    } else if constexpr (kShifted) {
      WriteShifted();
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

  CONVGRAD_DEVICE T* NextRow(State& mine) const {
    T* const row = mine.y;
    mine.y = Opaque(row + task.y_walk);
    return row;
  }

  CONVGRAD_DEVICE void WriteStrip(State& mine, const Sum* sums) const {
    T* const to = NextRow(mine);
    const Sum* const line = sums + mine.line * tiling.strip_pitch;
    if (form.inner == 1) {
      WriteResults<1>(mine, line, to);
    } else {
      WriteResults<0>(mine, line, to);
    }
  }

  template <int kInner>
  CONVGRAD_DEVICE void WriteResults(const State& mine, const Sum* line, T* to) const {
    CONVGRAD_ROLLED
    for (int result = mine.lane; result < mine.results; result += tiling.line_threads) {
      const int packed = strip_results[result];
      FromSum(StripResult<kInner>(line + (packed & 0xffff),
                                  width_weights + (packed >> 16) * tiling.width_pitch),
              to[result]);
    }
  }

  // One element of y from the sums of its strip. Whole packs of weights first as if none were zero:
  // where that gave no number, once more without those that are.
  template <int kInner>
  CONVGRAD_DEVICE Sum StripResult(const Sum* from, const Sum* weights) const {
    const int inner = kInner > 0 ? kInner : static_cast<int>(form.inner);
    const int taps = static_cast<int>(form.width.taps);
    const Sum* at = from;
    Sum sum = 0;
    int left = taps;
    CONVGRAD_ROLLED
    for (; left >= kSumPack; left -= kSumPack) {
      const auto some = Load<Sum, kSumPack>(weights);
      weights += kSumPack;
      CONVGRAD_UNROLL
      for (int i = 0; i < kSumPack; ++i) sum += some.at[i] * at[i * inner];
      at += kSumPack * inner;
    }
    if (!(sum == sum)) {
      weights -= taps - left;
      left = taps;
      sum = 0;
      at = from;
    }
    CONVGRAD_ROLLED
    for (; left > 0; left -= kSumPack) {
      const auto some = Load<Sum, kSumPack>(weights);
      weights += kSumPack;
      CONVGRAD_UNROLL
      for (int i = 0; i < kSumPack; ++i) {
        if (some.at[i] != Sum(0)) sum += some.at[i] * at[i * inner];
      }
      at += kSumPack * inner;
    }
    return sum;
  }

  // A thread's elements of a row that is done, each channel's side by side.
  CONVGRAD_DEVICE void WriteSums(const State& mine, Sum* line) const {
    if (form.inner == 1) {
      StoreSums<false>(mine.sum, line + mine.places[0]);
      return;
    }
    CONVGRAD_UNROLL
    for (int i = 0; i < kVector; ++i) line[mine.places[i]] = mine.sum[i];
  }

  // Two columns of y from one window. Sums are formed as those of WriteResults are.
  CONVGRAD_DEVICE void WritePair(State& mine, const Sum* sums) const {
    T* const to = NextRow(mine) + mine.pair_to;
    if (mine.results == 0 || mine.pair_columns == 0) return;
    const Sum* const from = sums + mine.line * tiling.strip_pitch + mine.pair_from;
    Sum results[2] = {};
    CONVGRAD_UNROLL
    for (int first = 0; first < kTaps; first += kSumPack) {
      const auto some = Load<Sum, kSumPack>(from + first);
      CONVGRAD_UNROLL
      for (int k = 0; k < 2; ++k) {
        CONVGRAD_UNROLL
        for (int i = 0; i < kSumPack; ++i) {
          results[k] += mine.pair_weights[k][first + i] * some.at[i];
        }
      }
    }
    CONVGRAD_UNROLL
    for (int k = 0; k < 2; ++k) {
      if (results[k] == results[k]) continue;
      results[k] = 0;
      CONVGRAD_UNROLL
      for (int t = 0; t < kTaps; ++t) {
        if (mine.pair_weights[k][t] != Sum(0)) results[k] += mine.pair_weights[k][t] * from[t];
      }
    }
    FromSum(results[0], to[0]);
    if (mine.pair_columns == 2) FromSum(results[1], to[form.inner]);
  }

  // Vectors as y is aligned: each begins in the vector of the thread in front.
  CONVGRAD_DEVICE void WriteShifted() {
    ForEachThread<false>(tiling.threads, [&](int thread) {
      State& mine = StateOf(thread);
      T values[kVector];
      PackSums(mine.sum, values);
      memcpy(mine.words, values, sizeof(values));
    });
    ForEachThread<false>(tiling.threads, [&](int thread) {
      State& mine = StateOf(thread);
      const uintptr_t at = reinterpret_cast<uintptr_t>(NextRow(mine));
      const uint32_t shift = static_cast<uint32_t>(at) & 15;
      uint32_t words[kWords];
#ifdef __CUDA_ARCH__
      uint32_t both[2 * kWords];
      CONVGRAD_UNROLL
      for (int i = 0; i < kWords; ++i) {
        both[i] = __shfl_up_sync(0xffffffffu, mine.words[i], 1);
        both[kWords + i] = mine.words[i];
      }
      const uint32_t from = 16 - shift;
      CONVGRAD_UNROLL
      for (int i = 0; i < 6; ++i) both[i] = (from & 8) != 0 ? both[i + 2] : both[i];
      CONVGRAD_UNROLL
      for (int i = 0; i < 5; ++i) both[i] = (from & 4) != 0 ? both[i + 1] : both[i];
      CONVGRAD_UNROLL
      for (int i = 0; i < kWords; ++i) {
        words[i] = shift == 0      ? mine.words[i]
                   : sizeof(T) < 4 ? __funnelshift_r(both[i], both[i + 1], (from & 2) * 8)
                                   : both[i];
      }
#else
      char both[2 * 16];
      memcpy(both, StateOf(thread > 0 ? thread - 1 : 0).words, 16);
      memcpy(both + 16, mine.words, 16);
      memcpy(words, both + 16 - shift, 16);
#endif
      // The first of these elements, counted in the line: some may lie in front of it or behind.
      const int first = mine.first - static_cast<int>(shift / sizeof(T));
      if (mine.owned == 0) return;
      if (first >= 0 && first + kVector <= mine.owned) {
        WriteWords(words, reinterpret_cast<T*>(at - shift));
        return;
      }
      T values[kVector];
      memcpy(values, words, sizeof(values));
      CONVGRAD_UNROLL
      for (int i = 0; i < kVector; ++i) {
        if (first + i >= 0 && first + i < mine.owned) {
          reinterpret_cast<T*>(at - shift)[i] = values[i];
        }
      }
    });
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
      for (int64_t at = 0; at < rows; ++at) {
        const int64_t row = first_row + at;
        const int64_t column = kStrip    ? first_column
                               : kWindow ? mine.offsets[0] / (kWindow ? kStep : 1)
                               : kSpread ? mine.offsets[0] * int64_t{kStep}
                                         : 0;
        const int element = kStagedElements ? mine.first : 0;
        const int first = kStrip ? mine.lane : 0;
        const int step = kStrip || !kWritesVectors ? tiling.line_threads : 1;
        const int end = kStrip                               ? mine.results
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

  // A phase after which the threads of each line meet.
  template <typename Body>
  CONVGRAD_DEVICE void MeetInLine(const Body& body) const {
    ForEachThread<false>(tiling.threads, body);
#ifdef __CUDA_ARCH__
    if (line_in_warp) {
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
