// The kernel for results that are smaller than x, such as the gradient of an upsampling: rows
// first.
//
// A group is kRows neighbouring output rows (times kPlanes output planes where the depth is
// resampled). A block
//   1. walks over the rows of x that its groups read, from memory straight into registers: each
//      thread owns a vector of a row, and adds it, times its weight, to the sums of all rows of the
//      group at once, so that a row is read once for all of them;
//   2. leaves these sums in shared memory;
//   3. combines their columns into y.
// So x is read about once (neighbouring groups share some rows, which the caches hold) and y
// written once, each element by one thread and in one order: rows of x, then columns, upwards.

#ifndef JAX_CONVGRAD_CUDA_RESAMPLE_SHRINK_CUH_
#define JAX_CONVGRAD_CUDA_RESAMPLE_SHRINK_CUH_

#include <cstdint>

#include "cuda/resample_elements.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <int kPlanes, int kRows>
struct Group {
  int64_t x, y;                  // of its batch
  int64_t out_plane, out_row;    // the first
  int rows_there, planes_there;  // of y; none for a group beyond the last
  int first_row, rows;           // of x
  int first_plane, planes;
  int starts[kRows];
  int plane_starts[kPlanes];
  bool direct;  // computed from x directly: there is no room for what its rows read
};

// kVector elements of x are read at once, kParts such vectors by a thread; kAhead rows are in
// flight. kOutVector elements of y are written at once: more than one where the inner run is long.
template <typename T, int kVector, int kParts, int kOutVector, int kPlanes, int kRows,
          int kAhead = 4>
struct Shrink {
  using Sum = typename SumOf<T>::Type;
  using GroupT = Group<kPlanes, kRows>;
  static constexpr int kWidth = kParts * kVector;
  // Of 256 threads, on a multiprocessor.
  static constexpr int kSumRegisters =
      (kPlanes + (kPlanes > 1)) * kRows * kWidth * static_cast<int>(sizeof(Sum) / 4);
  static constexpr int kBlocks = kSumRegisters > 48 ? 2 : 3;
  // Where the columns are combined one by one, the sums of several rows lie side by side, to be
  // fetched together: [rows / kPack][row_elements][kPack]. Otherwise kPack is 1.
  static constexpr int kMostPack = 16 / sizeof(Sum);
  static constexpr int kPack = kOutVector > 1 ? 1 : kRows < kMostPack ? kRows : kMostPack;
  static constexpr int kRowBlock = kRows < 4 ? kRows : 4;  // rows of y that a thread makes at once
  static_assert(sizeof(GroupT) <= kMostResampleGroupBytes, "shared memory is set aside for less");

  const ResampleTask& task;
  const ResampleForm& form;
  const ResampleTiling& tiling;
  Sum* const sums;
  Sum* const table;          // [groups, table_rows, kRows], weights of the rows of x
  Sum* const width_weights;  // [taps, columns]
  int* const width_starts;
  GroupT* const groups;

  CONVGRAD_DEVICE Shrink(const ResampleTask& the_task, char* shared)
      : task(the_task),
        form(the_task.form),
        tiling(the_task.tiling),
        sums(reinterpret_cast<Sum*>(shared)),
        table(reinterpret_cast<Sum*>(shared + tiling.table_at)),
        width_weights(reinterpret_cast<Sum*>(shared + tiling.width_weights_at)),
        width_starts(reinterpret_cast<int*>(shared + tiling.width_starts_at)),
        groups(reinterpret_cast<GroupT*>(shared + tiling.groups_at)) {}

