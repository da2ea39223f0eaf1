// The kernel of resample: one tile of y per block.
//
// A group is kRows neighbouring output rows (times kPlanes output planes where the depth is
// resampled). A block
//   1. walks over the rows of x that its groups read, from memory straight into registers: each
//      thread owns a vector of x's columns and channels, and adds it, times its weight, to the sums
//      of all rows of the group at once, so that a row is read once for all of them;
//   2. leaves these sums in shared memory;
//   3. combines their columns into y.
// So x is read about once (neighbouring tiles share a few rows and columns, which the caches hold)
// and y written once, each element by one thread and in one order: rows of x, then columns,
// upwards.
//
// Weights of zero add nothing, also where x is not finite.
//
// The tables lie on the device and cannot be checked; starts are clamped, so that whatever they
// are, nothing outside x is read. A tile whose columns read more of x than its buffer holds, which
// no band with evenly spaced starts does, is worked off in narrower strips.
//
// Threads meet between phases only, and keep nothing from one to the next: see ForEachThread.

#ifndef JAX_CONVGRAD_CUDA_RESAMPLE_TILE_CUH_
#define JAX_CONVGRAD_CUDA_RESAMPLE_TILE_CUH_

#include <cstdint>
#include <cstring>

#include "common/resample_form.h"
#include "cuda/resample_tiling.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define CONVGRAD_DEVICE __device__ __forceinline__
#define CONVGRAD_UNROLL _Pragma("unroll")
#else
#define CONVGRAD_DEVICE inline
#define CONVGRAD_UNROLL
#endif

namespace jax_convgrad {

struct ResampleTask {
  ResampleForm form;
  ResampleTiling tiling;
  const void* x;
  void* y;
};

namespace resample_tile {

// Runs body(thread) for every thread of the block, and waits for all. On the host, where the kernel
// is tested, the threads of a phase run one after another.
template <typename Body>
CONVGRAD_DEVICE void ForEachThread(int threads, const Body& body) {
#ifdef __CUDA_ARCH__
  (void)threads;
  body(static_cast<int>(threadIdx.x));
  __syncthreads();
#else
  for (int thread = threads; thread-- > 0;) body(thread);
#endif
}

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

CONVGRAD_DEVICE float ToSum(float value) { return value; }
CONVGRAD_DEVICE double ToSum(double value) { return value; }
CONVGRAD_DEVICE void FromSum(float sum, float& value) { value = sum; }
CONVGRAD_DEVICE void FromSum(double sum, double& value) { value = sum; }

#ifdef __CUDACC__
CONVGRAD_DEVICE float ToSum(Half value) { return __half2float(__ushort_as_half(value.bits)); }
CONVGRAD_DEVICE float ToSum(BFloat16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
CONVGRAD_DEVICE void FromSum(float sum, Half& value) {
  value.bits = __half_as_ushort(__float2half_rn(sum));
}
CONVGRAD_DEVICE void FromSum(float sum, BFloat16& value) {
  value.bits = __bfloat16_as_ushort(__float2bfloat16_rn(sum));
}
#else
// The host's versions belong to the test that needs them.
float ToSum(Half value);
float ToSum(BFloat16 value);
void FromSum(float sum, Half& value);
void FromSum(float sum, BFloat16& value);
#endif

template <typename T>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<double> {
  using Type = double;
};

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T at[kCount];
};

// One access of the whole vector. `from` is aligned to it.
template <typename T, int kCount>
CONVGRAD_DEVICE Vector<T, kCount> Load(const T* from) {
  return *reinterpret_cast<const Vector<T, kCount>*>(from);
}

// The same of memory that the kernel does not write.
template <typename T, int kCount>
CONVGRAD_DEVICE Vector<T, kCount> LoadConstant(const T* from) {
#ifdef __CUDA_ARCH__
  Vector<T, kCount> to;
  constexpr int kBytes = sizeof(to);
  if constexpr (kBytes == 16) {
    const uint4 bits = __ldg(reinterpret_cast<const uint4*>(from));
    memcpy(&to, &bits, sizeof(to));
  } else if constexpr (kBytes == 8) {
    const uint2 bits = __ldg(reinterpret_cast<const uint2*>(from));
    memcpy(&to, &bits, sizeof(to));
  } else if constexpr (kBytes == 4) {
    const unsigned int bits = __ldg(reinterpret_cast<const unsigned int*>(from));
    memcpy(&to, &bits, sizeof(to));
  } else {
    static_assert(kBytes == 2, "no such load");
    const unsigned short bits = __ldg(reinterpret_cast<const unsigned short*>(from));
    memcpy(&to, &bits, sizeof(to));
  }
  return to;
#else
  return Load<T, kCount>(from);
#endif
}

CONVGRAD_DEVICE int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

CONVGRAD_DEVICE int ClampedStart(const ResampleAxis& axis, int64_t out) {
  const int64_t start = axis.start[out], last = axis.in - axis.taps;
  return static_cast<int>(start < 0 ? 0 : start > last ? last : start);
}

template <int kPlanes, int kRows>
struct Group {
  int64_t x, y;                  // offsets of its batch
  int64_t out_plane, out_row;    // of the first
  int rows_there, planes_there;  // of y; none for a group beyond the last
  int first_row, rows;           // of x
  int first_plane, planes;
  int starts[kRows];
  int plane_starts[kPlanes];
};

// kAhead: rows of x that a thread has in flight.
template <typename T, int kVector, int kParts, int kOutVector, int kPlanes, int kRows,
          int kAhead = 4>
struct Kernel {
  using Sum = typename SumOf<T>::Type;
  using GroupT = Group<kPlanes, kRows>;
  // Scalar reads of a column's neighbours are strided; skewed, they fall into different banks.
  static constexpr bool kSkewed = kOutVector == 1;
  static constexpr int kRowBlock = 4;  // rows of y that a thread makes at once
  static_assert(sizeof(GroupT) <= kMostResampleGroupBytes, "shared memory is set aside for less");
  static_assert(kRows % kRowBlock == 0, "a block of rows lies in one group");

