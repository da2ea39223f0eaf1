// The kernel for results that are larger than x, such as an upsampling: columns first.
//
// A block makes a tile of one output plane. It
//   1. fetches the part of x that the tile reads, planes combined where the depth is resampled;
//   2. combines its columns;
//   3. combines the rows of that into y, whole vectors of a row at once.
// What lies between is in shared memory. Each element of y is written once, by one thread and in
// one order: planes, then columns, then rows of x, upwards.

#ifndef JAX_CONVGRAD_CUDA_RESAMPLE_GROW_CUH_
#define JAX_CONVGRAD_CUDA_RESAMPLE_GROW_CUH_

#include <cstdint>

#include "cuda/resample_elements.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// kVector elements of x are read at once, kOutVector elements of y written. kAlong: columns are
// combined in vectors along the inner run, of kSums elements each, or not at all.
template <typename T, int kVector, int kOutVector, bool kAlong>
struct Grow {
  static constexpr int kBlocks = 2;  // of 256 threads, on a multiprocessor
  using Sum = typename SumOf<T>::Type;
  static constexpr int kSums = 16 / sizeof(Sum);
  static constexpr int kRowBlock = 4;  // rows that a thread works on at once
  // Where columns are combined one by one, kPack rows of x lie side by side.
  static constexpr int kPack = kAlong ? 1 : kSums;
  static constexpr int kOutPieces = kOutVector < kSums ? 1 : kOutVector / kSums;
  static constexpr int kPiece = kOutVector / kOutPieces;

  const ResampleTask& task;
  const ResampleForm& form;
  const ResampleTiling& tiling;
  Sum* const fetched;        // rows of x: [rows / kPack][row_elements][kPack]
  Sum* const combined;       // rows of x, columns of y: [rows][out_elements]
  Sum* const row_weights;    // [tile_rows, taps]
  Sum* const width_weights;  // [taps, columns]
  int* const width_starts;
  int* const row_starts;
  int* const elsewhere;  // whether some column is not in the window

  CONVGRAD_DEVICE Grow(const ResampleTask& the_task, char* shared)
      : task(the_task),
        form(the_task.form),
        tiling(the_task.tiling),
        fetched(reinterpret_cast<Sum*>(shared)),
        combined(reinterpret_cast<Sum*>(shared + tiling.combined_at)),
        row_weights(reinterpret_cast<Sum*>(shared + tiling.table_at)),
        width_weights(reinterpret_cast<Sum*>(shared + tiling.width_weights_at)),
        width_starts(reinterpret_cast<int*>(shared + tiling.width_starts_at)),
        row_starts(reinterpret_cast<int*>(shared + tiling.groups_at)),
        elsewhere(reinterpret_cast<int*>(shared + tiling.flag_at)) {}