  CONVGRAD_DEVICE void Run(uint32_t block) {
    Digits digits{block};
    const int64_t first_channel = int64_t{digits.Next(tiling.chunks)} * tiling.channels;
    const int64_t first_column = int64_t{digits.Next(tiling.strips)} * tiling.columns;
    const uint32_t first_group = digits.rest * static_cast<uint32_t>(tiling.groups);
    const int channels = static_cast<int>(Least(tiling.channels, form.inner - first_channel));
    const int columns = static_cast<int>(Least(tiling.columns, form.width.out - first_column));
    const Window window(form.width, first_column, columns, tiling.span);
    const RowRun run(task, window, channels, kVector);

    ForEachThread(tiling.threads, [&](int thread) {
      for (int g = thread; g < tiling.groups; g += tiling.threads) {
        MakeGroup(first_group + static_cast<uint32_t>(g), groups[g]);
      }
      LoadWidthTable(task, first_column, columns, width_weights, width_starts, thread);
    });
    int most_rows = 0;
    for (int g = 0; g < tiling.groups; ++g) most_rows = Most(most_rows, groups[g].rows);
    for (int done = 0; done < most_rows; done += tiling.table_rows) {
      if (form.height.resampled) {
        ForEachThread(tiling.threads, [&](int thread) { MakeTable(thread, done, tiling.groups); });
      }
      ForEachThread(tiling.threads, [&](int thread) {
        const int items = (run.vectors + kParts - 1) / kParts;
        for (int item = thread; item < tiling.groups * items; item += tiling.threads) {
          const int part = item % items;
          int64_t offsets[kParts];
          CONVGRAD_UNROLL
          for (int u = 0; u < kParts; ++u) {
            int vector = part + u * items;
            if (vector >= run.vectors) vector = run.vectors - 1;  // read for nothing, not kept
            offsets[u] = run.Offset(form.inner, first_channel, vector, kVector);
          }
          AddRows(item / items, done, part, items, run.vectors, offsets);
        }
      });
    }
    ForEachThread(tiling.threads, [&](int thread) {
      const int elements = columns * channels / kOutVector;
      const int blocks = tiling.groups * (kPlanes * kRows / kRowBlock);
      for (int item = thread; item < blocks * elements; item += tiling.threads) {
        const int at = item % elements * kOutVector;
        const int row = item / elements * kRowBlock, group_rows = row / kRows;
        Write(groups[group_rows / kPlanes], group_rows % kPlanes, row % kRows, row, window,
              first_column, at / channels, first_channel, at % channels, channels, run.shift);
      }
    });
  }

  // Where a group of output rows is, and what it reads.
  CONVGRAD_DEVICE void MakeGroup(uint32_t index, GroupT& group) {
    group.rows = group.planes = group.rows_there = group.planes_there = 0;
    group.direct = false;
    if (index >= tiling.all_groups) return;
    Digits digits{index};
    group.out_row = int64_t{digits.Next(tiling.group_rows)} * kRows;
    group.out_plane = int64_t{digits.Next(tiling.group_planes)} * kPlanes;
    const BatchAt batch(form, digits);
    group.x = batch.x;
    group.y = batch.y;
    group.rows_there = static_cast<int>(Least(kRows, form.height.out - group.out_row));
    group.planes_there = static_cast<int>(Least(kPlanes, form.depth.out - group.out_plane));
    if (form.height.resampled) {
      Between(form.height, group.out_row, group.rows_there, group.starts, group.first_row,
              group.rows);
    } else {
      group.rows = group.rows_there;  // read where they are
    }
    if constexpr (kPlanes > 1) {
      Between(form.depth, group.out_plane, group.planes_there, group.plane_starts,
              group.first_plane, group.planes);
    }
  }

  // The elements that `count` neighbouring outputs read between them.
  template <int kCount>
  CONVGRAD_DEVICE static void Between(const ResampleAxis& axis, int64_t out, int count,
                                      int (&starts)[kCount], int& first, int& size) {
    int low = 0, high = 0, all[kCount];
    CONVGRAD_UNROLL
    for (int i = 0; i < kCount; ++i) all[i] = ClampedStart(axis, out + (i < count ? i : 0));
    low = high = all[0];
    CONVGRAD_UNROLL
    for (int i = 0; i < kCount; ++i) {
      starts[i] = all[i];
      if (all[i] < low) low = all[i];
      if (all[i] > high) high = all[i];
    }
    first = low;
    size = high - low + static_cast<int>(axis.taps);
  }