  const ResampleTask& task;
  const ResampleForm& form;
  const ResampleTiling& tiling;
  Sum* const sums;           // [groups, kPlanes, kRows, row_elements]
  Sum* const table;          // [groups, table_rows, kRows], weights of the rows of x
  Sum* const width_weights;  // [taps, columns]
  int* const width_starts;
  GroupT* const groups;
  int* const flags;  // 0: whether some strip does not fit; 1, 2: first and last column of one

  int channels, columns, taps;
  int64_t first_channel, first_column;

  CONVGRAD_DEVICE Kernel(const ResampleTask& the_task, char* shared)
      : task(the_task),
        form(the_task.form),
        tiling(the_task.tiling),
        sums(reinterpret_cast<Sum*>(shared)),
        table(reinterpret_cast<Sum*>(shared + tiling.table_at)),
        width_weights(reinterpret_cast<Sum*>(shared + tiling.width_weights_at)),
        width_starts(reinterpret_cast<int*>(shared + tiling.width_starts_at)),
        groups(reinterpret_cast<GroupT*>(shared + tiling.groups_at)),
        flags(reinterpret_cast<int*>(shared + tiling.flags_at)) {}

  CONVGRAD_DEVICE static int Skew(int at) { return kSkewed ? at + (at >> 5) : at; }