  CONVGRAD_DEVICE void Run(uint32_t block) {
    Digits digits{block};
    const int64_t first_channel = int64_t{digits.Next(tiling.chunks)} * tiling.channels;
    const int64_t first_column = int64_t{digits.Next(tiling.strips)} * tiling.columns;
    const int64_t first_row = int64_t{digits.Next(tiling.group_rows)} * tiling.tile_rows;
    const int64_t plane = digits.Next(form.depth.out);
    const BatchAt batch(form, digits);
    const int channels = static_cast<int>(Least(tiling.channels, form.inner - first_channel));
    const int columns = static_cast<int>(Least(tiling.columns, form.width.out - first_column));
    const int rows = static_cast<int>(Least(tiling.tile_rows, form.height.out - first_row));
    const Window window(form.width, first_column, columns, tiling.span);
    const Window height(form.height, first_row, rows, tiling.table_rows);
    const RowRun run(task, window, channels, kVector);
    const T* const x = static_cast<const T*>(task.x) + batch.x;
    T* const y = static_cast<T*>(task.y) + batch.y + plane * form.y_plane;

    ForEachThread(tiling.threads, [&](int thread) {
      if (thread == 0) *elsewhere = 0;
      LoadWidthTable(task, first_column, columns, width_weights, width_starts, thread);
      LoadRowTable(first_row, rows, thread);
      const int blocks = (height.size + kRowBlock - 1) / kRowBlock;
      for (int item = thread; item < blocks * run.vectors; item += tiling.threads) {
        const int vector = item % run.vectors;
        Fetch(x, plane, height, item / run.vectors * kRowBlock,
              run.Offset(form.inner, first_channel, vector, kVector), vector * kVector);
      }
    });
    if (!kAlong || form.width.resampled) {
      ForEachThread(tiling.threads, [&](int thread) {
        constexpr int kStep = kAlong ? kSums : 1;
        const int blocks = (height.size + kRowBlock - 1) / kRowBlock;
        const int elements = columns * channels / kStep;
        for (int item = thread; item < blocks * elements; item += tiling.threads) {
          const int at = item % elements * kStep, column = at / channels;
          if (!window.Holds(width_starts[column], Taps(form.width))) {
            *elsewhere = 1;
            continue;
          }
          CombineColumns(item / elements * kRowBlock, column, at, channels,
                         static_cast<int>(width_starts[column] - window.low) * channels +
                             at % channels + run.shift);
        }
      });
    }
    ForEachThread(tiling.threads, [&](int thread) {
      const int blocks = (rows + kRowBlock - 1) / kRowBlock;
      const int vectors = (columns * channels + kOutVector - 1) / kOutVector;
      const bool plain = kAlong && !form.width.resampled;
      const Sum* const from = plain ? fetched + run.shift : combined;
      const int pitch = plain ? tiling.row_elements : tiling.out_elements;
      for (int item = thread; item < blocks * vectors; item += tiling.threads) {
        const int at = item % vectors * kOutVector, row = item / vectors * kRowBlock;
        // Vectors lie within a column, or the whole inner run is in the tile and columns follow.
        const int64_t offset =
            (first_column + at / channels) * form.inner + first_channel + at % channels;
        bool held = true;
        for (int i = 0; i < kOutVector && *elsewhere != 0; ++i) {
          held = held && window.Holds(width_starts[(at + i) / channels], Taps(form.width));
        }
        for (int g = 0; g < kRowBlock; ++g) {
          if (row + g >= rows) break;
          WriteRow(x, y + (first_row + row + g) * form.y_row + offset, held, height, plane,
                   first_row, row + g, offset, from + at, pitch);
        }
      }
    });
  }

 private:
  CONVGRAD_DEVICE static int Taps(const ResampleAxis& axis) {
    return axis.resampled ? static_cast<int>(axis.taps) : 1;
  }

  CONVGRAD_DEVICE void LoadRowTable(int64_t first_row, int rows, int thread) const {
    const int taps = Taps(form.height);
    for (int at = thread; at < rows * taps; at += tiling.threads) {
      const int row = at / taps, tap = at % taps;
      if (tap == 0) {
        row_starts[row] = form.height.resampled ? ClampedStart(form.height, first_row + row) : 0;
      }
      row_weights[at] =
          form.height.resampled ? WeightAt<Sum>(form.height, first_row + row, tap) : Sum(1);
    }
  }

  // kRowBlock rows of x, from `row` of the window on: one vector.
  CONVGRAD_DEVICE void Fetch(const T* x, int64_t plane, const Window& height, int row,
                             int64_t offset, int at) const {
    Sum acc[kRowBlock][kVector] = {};
    if (form.depth.resampled) {
      const int taps = static_cast<int>(form.depth.taps);
      const T* from = x + ClampedStart(form.depth, plane) * form.x_plane;
      for (int tap = 0; tap < taps; ++tap, from += form.x_plane) {
        const Sum weight = WeightAt<Sum>(form.depth, plane, tap);
        if (weight == Sum(0)) continue;
        Vector<T, kVector> rows[kRowBlock];
        FetchRows(from, height, row, offset, rows);
        CONVGRAD_UNROLL
        for (int g = 0; g < kRowBlock; ++g) {
          CONVGRAD_UNROLL
          for (int i = 0; i < kVector; ++i) acc[g][i] += weight * ToSum(rows[g].at[i]);
        }
      }
    } else {
      Vector<T, kVector> rows[kRowBlock];
      FetchRows(x, height, row, offset, rows);
      CONVGRAD_UNROLL
      for (int g = 0; g < kRowBlock; ++g) {
        CONVGRAD_UNROLL
        for (int i = 0; i < kVector; ++i) acc[g][i] = ToSum(rows[g].at[i]);
      }
    }
    CONVGRAD_UNROLL
    for (int g = 0; g < kRowBlock; g += kPack) {
      CONVGRAD_UNROLL
      for (int i = 0; i < kVector; ++i) {
        Vector<Sum, kPack> pack;
        CONVGRAD_UNROLL
        for (int r = 0; r < kPack; ++r) pack.at[r] = acc[g + r][i];
        *reinterpret_cast<Vector<Sum, kPack>*>(FetchedAt(row + g, at + i)) = pack;
      }
    }
  }