  // Weights of `table_rows` rows of x, from row `base` of the windows of the first `count` groups,
  // for each of their output rows.
  CONVGRAD_DEVICE void MakeTable(int thread, int base, int count) {
    const int taps = static_cast<int>(form.height.taps), size = tiling.table_rows * kRows;
    for (int at = thread; at < count * size; at += tiling.threads) {
      const GroupT& group = groups[at / size];
      const int out = at % kRows, row = base + at % size / kRows;
      if (row >= group.rows) continue;
      Sum weight = row == out ? 1 : 0;  // of an axis that is only carried along
      if (form.height.resampled) {
        const int tap = group.first_row + row - group.starts[out];
        weight = out < group.rows_there && tap >= 0 && tap < taps
                     ? WeightAt<Sum>(form.height, group.out_row + out, tap)
                     : Sum(0);
      }
      table[at] = weight;
    }
  }

  // Where element `at` of the sums of row `row` is.
  CONVGRAD_DEVICE Sum* SumAt(int row, int at) const {
    // Skewed, so that reads of every other or every fourth element fall into different banks.
    const int place = kPack == 1 ? at : at + (at >> 3);
    return sums + (static_cast<int64_t>(row / kPack) * tiling.row_elements + place) * kPack +
           row % kPack;
  }

  // Adds what the rows of x from `done` on give to the sums of a group.
  CONVGRAD_DEVICE void AddRows(int group_index, int done, int part, int items, int vectors,
                               const int64_t (&offsets)[kParts]) {
    const GroupT& group = groups[group_index];
    const int rows = group.rows - done < tiling.table_rows ? group.rows - done : tiling.table_rows;
    if (rows <= 0) return;
    Sum acc[kPlanes][kRows][kWidth] = {};
    const int first_row = group_index * (kPlanes * kRows);
    if (done > 0) {
      Visit(first_row, part, items, vectors,
            [&](int k, int g, int i, Sum* kept) { acc[k][g][i] = *kept; });
    }
    const T* const x = static_cast<const T*>(task.x) + group.x;
    const Sum* const weights = table + group_index * tiling.table_rows * kRows;
    if constexpr (kPlanes > 1) {
      const int taps = static_cast<int>(form.depth.taps);
      for (int p = 0; p < group.planes; ++p) {
        const int plane = group.first_plane + p;
        Sum plane_sums[kRows][kWidth] = {};
        AddPlane(x + plane * form.x_plane + (group.first_row + done) * form.x_row, weights, rows,
                 offsets, plane_sums);
        CONVGRAD_UNROLL
        for (int k = 0; k < kPlanes; ++k) {
          if (k >= group.planes_there) break;
          const int tap = plane - group.plane_starts[k];
          if (tap < 0 || tap >= taps) continue;
          const Sum weight = WeightAt<Sum>(form.depth, group.out_plane + k, tap);
          if (weight == Sum(0)) continue;
          CONVGRAD_UNROLL
          for (int g = 0; g < kRows; ++g) {
            CONVGRAD_UNROLL
            for (int i = 0; i < kWidth; ++i) acc[k][g][i] += weight * plane_sums[g][i];
          }
        }
      }
    } else if (form.height.resampled) {
      AddPlane(x + (group.first_row + done) * form.x_row, weights, rows, offsets, acc[0]);
    } else {
      CONVGRAD_UNROLL
      for (int g = 0; g < kRows; ++g) {
        if (g >= rows) break;
        CONVGRAD_UNROLL
        for (int u = 0; u < kParts; ++u) {
          const auto vector =
              LoadConstant<T, kVector>(x + (group.out_row + g) * form.x_row + offsets[u]);
          CONVGRAD_UNROLL
          for (int i = 0; i < kVector; ++i) acc[0][g][u * kVector + i] = ToSum(vector.at[i]);
        }
      }
    }
    KeepSums(first_row, part, items, vectors, acc);
  }

