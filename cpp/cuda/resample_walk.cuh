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
#include "cuda/resample_lines.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Element, ResampleLoad kLoadKind, bool kIsPacked, bool kGrows, int kRowCount,
          int kTapCount, int kMidCount, int kStepCount = 0>
struct Walk
    : Lines<Element, kLoadKind, kIsPacked, kGrows, kRowCount, kTapCount, kMidCount, kStepCount> {
  using Base =
      Lines<Element, kLoadKind, kIsPacked, kGrows, kRowCount, kTapCount, kMidCount, kStepCount>;
  using Base::ColumnsHere;
  using Base::Combine;
  using Base::Enter;
  using Base::Fetch;
  using Base::first_column;
  using Base::form;
  using Base::kAhead;
  using Base::kAny;
  using Base::kFetches;
  using Base::kGrow;
  using Base::kPacked;
  using Base::kRows;
  using Base::kStep;
  using Base::kStrip;
  using Base::kSumPack;
  using Base::kVector;
  using Base::kWindow;
  using Base::kWritesVectors;
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
  int* const misfit;         // kStrip and kWindow
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
