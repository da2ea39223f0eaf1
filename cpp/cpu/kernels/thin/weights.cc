#include <algorithm>
#include <cstring>

#include "cpu/kernels/shuffle.h"
#include "cpu/kernels/thin/work.h"

namespace jax_convgrad {
namespace {

typedef float Floats4 __attribute__((vector_size(16)));

Floats4 Load(const float* from) {
  Floats4 to;
  std::memcpy(&to, from, sizeof(to));
  return to;
}

void Store(Floats4 from, float* to) { std::memcpy(to, &from, sizeof(from)); }

// to[c * to_stride + r] = from[r * from_stride + c]
void Transpose4x4(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  const Floats4 a = Load(from), b = Load(from + from_stride), c = Load(from + 2 * from_stride),
                d = Load(from + 3 * from_stride);
  const Floats4 ab_low = JAX_CONVGRAD_SHUFFLE(a, b, 0, 4, 1, 5);
  const Floats4 ab_high = JAX_CONVGRAD_SHUFFLE(a, b, 2, 6, 3, 7);
  const Floats4 cd_low = JAX_CONVGRAD_SHUFFLE(c, d, 0, 4, 1, 5);
  const Floats4 cd_high = JAX_CONVGRAD_SHUFFLE(c, d, 2, 6, 3, 7);
  Store(JAX_CONVGRAD_SHUFFLE(ab_low, cd_low, 0, 1, 4, 5), to);
  Store(JAX_CONVGRAD_SHUFFLE(ab_low, cd_low, 2, 3, 6, 7), to + to_stride);
  Store(JAX_CONVGRAD_SHUFFLE(ab_high, cd_high, 0, 1, 4, 5), to + 2 * to_stride);
  Store(JAX_CONVGRAD_SHUFFLE(ab_high, cd_high, 2, 3, 6, 7), to + 3 * to_stride);
}

// The same for `rows` times `columns`.
void Transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
               int64_t columns) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    int64_t column = 0;
    for (; column + 4 <= columns; column += 4) {
      Transpose4x4(from + row * from_stride + column, from_stride, to + column * to_stride + row,
                   to_stride);
    }
    for (; column < columns; ++column) {
      for (int64_t i = row; i < row + 4; ++i) {
        to[column * to_stride + i] = from[i * from_stride + column];
      }
    }
  }
  for (; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      to[column * to_stride + row] = from[row * from_stride + column];
    }
  }
}

}  // namespace

int64_t WeightsTable::TapOffset(int64_t tap) const {
  return tap / taps[2] / taps[1] * tap_strides[0] + tap / taps[2] % taps[1] * tap_strides[1] +
         tap % taps[2] * tap_strides[2];
}

WeightsTable WeightsTable::Dense() const {
  WeightsTable dense = *this;
  dense.column_stride = 1;
  dense.row_stride = columns;
  dense.tap_strides[2] = rows * columns;
  dense.tap_strides[1] = taps[2] * dense.tap_strides[2];
  dense.tap_strides[0] = taps[1] * dense.tap_strides[1];
  return dense;
}

bool WeightsTable::IsDense() const {
  const WeightsTable dense = Dense();
  for (size_t axis = 0; axis < taps.size(); ++axis) {
    if (taps[axis] > 1 && tap_strides[axis] != dense.tap_strides[axis]) return false;
  }
  return column_stride == 1 && (rows == 1 || row_stride == columns);
}

void CopyWeights(const WeightsTable& from_table, const float* from, const WeightsTable& to_table,
                 float* to) {
  const int64_t rows = from_table.rows, columns = from_table.columns;
  const int64_t taps = from_table.tap_count();
  for (int64_t tap = 0; tap < taps; ++tap) {
    const float* const f = from + from_table.TapOffset(tap);
    float* const t = to + to_table.TapOffset(tap);
    if (from_table.column_stride == 1 && to_table.row_stride == 1) {
      Transpose(f, from_table.row_stride, t, to_table.column_stride, rows, columns);
    } else if (from_table.row_stride == 1 && to_table.column_stride == 1) {
      Transpose(f, from_table.column_stride, t, to_table.row_stride, columns, rows);
    } else {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < columns; ++column) {
          t[row * to_table.row_stride + column * to_table.column_stride] =
              f[row * from_table.row_stride + column * from_table.column_stride];
        }
      }
    }
  }
}

}  // namespace jax_convgrad