  // Leaves a thread's sums in shared memory, those of a group from row `first_row` on.
  CONVGRAD_DEVICE void KeepSums(int first_row, int part, int items, int vectors,
                                const Sum (&acc)[kPlanes][kRows][kWidth]) const {
    Visit(first_row, part, items, vectors, [&](int k, int g, int i, Sum* kept) {
      if constexpr (kPack > 1) {
        if (g % kPack != 0) return;
        Vector<Sum, kPack> pack;
        CONVGRAD_UNROLL
        for (int r = 0; r < kPack; ++r) pack.at[r] = acc[k][g + r][i];
        *reinterpret_cast<Vector<Sum, kPack>*>(kept) = pack;
      } else {
        *kept = acc[k][g][i];
      }
    });
  }

  // Calls visit(plane, row, element, its sum) for all that a thread has in its hands.
  template <typename Body>
  CONVGRAD_DEVICE void Visit(int first_row, int part, int items, int vectors,
                             const Body& visit) const {
    CONVGRAD_UNROLL
    for (int u = 0; u < kParts; ++u) {
      const int vector = part + u * items;
      if (vector >= vectors) break;
      CONVGRAD_UNROLL
      for (int k = 0; k < kPlanes; ++k) {
        CONVGRAD_UNROLL
        for (int g = 0; g < kRows; ++g) {
          CONVGRAD_UNROLL
          for (int i = 0; i < kVector; ++i) {
            visit(k, g, u * kVector + i, SumAt(first_row + k * kRows + g, vector * kVector + i));
          }
        }
      }
    }
  }

  // acc[g] += weights[r][g] * row r of x, for rows in order. The next rows are on their way while
  // these are added.
  CONVGRAD_DEVICE void AddPlane(const T* x, const Sum* weights, int rows,
                                const int64_t (&offsets)[kParts], Sum (&acc)[kRows][kWidth]) const {
    Vector<T, kVector> ahead[kAhead][kParts];
    Fetch(x, rows, offsets, ahead);
    for (;;) {
      Vector<T, kVector> now[kAhead][kParts];
      CONVGRAD_UNROLL
      for (int r = 0; r < kAhead; ++r) {
        CONVGRAD_UNROLL
        for (int u = 0; u < kParts; ++u) now[r][u] = ahead[r][u];
      }
      x += kAhead * form.x_row;
      if (rows > kAhead) Fetch(x, rows - kAhead, offsets, ahead);
      CONVGRAD_UNROLL
      for (int r = 0; r < kAhead; ++r) {
        if (r < rows) AddRow(now[r], weights + r * kRows, acc);
      }
      if (rows <= kAhead) return;
      rows -= kAhead;
      weights += kAhead * kRows;
    }
  }

  // Up to kAhead rows; of fewer, the last again.
  CONVGRAD_DEVICE void Fetch(const T* x, int rows, const int64_t (&offsets)[kParts],
                             Vector<T, kVector> (&to)[kAhead][kParts]) const {
    CONVGRAD_UNROLL
    for (int r = 0; r < kAhead; ++r) {
      CONVGRAD_UNROLL
      for (int u = 0; u < kParts; ++u) to[r][u] = LoadConstant<T, kVector>(x + offsets[u]);
      if (r + 1 < rows) x += form.x_row;
    }
  }

  CONVGRAD_DEVICE static void AddRow(const Vector<T, kVector> (&vectors)[kParts],
                                     const Sum* weights, Sum (&acc)[kRows][kWidth]) {
    Sum values[kWidth];
    CONVGRAD_UNROLL
    for (int i = 0; i < kWidth; ++i) values[i] = ToSum(vectors[i / kVector].at[i % kVector]);
    constexpr int kStep = kRows < kMostPack ? kRows : kMostPack;
    CONVGRAD_UNROLL
    for (int first = 0; first < kRows; first += kStep) {
      const auto some = Load<Sum, kStep>(weights + first);
      CONVGRAD_UNROLL
      for (int g = 0; g < kStep; ++g) {
        if (some.at[g] == Sum(0)) continue;
        CONVGRAD_UNROLL
        for (int i = 0; i < kWidth; ++i) acc[first + g][i] += some.at[g] * values[i];
      }
    }
  }