  CONVGRAD_DEVICE void Run(int64_t block) {
    first_channel = block % tiling.chunks * tiling.channels;
    block /= tiling.chunks;
    first_column = block % tiling.strips * tiling.columns;
    const int64_t first_group = block / tiling.strips * tiling.groups;
    channels = static_cast<int>(Least(tiling.channels, form.inner - first_channel));
    columns = static_cast<int>(Least(tiling.columns, form.width.out - first_column));
    taps = form.width.resampled ? static_cast<int>(form.width.taps) : 1;

    ForEachThread(tiling.threads, [&](int thread) {
      if (thread == 0) flags[0] = 0;
      for (int g = thread; g < tiling.groups; g += tiling.threads) {
        MakeGroup(first_group + g, groups[g]);
      }
      LoadWidthTable(thread);
    });
    int most_rows = 0;
    for (int g = 0; g < tiling.groups; ++g) {
      if (groups[g].rows > most_rows) most_rows = groups[g].rows;
    }
    // Starts are usually in order, and the first and the last say what the strip reads.
    const int low = width_starts[0], high = width_starts[columns - 1] + taps;
    ForEachThread(tiling.threads, [&](int thread) {
      if (thread == 0 && (high < low || high - low > tiling.span)) flags[0] = 1;
      for (int j = thread; j < columns; j += tiling.threads) {
        if (width_starts[j] < low || width_starts[j] + taps > high) flags[0] = 1;
      }
      MakeTable(thread, 0);
    });
    if (flags[0] == 0) {
      Strip(0, columns, low, high, most_rows, true);
      return;
    }
    const int step = FittingStep();
    for (int j = 0; j < columns; j += step) {
      const int count = static_cast<int>(Least(step, columns - j));
      ForEachThread(tiling.threads, [&](int thread) {
        if (thread == 0) Range(j, count, flags[1], flags[2]);
      });
      Strip(j, count, flags[1], flags[2], most_rows, false);
    }
  }

 private:
  // Where a group of output rows is, and what it reads.
  CONVGRAD_DEVICE void MakeGroup(int64_t index, GroupT& group) {
    group.rows = group.planes = group.rows_there = group.planes_there = 0;
    const int64_t row_group = index % tiling.group_rows;
    index /= tiling.group_rows;
    const int64_t plane_group = index % tiling.group_planes;
    index /= tiling.group_planes;
    const int64_t b2 = index % form.batch[2];
    index /= form.batch[2];
    const int64_t b1 = index % form.batch[1], b0 = index / form.batch[1];
    if (b0 >= form.batch[0]) return;
    group.x = b0 * form.x_batch[0] + b1 * form.x_batch[1] + b2 * form.x_batch[2];
    group.y = b0 * form.y_batch[0] + b1 * form.y_batch[1] + b2 * form.y_batch[2];
    group.out_row = row_group * kRows;
    group.out_plane = plane_group * kPlanes;
    group.rows_there = static_cast<int>(Least(kRows, form.height.out - group.out_row));
    group.planes_there = static_cast<int>(Least(kPlanes, form.depth.out - group.out_plane));
    if (form.height.resampled) {
      Window(form.height, group.out_row, group.rows_there, group.starts, group.first_row,
             group.rows);
    } else {
      group.rows = group.rows_there;  // read where they are
    }
    if constexpr (kPlanes > 1) {
      Window(form.depth, group.out_plane, group.planes_there, group.plane_starts, group.first_plane,
             group.planes);
    }
  }

  // The elements that `count` neighbouring outputs read between them.
  CONVGRAD_DEVICE static void Window(const ResampleAxis& axis, int64_t out, int count, int* starts,
                                     int& first, int& size) {
    int low = ClampedStart(axis, out), high = low;
    starts[0] = low;
    for (int i = 1; i < count; ++i) {
      const int start = ClampedStart(axis, out + i);
      starts[i] = start;
      if (start < low) low = start;
      if (start > high) high = start;
    }
    first = low;
    size = high - low + static_cast<int>(axis.taps);
  }

  CONVGRAD_DEVICE void LoadWidthTable(int thread) {
    if (!form.width.resampled) {
      if (thread == 0) {
        width_starts[0] = 0;
        width_weights[0] = 1;
      }
      return;
    }
    for (int j = thread; j < columns; j += tiling.threads) {
      width_starts[j] = ClampedStart(form.width, first_column + j);
    }
    const Sum* const weights = static_cast<const Sum*>(form.width.weights) + first_column * taps;
    for (int at = thread; at < columns * taps; at += tiling.threads) {
      width_weights[at % taps * tiling.columns + at / taps] = weights[at];
    }
  }