  // Beyond the window, its last row again.
  CONVGRAD_DEVICE void FetchRows(const T* x, const Window& height, int row, int64_t offset,
                                 Vector<T, kVector> (&rows)[kRowBlock]) const {
    CONVGRAD_UNROLL
    for (int g = 0; g < kRowBlock; ++g) {
      const int64_t at = height.low + Least(row + g, height.size - 1);
      rows[g] = LoadConstant<T, kVector>(x + at * form.x_row + offset);
    }
  }

  CONVGRAD_DEVICE Sum* FetchedAt(int row, int at) const {
    // Skewed, so that writes of neighbouring vectors fall into different banks.
    const int place = kPack == 1 ? at : at + (at >> 3);
    return fetched + (row / kPack * tiling.row_elements + place) * kPack;
  }

  // kRowBlock rows of x from `row` of the window on: one output column, its first tap at `from`.
  CONVGRAD_DEVICE void CombineColumns(int row, int column, int to, int channels, int from) const {
    const int taps = Taps(form.width);
    const Sum* weight_at = width_weights + column;
    constexpr int kStep = kAlong ? kSums : 1;
    Sum acc[kRowBlock][kStep] = {};
    for (int tap = 0; tap < taps; ++tap, from += channels, weight_at += tiling.columns) {
      const Sum weight = *weight_at;
      if (weight == Sum(0)) continue;
      CONVGRAD_UNROLL
      for (int g = 0; g < kRowBlock; g += kPack) {
        const auto some = Load<Sum, kPack * kStep>(FetchedAt(row + g, from));
        CONVGRAD_UNROLL
        for (int i = 0; i < kPack * kStep; ++i)
          acc[g + i % kPack][i / kPack] += weight * some.at[i];
      }
    }
    CONVGRAD_UNROLL
    for (int g = 0; g < kRowBlock; ++g) {
      Vector<Sum, kStep> some;
      CONVGRAD_UNROLL
      for (int i = 0; i < kStep; ++i) some.at[i] = acc[g][i];
      *reinterpret_cast<Vector<Sum, kStep>*>(combined + (row + g) * tiling.out_elements + to) =
          some;
    }
  }

  // One vector of an output row. `held`: whether its columns are in `from`.
  CONVGRAD_DEVICE void WriteRow(const T* x, T* to, bool held, const Window& height, int64_t plane,
                                int64_t first_row, int row, int64_t offset, const Sum* from,
                                int pitch) const {
    const int taps = Taps(form.height);
    const int start = form.height.resampled ? static_cast<int>(row_starts[row] - height.low) : row;
    Sum acc[kOutPieces][kPiece] = {};
    if (held && start >= 0 && start + taps <= height.size) {
      const Sum* weight_at = row_weights + row * taps;
      from += start * pitch;
      for (int tap = 0; tap < taps; ++tap, from += pitch) {
        const Sum weight = weight_at[tap];
        if (weight == Sum(0)) continue;
        CONVGRAD_UNROLL
        for (int p = 0; p < kOutPieces; ++p) {
          const auto some = Load<Sum, kPiece>(from + p * kPiece);
          CONVGRAD_UNROLL
          for (int i = 0; i < kPiece; ++i) acc[p][i] += weight * some.at[i];
        }
      }
    } else {
      for (int i = 0; i < kOutVector; ++i) {
        acc[i / kPiece][i % kPiece] = Directly<T>(
            form, x, plane, first_row + row, (offset + i) / form.inner, (offset + i) % form.inner);
      }
    }
    Vector<T, kOutVector> values;
    CONVGRAD_UNROLL
    for (int i = 0; i < kOutVector; ++i) FromSum(acc[i / kPiece][i % kPiece], values.at[i]);
    *reinterpret_cast<Vector<T, kOutVector>*>(to) = values;
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_RESAMPLE_GROW_CUH_