  // kRowBlock rows of y, from row `first` of a group's plane on, whose sums begin at row `row`: one
  // column, kOutVector channels.
  CONVGRAD_DEVICE void Write(const GroupT& group, int plane, int first, int row,
                             const Window& window, int64_t first_column, int column,
                             int64_t first_channel, int channel, int channels, int shift) const {
    if (plane >= group.planes_there || first >= group.rows_there) return;
    const int taps = form.width.resampled ? static_cast<int>(form.width.taps) : 1;
    const int start = width_starts[column];
    Sum acc[kRowBlock][kOutVector] = {};
    if (!group.direct && window.Holds(start, taps)) {
      int at = static_cast<int>(start - window.low) * channels + channel + shift;
      const Sum* weight_at = width_weights + column;
      for (int tap = 0; tap < taps; ++tap, at += channels, weight_at += tiling.columns) {
        const Sum weight = *weight_at;
        if (weight == Sum(0)) continue;
        CONVGRAD_UNROLL
        for (int g = 0; g < kRowBlock; g += kPack) {
          const auto some = Load<Sum, kPack * kOutVector>(SumAt(row + g, at));
          CONVGRAD_UNROLL
          for (int i = 0; i < kPack * kOutVector; ++i) {
            acc[g + i % kPack][i / kPack] += weight * some.at[i];
          }
        }
      }
    } else {
      for (int g = 0; g < kRowBlock && first + g < group.rows_there; ++g) {
        for (int i = 0; i < kOutVector; ++i) {
          acc[g][i] = Directly<T>(form, static_cast<const T*>(task.x) + group.x,
                                  group.out_plane + plane, group.out_row + first + g,
                                  first_column + column, first_channel + channel + i);
        }
      }
    }
    T* to = static_cast<T*>(task.y) + group.y + (group.out_plane + plane) * form.y_plane +
            (group.out_row + first) * form.y_row + (first_column + column) * form.inner +
            first_channel + channel;
    CONVGRAD_UNROLL
    for (int g = 0; g < kRowBlock; ++g) {
      if (first + g >= group.rows_there) break;
      Vector<T, kOutVector> values;
      CONVGRAD_UNROLL
      for (int i = 0; i < kOutVector; ++i) FromSum(acc[g][i], values.at[i]);
      *reinterpret_cast<Vector<T, kOutVector>*>(to) = values;
      to += form.y_row;
    }
  }
};

// One element of y per block, for bands too long for a tile. Reads of x are as many as there are
// weights, for each element.
template <typename T>
struct LongBands {
  using Sum = typename SumOf<T>::Type;

  CONVGRAD_DEVICE static void Run(const ResampleTask& task, int64_t element, char* shared) {
    const ResampleForm& form = task.form;
    const int threads = task.tiling.threads;
    Sum* const partial = reinterpret_cast<Sum*>(shared);
    const auto next = [&element](int64_t size) {
      const int64_t at = element % size;
      element /= size;
      return at;
    };
    const int64_t channel = next(form.inner), column = next(form.width.out);
    const int64_t row = next(form.height.out), plane = next(form.depth.out);
    const BatchAt batch(form, Digits{static_cast<uint32_t>(element)});
    ForEachThread(threads, [&](int thread) {
      partial[thread] = Directly<T>(form, static_cast<const T*>(task.x) + batch.x, plane, row,
                                    column, channel, thread, threads);
    });
    ForEachThread(threads, [&](int thread) {
      if (thread != 0) return;
      Sum sum = 0;
      for (int i = 0; i < threads; ++i) sum += partial[i];
      FromSum(sum, static_cast<T*>(task.y)[batch.y + plane * form.y_plane + row * form.y_row +
                                           column * form.inner + channel]);
    });
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_RESAMPLE_SHRINK_CUH_