  // Weights of `table_rows` rows of x, from row `base` of each group's window, for each of its
  // output rows.
  CONVGRAD_DEVICE void MakeTable(int thread, int base) {
    if (!form.height.resampled) return;
    const int height_taps = static_cast<int>(form.height.taps);
    const int size = tiling.table_rows * kRows;
    for (int at = thread; at < tiling.groups * size; at += tiling.threads) {
      const GroupT& group = groups[at / size];
      const int out = at % kRows, row = base + at % size / kRows;
      if (row >= group.rows) continue;
      Sum weight = 0;
      if (out < group.rows_there) {
        const int tap = group.first_row + row - group.starts[out];
        if (tap >= 0 && tap < height_taps) {
          weight = static_cast<const Sum*>(
              form.height.weights)[(group.out_row + out) * height_taps + tap];
        }
      }
      table[at] = weight;
    }
  }

  CONVGRAD_DEVICE void Range(int first, int count, int& low, int& high) const {
    low = high = width_starts[first];
    for (int j = first + 1; j < first + count; ++j) {
      if (width_starts[j] < low) low = width_starts[j];
      if (width_starts[j] > high) high = width_starts[j];
    }
    high += taps;
  }

  // The most columns, by halving, such that every strip of as many fits the buffer. One does.
  CONVGRAD_DEVICE int FittingStep() {
    int step = columns;
    while (step > 1) {
      step = (step + 1) / 2;
      ForEachThread(tiling.threads, [](int) {});  // all have read the flag
      ForEachThread(tiling.threads, [&](int thread) {
        if (thread == 0) flags[0] = 0;
      });
      ForEachThread(tiling.threads, [&](int thread) {
        for (int j = thread * step; j < columns; j += tiling.threads * step) {
          int low, high;
          Range(j, static_cast<int>(Least(step, columns - j)), low, high);
          if (high - low > tiling.span) flags[0] = 1;
        }
      });
      if (flags[0] == 0) break;
    }
    return step;
  }

  // Columns [first, first + count) of the tile, which read columns [low, high) of x.
  CONVGRAD_DEVICE void Strip(int first, int count, int low, int high, int most_rows,
                             bool has_table) {
    // The whole inner run: rows of x are contiguous, and vectors may begin between two columns.
    const bool whole = tiling.channels == form.inner;
    const int64_t begin = whole ? low * form.inner / kVector * kVector : 0;
    const int per_column = channels / kVector;
    const int vectors = whole
                            ? static_cast<int>((high * form.inner - begin + kVector - 1) / kVector)
                            : (high - low) * per_column;
    // Where column `low` begins in the rows of the sums.
    const int shift = whole ? static_cast<int>(low * form.inner - begin) : 0;

    for (int done = 0; done < most_rows; done += tiling.table_rows) {
      if (done > 0 || !has_table) {
        ForEachThread(tiling.threads, [&](int thread) { MakeTable(thread, done); });
      }
      ForEachThread(tiling.threads, [&](int thread) {
        const int items = (vectors + kParts - 1) / kParts;
        for (int item = thread; item < tiling.groups * items; item += tiling.threads) {
          const int group = item / items, part = item % items;
          int64_t offsets[kParts];
          CONVGRAD_UNROLL
          for (int u = 0; u < kParts; ++u) {
            int vector = part + u * items;
            if (vector >= vectors) vector = vectors - 1;  // read for nothing, not kept
            offsets[u] = whole ? begin + static_cast<int64_t>(vector) * kVector
                               : (low + vector / per_column) * form.inner + first_channel +
                                     vector % per_column * kVector;
          }
          AddRows(group, done, part, items, vectors, offsets);
        }
      });
    }
    ForEachThread(tiling.threads, [&](int thread) {
      const int elements = count * channels / kOutVector;
      const int blocks = tiling.groups * (kPlanes * kRows / kRowBlock);
      for (int item = thread; item < blocks * elements; item += tiling.threads) {
        const int at = item % elements * kOutVector;
        const int column = first + at / channels, channel = at % channels;
        WriteRows(item / elements * kRowBlock, column, channel,
                  (width_starts[column] - low) * channels + channel + shift);
      }
    });
  }

  CONVGRAD_DEVICE Sum* SumsOf(int row) const {
    return sums + static_cast<int64_t>(row) * tiling.row_elements;
  }

