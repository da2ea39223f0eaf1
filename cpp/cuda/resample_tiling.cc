#include "cuda/resample_tiling.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace jax_convgrad {
namespace {

constexpr int64_t kMostSharedBytes = 96 << 10;  // every GPU since compute capability 8.0 has it
constexpr int64_t kMostTableBytes = 16 << 10;
constexpr int64_t kMostWidthBytes = 24 << 10;
constexpr int64_t kMostGroups = 32;
constexpr int64_t kShortRunBytes = 192;  // of the inner run
constexpr double kMostOverlap = 1.15;    // columns of x that are read, over those there are

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp(int64_t a, int64_t b) { return DivideUp(a, b) * b; }

// Elements that `count` neighbouring outputs read between them, if starts are evenly spaced.
int64_t Window(const ResampleAxis& axis, int64_t count) {
  if (!axis.resampled) return count;
  const double step = static_cast<double>(axis.in) / static_cast<double>(axis.out);
  const double reach = std::ceil(static_cast<double>(count - 1) * step);
  return std::min(axis.in, static_cast<int64_t>(reach) + axis.taps + 1);
}

// Whether vectors of x lie at multiples of their size: they need no gap between two columns where
// the inner run is short, as a tile takes it whole then.
bool CanVectorize(const ResampleForm& form, int vector, int element_bytes, const void* x) {
  if (reinterpret_cast<uintptr_t>(x) % static_cast<uintptr_t>(vector * element_bytes) != 0) {
    return false;
  }
  return form.inner % vector == 0 ||
         (form.inner * element_bytes <= kShortRunBytes && form.width.in * form.inner % vector == 0);
}

}  // namespace

ResampleShape ChooseResampleShape(const ResampleForm& form, int element_bytes, const void* x,
                                  const void* y) {
  ResampleShape shape;
  shape.element_bytes = element_bytes;
  shape.sum_bytes = element_bytes == 8 ? 8 : 4;
  shape.planes = form.depth.resampled ? 4 : 1;
  shape.rows = form.depth.resampled ? 4 : 8;
  // A thread keeps at most 64 sums.
  const int vector = std::min(16 / element_bytes, form.depth.resampled ? 4 : 8);
  const bool can = CanVectorize(form, vector, element_bytes, x);
  shape.vector = can ? vector : 1;
  shape.parts = can ? 1 : kResampleScalarParts;
  const int out_vector = 16 / shape.sum_bytes;
  const bool aligned =
      reinterpret_cast<uintptr_t>(y) % static_cast<uintptr_t>(out_vector * element_bytes) == 0;
  shape.out_vector = aligned && form.inner % out_vector == 0 ? out_vector : 1;
  return shape;
}