  // Adds what the rows of x from `done` on give to the sums of a group.
  CONVGRAD_DEVICE void AddRows(int group_index, int done, int part, int items, int vectors,
                               const int64_t (&offsets)[kParts]) {
    const GroupT& group = groups[group_index];
    const int rows = group.rows - done < tiling.table_rows ? group.rows - done : tiling.table_rows;
    if (rows <= 0) return;
    constexpr int kWidth = kParts * kVector;
    Sum acc[kPlanes][kRows][kWidth];
    CONVGRAD_UNROLL
    for (int k = 0; k < kPlanes; ++k) {
      CONVGRAD_UNROLL
      for (int g = 0; g < kRows; ++g) {
        const Sum* const kept = SumsOf((group_index * kPlanes + k) * kRows + g);
        CONVGRAD_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          const int vector = part + i / kVector * items;
          acc[k][g][i] =
              done == 0 || vector >= vectors ? Sum(0) : kept[Skew(vector * kVector + i % kVector)];
        }
      }
    }

    const T* const x = static_cast<const T*>(task.x) + group.x;
    const Sum* const weights =
        table + static_cast<int64_t>(group_index) * tiling.table_rows * kRows;
    if constexpr (kPlanes > 1) {
      const int64_t depth_taps = form.depth.taps;
      for (int p = 0; p < group.planes; ++p) {
        const int plane = group.first_plane + p;
        Sum plane_sums[kRows][kWidth] = {};
        AddPlane(x + plane * form.x_plane + (group.first_row + done) * form.x_row, weights, rows,
                 offsets, plane_sums);
        CONVGRAD_UNROLL
        for (int k = 0; k < kPlanes; ++k) {
          if (k >= group.planes_there) break;
          const int64_t tap = plane - group.plane_starts[k];
          if (tap < 0 || tap >= depth_taps) continue;
          const Sum weight =
              static_cast<const Sum*>(form.depth.weights)[(group.out_plane + k) * depth_taps + tap];
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

    CONVGRAD_UNROLL
    for (int k = 0; k < kPlanes; ++k) {
      CONVGRAD_UNROLL
      for (int g = 0; g < kRows; ++g) {
        Sum* const kept = SumsOf((group_index * kPlanes + k) * kRows + g);
        CONVGRAD_UNROLL
        for (int u = 0; u < kParts; ++u) {
          const int vector = part + u * items;
          if (vector >= vectors) break;
          CONVGRAD_UNROLL
          for (int i = 0; i < kVector; ++i) {
            kept[Skew(vector * kVector + i)] = acc[k][g][u * kVector + i];
          }
        }
      }
    }
  }

  // acc[g] += weights[r][g] * row r of x, for rows in order.
  CONVGRAD_DEVICE void AddPlane(const T* x, const Sum* weights, int rows,
                                const int64_t (&offsets)[kParts],
                                Sum (&acc)[kRows][kParts * kVector]) const {
    int row = 0;
    for (; row + kAhead <= rows; row += kAhead) {
      Vector<T, kVector> ahead[kAhead][kParts];
      CONVGRAD_UNROLL
      for (int r = 0; r < kAhead; ++r) {
        CONVGRAD_UNROLL
        for (int u = 0; u < kParts; ++u) {
          ahead[r][u] = LoadConstant<T, kVector>(x + r * form.x_row + offsets[u]);
        }
      }
      CONVGRAD_UNROLL
      for (int r = 0; r < kAhead; ++r) AddRow(ahead[r], weights + r * kRows, acc);
      x += kAhead * form.x_row;
      weights += kAhead * kRows;
    }
    for (; row < rows; ++row) {
      Vector<T, kVector> vectors[kParts];
      CONVGRAD_UNROLL
      for (int u = 0; u < kParts; ++u) vectors[u] = LoadConstant<T, kVector>(x + offsets[u]);
      AddRow(vectors, weights, acc);
      x += form.x_row;
      weights += kRows;
    }
  }

  CONVGRAD_DEVICE static void AddRow(const Vector<T, kVector> (&vectors)[kParts],
                                     const Sum* weights, Sum (&acc)[kRows][kParts * kVector]) {
    Sum values[kParts * kVector];
    CONVGRAD_UNROLL
    for (int i = 0; i < kParts * kVector; ++i) {
      values[i] = ToSum(vectors[i / kVector].at[i % kVector]);
    }
    constexpr int kStep = 16 / sizeof(Sum);
    CONVGRAD_UNROLL
    for (int first = 0; first < kRows; first += kStep) {
      const auto four = Load<Sum, kStep>(weights + first);
      CONVGRAD_UNROLL
      for (int g = 0; g < kStep; ++g) {
        if (four.at[g] == Sum(0)) continue;
        CONVGRAD_UNROLL
        for (int i = 0; i < kParts * kVector; ++i) acc[first + g][i] += four.at[g] * values[i];
      }
    }
  }

  // kRowBlock rows of y from row `row` of the sums on: one column, kOutVector channels. Its first
  // tap is at `at` in the sums.
  CONVGRAD_DEVICE void WriteRows(int row, int column, int channel, int at) const {
    const int group_rows = row / kRows;
    const GroupT& group = groups[group_rows / kPlanes];
    const int plane = group_rows % kPlanes, first = row % kRows;
    if (plane >= group.planes_there || first >= group.rows_there) return;
    Sum acc[kRowBlock][kOutVector] = {};
    const Sum* const from = SumsOf(row);
    const Sum* weight_of = width_weights + column;
    for (int tap = 0; tap < taps; ++tap, at += channels, weight_of += tiling.columns) {
      const Sum weight = *weight_of;
      if (weight == Sum(0)) continue;
      CONVGRAD_UNROLL
      for (int g = 0; g < kRowBlock; ++g) {
        const auto values = Load<Sum, kOutVector>(from + g * tiling.row_elements + Skew(at));
        CONVGRAD_UNROLL
        for (int i = 0; i < kOutVector; ++i) acc[g][i] += weight * values.at[i];
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
    int64_t index = element;
    const auto next = [&index](int64_t size) {
      const int64_t at = index % size;
      index /= size;
      return at;
    };
    const int64_t channel = next(form.inner), column = next(form.width.out);
    const int64_t row = next(form.height.out), plane = next(form.depth.out);
    const int64_t b2 = next(form.batch[2]), b1 = next(form.batch[1]), b0 = index;
    const Axis depth(form.depth, plane), height(form.height, row), width(form.width, column);
    const T* const x = static_cast<const T*>(task.x) + b0 * form.x_batch[0] + b1 * form.x_batch[1] +
                       b2 * form.x_batch[2] + channel;
    ForEachThread(threads, [&](int thread) {
      Sum sum = 0;
      for (int64_t p = 0; p < depth.taps; ++p) {
        for (int64_t q = 0; q < height.taps; ++q) {
          const Sum outer = depth.Weight(p) * height.Weight(q);
          if (outer == Sum(0)) continue;
          const T* const line =
              x + (depth.start + p) * form.x_plane + (height.start + q) * form.x_row;
          for (int64_t r = thread; r < width.taps; r += threads) {
            const Sum weight = width.Weight(r);
            if (weight == Sum(0)) continue;
            sum += outer * weight * ToSum(line[(width.start + r) * form.inner]);
          }
        }
      }
      partial[thread] = sum;
    });
    ForEachThread(threads, [&](int thread) {
      if (thread != 0) return;
      Sum sum = 0;
      for (int i = 0; i < threads; ++i) sum += partial[i];
      FromSum(sum,
              static_cast<T*>(
                  task.y)[b0 * form.y_batch[0] + b1 * form.y_batch[1] + b2 * form.y_batch[2] +
                          plane * form.y_plane + row * form.y_row + column * form.inner + channel]);
    });
  }

 private:
  // What one output reads along one axis.
  struct Axis {
    int64_t start, taps;
    const Sum* weights;  // null: one weight of 1

    CONVGRAD_DEVICE Axis(const ResampleAxis& axis, int64_t out)
        : start(axis.resampled ? ClampedStart(axis, out) : out),
          taps(axis.resampled ? axis.taps : 1),
          weights(axis.resampled ? static_cast<const Sum*>(axis.weights) + out * axis.taps
                                 : nullptr) {}

    CONVGRAD_DEVICE Sum Weight(int64_t tap) const {
      return weights == nullptr ? Sum(1) : weights[tap];
    }
  };
};

}  // namespace resample_tile
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_RESAMPLE_TILE_CUH_