ResampleTiling ChooseResampleTiling(const ResampleForm& form, const ResampleShape& shape,
                                    const ResampleLimits& limits) {
  const ResampleAxis& width = form.width;
  const int64_t group_bytes = int64_t{shape.planes} * shape.rows * shape.sum_bytes;
  const int64_t step = std::max(shape.vector, shape.out_vector);

  // The inner run: whole where it is short, otherwise in pieces that memory serves well.
  int64_t channels = form.inner;
  if (!width.resampled) {
    channels = std::min<int64_t>(limits.threads * shape.vector * shape.parts,
                                 limits.sum_bytes / group_bytes / step * step);
  } else if (form.inner * shape.element_bytes > kShortRunBytes) {
    channels = limits.chunk_bytes / shape.element_bytes;
  }
  channels = std::min(channels, form.inner);
  const bool divisible = form.inner % step == 0;

  // The most columns whose sums fit, in more memory where few of them would read much of x twice.
  const auto widest = [&](int64_t bytes) {
    const int64_t elements = bytes / group_bytes;
    int64_t low = 0, high = width.out;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      const bool fits = Window(width, middle) * channels <= elements &&
                        (middle == 1 || middle * width.taps * shape.sum_bytes <= kMostWidthBytes);
      fits ? low = middle : high = middle - 1;
    }
    return low;
  };
  const auto overlap = [&](int64_t columns) {
    if (columns == 0) return HUGE_VAL;
    const double reads = static_cast<double>(Window(width, columns) * DivideUp(width.out, columns));
    return reads / static_cast<double>(std::max(width.in, width.out));
  };
  int64_t columns = widest(limits.sum_bytes);
  while (columns == 0 || (columns < width.out && overlap(columns) > kMostOverlap)) {
    columns = std::max(columns, widest(limits.wide_sum_bytes));
    if (columns > 0 && (columns == width.out || overlap(columns) <= kMostOverlap)) break;
    const int64_t fewer = channels / 2 / step * step;
    // Memory is read by sectors of 32 bytes.
    if (!divisible || fewer < step || (columns > 0 && fewer * shape.element_bytes < 32)) break;
    channels = fewer;
    columns = widest(limits.sum_bytes);
  }
  ResampleTiling tiling;
  if (columns == 0) return tiling;
  columns = DivideUp(width.out, DivideUp(width.out, columns));

  const int64_t span = Window(width, columns);
  int64_t row_elements = span * channels + 2 * shape.vector;
  if (shape.out_vector == 1) row_elements += row_elements / 32 + 1;
  row_elements = RoundUp(row_elements, 4);

  tiling.group_rows = DivideUp(form.height.out, shape.rows);
  tiling.group_planes = DivideUp(form.depth.out, shape.planes);
  const int64_t all_groups = form.batches() * tiling.group_planes * tiling.group_rows;
  tiling.strips = DivideUp(width.out, columns);
  tiling.chunks = DivideUp(form.inner, channels);

  const int64_t rows = form.height.resampled ? Window(form.height, shape.rows) : shape.rows;
  const int64_t row_bytes = int64_t{shape.rows} * shape.sum_bytes;
  const int64_t items = DivideUp(span * channels, int64_t{shape.vector} * shape.parts);
  int64_t groups = std::clamp<int64_t>(limits.threads / items, 1, kMostGroups);
  const auto too_many = [&] {
    return groups * row_elements * group_bytes >
               std::max(limits.sum_bytes, limits.wide_sum_bytes) ||
           groups * std::min<int64_t>(rows, 64) * row_bytes > kMostTableBytes ||
           tiling.strips * tiling.chunks * DivideUp(all_groups, groups) < limits.few_blocks;
  };
  while (groups > 1 && too_many()) --groups;

  int64_t table_rows = std::min(rows, kMostTableBytes / (groups * row_bytes));
  if (table_rows < rows) table_rows = std::max<int64_t>(table_rows / 4 * 4, 1);

  const int64_t out_items =
      groups * shape.planes * shape.rows / 4 * DivideUp(columns * channels, shape.out_vector);
  const int64_t busy = std::max(groups * items, out_items);

  tiling.columns = static_cast<int>(columns);
  tiling.channels = static_cast<int>(channels);
  tiling.groups = static_cast<int>(groups);
  tiling.span = static_cast<int>(span);
  tiling.row_elements = static_cast<int>(row_elements);
  tiling.table_rows = static_cast<int>(table_rows);
  tiling.threads = static_cast<int>(std::min<int64_t>(limits.threads, RoundUp(busy, 32)));
  tiling.group_tiles = DivideUp(all_groups, groups);

  int64_t bytes = RoundUp(groups * row_elements * group_bytes, 16);
  const auto place = [&bytes](int& at, int64_t size) {
    at = static_cast<int>(bytes);
    bytes += RoundUp(size, 16);
  };
  place(tiling.table_at, form.height.resampled ? groups * table_rows * row_bytes : 0);
  place(tiling.width_weights_at, std::max<int64_t>(width.taps, 1) * columns * shape.sum_bytes);
  place(tiling.width_starts_at, columns * 4);
  place(tiling.groups_at, groups * kMostResampleGroupBytes);
  place(tiling.flags_at, 3 * 4);
  if (bytes > kMostSharedBytes) return ResampleTiling();
  tiling.shared_bytes = static_cast<int>(bytes);
  return tiling;
}

}  // namespace jax_convgrad
