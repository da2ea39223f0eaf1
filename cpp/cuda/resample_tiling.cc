#include "cuda/resample_tiling.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace jax_convgrad {
namespace {

constexpr int64_t kMostSharedBytes = 96 << 10;  // every GPU since compute capability 8.0 has it
constexpr int64_t kMostTableBytes = 16 << 10;
constexpr int64_t kMostWidthBytes = 24 << 10;
constexpr int64_t kMostGroups = 32;
constexpr int64_t kMostSteps = 64;
constexpr int64_t kShortRunBytes = 192;  // of the inner run
constexpr int64_t kSectorBytes = 32;     // by which memory is read
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

// Whether vectors of an array lie at multiples of their size. They need no gap between two columns
// where the inner run is short, as a tile takes it whole then.
bool CanVectorize(const ResampleForm& form, int vector, int element_bytes, int64_t columns,
                  const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(vector * element_bytes) != 0) {
    return false;
  }
  return form.inner % vector == 0 ||
         (form.inner * element_bytes <= kShortRunBytes && columns * form.inner % vector == 0);
}

// Places parts of shared memory one after another.
class Layout {
 public:
  int Place(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += RoundUp(bytes, 16);
    return static_cast<int>(at);
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

// Elements of a row in shared memory, of which every eighth is skipped where they are taken one by
// one.
int64_t RowElements(int64_t elements, bool skewed) {
  return RoundUp(skewed ? elements + elements / 8 + 1 : elements, 4);
}

// Of the kernels that take rows first.
ResampleTiling ShrinkTiling(const ResampleForm& form, const ResampleShape& shape,
                            const ResampleLimits& limits) {
  const bool stream = shape.kernel == ResampleKernel::kStream;
  if (stream && shape.vector * shape.element_bytes < 4) return {};  // too short to copy
  const ResampleAxis& width = form.width;
  const int64_t group_bytes = int64_t{shape.planes} * shape.rows * shape.sum_bytes;
  const int64_t step = std::max(shape.vector, shape.out_vector);

  // The inner run: whole where it is short, otherwise in pieces that memory serves well.
  int64_t channels = form.inner;
  if (!width.resampled) {
    channels = limits.threads * shape.vector * shape.parts;
    if (!stream) channels = std::min(channels, limits.sum_bytes / group_bytes / step * step);
  } else if (form.inner * shape.element_bytes > kShortRunBytes) {
    channels = limits.chunk_bytes / shape.element_bytes;
  }
  channels = std::min(channels, form.inner);
  const bool divisible = form.inner % step == 0;

  // The most columns whose sums fit, in more memory where few of them would read much of x twice.
  const auto widest = [&](int64_t bytes) {
    // A vector for each thread of the streaming kernel, and a part of one that begins before.
    const int64_t elements =
        stream
            ? int64_t{limits.threads} * shape.vector * shape.parts -
                  (channels == form.inner && shape.vector > 1 && width.resampled ? shape.vector : 0)
            : bytes / group_bytes;
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
    if (!divisible || fewer < step || (columns > 0 && fewer * shape.element_bytes < kSectorBytes)) {
      break;
    }
    channels = fewer;
    columns = widest(limits.sum_bytes);
  }
  ResampleTiling tiling;
  if (columns == 0) return tiling;
  columns = DivideUp(width.out, DivideUp(width.out, columns));

  const int64_t span = Window(width, columns);
  const int64_t row_elements =
      RowElements(span * channels + 2 * shape.vector, /*skewed=*/shape.out_vector == 1);

  tiling.group_rows = DivideUp(form.height.out, shape.rows);
  tiling.group_planes = DivideUp(form.depth.out, shape.planes);
  const int64_t all_groups = form.batches() * tiling.group_planes * tiling.group_rows;
  tiling.all_groups = all_groups;
  tiling.strips = DivideUp(width.out, columns);
  tiling.chunks = DivideUp(form.inner, channels);

  const int64_t rows = form.height.resampled ? Window(form.height, shape.rows) : shape.rows;
  const int64_t row_bytes = int64_t{shape.rows} * shape.sum_bytes;
  const int64_t unit = int64_t{shape.vector} * shape.parts;
  // Vectors may begin before the first column.
  const int64_t whole_row = width.in * form.inner;
  const int64_t most =
      channels == form.inner
          ? std::min(span * channels + (shape.vector > 1 ? shape.vector : 0), whole_row)
          : span * channels;
  const int64_t items = DivideUp(most, unit);
  int64_t groups = std::clamp<int64_t>(limits.threads / items, 1, kMostGroups);
  if (stream && items > limits.threads) return {};
  const int64_t buffers = stream ? 2 : 1;
  const auto too_many = [&] {
    return (!stream && groups * row_elements * group_bytes >
                           std::max(limits.sum_bytes, limits.wide_sum_bytes)) ||
           groups * std::min<int64_t>(rows, 64) * row_bytes > kMostTableBytes ||
           tiling.strips * tiling.chunks * DivideUp(all_groups, groups) < limits.few_blocks;
  };
  while (groups > 1 && too_many()) --groups;

  int64_t steps = 1, table_rows = rows;
  if (stream) {
    const int64_t tiles = tiling.strips * tiling.chunks * DivideUp(all_groups, groups);
    steps = std::clamp<int64_t>(tiles / limits.stream_blocks, 1, kMostSteps);
    steps = std::clamp<int64_t>(kMostTableBytes / (groups * rows * row_bytes), 1, steps);
    steps = std::clamp<int64_t>(kMostTableBytes / (groups * kMostResampleGroupBytes), 1, steps);
  } else {
    table_rows = std::min(rows, kMostTableBytes / (groups * row_bytes));
    if (table_rows < rows) table_rows = std::max<int64_t>(table_rows / 4 * 4, 1);
  }

  const int64_t out_items = groups * shape.planes * DivideUp(shape.rows, 4) *
                            DivideUp(columns * channels, shape.out_vector);
  const int64_t busy = stream ? groups * items : std::max(groups * items, out_items);

  tiling.columns = static_cast<int>(columns);
  tiling.channels = static_cast<int>(channels);
  tiling.groups = static_cast<int>(groups);
  tiling.steps = static_cast<int>(steps);
  tiling.span = static_cast<int>(span);
  tiling.row_elements = static_cast<int>(row_elements);
  tiling.table_rows = static_cast<int>(table_rows);
  tiling.threads = static_cast<int>(std::min<int64_t>(limits.threads, RoundUp(busy, 32)));

  Layout layout;
  layout.Place(buffers * groups * row_elements * group_bytes);
  tiling.combined_at =
      layout.Place(stream ? limits.queue_rows * unit * shape.element_bytes * tiling.threads : 0);
  const bool has_table = stream || form.height.resampled;
  tiling.table_at = layout.Place(has_table ? groups * steps * table_rows * row_bytes : 0);
  tiling.width_weights_at =
      layout.Place(std::max<int64_t>(width.taps, 1) * columns * shape.sum_bytes);
  tiling.width_starts_at = layout.Place(columns * 4);
  tiling.groups_at = layout.Place(groups * steps * kMostResampleGroupBytes);
  if (layout.bytes() > kMostSharedBytes) return {};
  tiling.shared_bytes = static_cast<int>(layout.bytes());
  tiling.blocks = tiling.strips * tiling.chunks * DivideUp(all_groups, groups * steps);
  return tiling;
}

ResampleTiling GrowTiling(const ResampleForm& form, const ResampleShape& shape,
                          const ResampleLimits& limits) {
  const ResampleAxis &width = form.width, &height = form.height;
  const int64_t step = std::max(shape.vector, shape.out_vector);
  int64_t channels = form.inner;
  if (form.inner % step == 0) {
    if (!width.resampled || form.inner * shape.element_bytes > kShortRunBytes) {
      channels = std::min(form.inner, width.resampled ? limits.chunk_bytes / shape.element_bytes
                                                      : 2 * limits.out_row_elements);
    }
  }
  // Whole vectors of y in every tile.
  const int64_t unit = shape.out_vector / std::gcd<int64_t>(shape.out_vector, channels);
  const auto round_columns = [&](int64_t columns) {
    columns = std::clamp<int64_t>(columns, 1, width.out);
    columns = DivideUp(width.out, DivideUp(width.out, columns));
    return std::min(width.out, RoundUp(columns, unit));
  };

  ResampleTiling tiling;
  int64_t columns = round_columns(limits.out_row_elements / channels);
  int64_t rows = std::clamp<int64_t>(limits.out_elements / (columns * channels), 1, height.out);
  int64_t bytes_limit = limits.wide_sum_bytes;
  for (;;) {
    rows = DivideUp(height.out, DivideUp(height.out, rows));
    const int64_t span = Window(width, columns);
    const int64_t room = RoundUp(Window(height, rows), 4);
    const int64_t row_elements =
        RowElements(span * channels + 2 * shape.vector, /*skewed=*/!shape.along);
    const int64_t out_elements = RoundUp(columns * channels, 4);
    const bool combines = !shape.along || width.resampled;
    Layout layout;
    layout.Place(room * row_elements * shape.sum_bytes);
    tiling.combined_at = layout.Place(combines ? room * out_elements * shape.sum_bytes : 0);
    tiling.table_at = layout.Place(rows * std::max<int64_t>(height.taps, 1) * shape.sum_bytes);
    tiling.width_weights_at =
        layout.Place(std::max<int64_t>(width.taps, 1) * columns * shape.sum_bytes);
    tiling.width_starts_at = layout.Place(columns * 4);
    tiling.groups_at = layout.Place(rows * 4);
    tiling.flag_at = layout.Place(4);
    const int64_t blocks = DivideUp(width.out, columns) * DivideUp(form.inner, channels) *
                           DivideUp(height.out, rows) * form.depth.out * form.batches();
    const bool fits = layout.bytes() <= bytes_limit;
    if ((!fits || blocks < limits.few_blocks) && rows > 4) {
      rows = DivideUp(rows, 2);
      continue;
    }
    if (!fits && columns > unit) {
      const int64_t fewer = round_columns(DivideUp(columns, 2));
      if (fewer < columns) {
        columns = fewer;
        continue;
      }
    }
    if (!fits && bytes_limit < kMostSharedBytes) {
      bytes_limit = kMostSharedBytes;
      continue;
    }
    if (!fits) return {};
    tiling.columns = static_cast<int>(columns);
    tiling.channels = static_cast<int>(channels);
    tiling.tile_rows = static_cast<int>(rows);
    tiling.span = static_cast<int>(span);
    tiling.row_elements = static_cast<int>(row_elements);
    tiling.out_elements = static_cast<int>(out_elements);
    tiling.table_rows = static_cast<int>(room);
    tiling.strips = DivideUp(width.out, columns);
    tiling.chunks = DivideUp(form.inner, channels);
    tiling.group_rows = DivideUp(height.out, rows);
    tiling.blocks = blocks;
    tiling.shared_bytes = static_cast<int>(layout.bytes());
    const int64_t items = DivideUp(rows, 4) * DivideUp(columns * channels, shape.out_vector);
    tiling.threads = static_cast<int>(std::min<int64_t>(limits.grow_threads, RoundUp(items, 32)));
    return tiling;
  }
}

}  // namespace

ResampleKernelOrder ChooseResampleKernels(const ResampleForm& form) {
  const auto sizes = [&form](auto size) {
    return static_cast<double>(size(form.depth)) * static_cast<double>(size(form.height)) *
           static_cast<double>(size(form.width));
  };
  const bool grows = sizes([](const ResampleAxis& a) { return a.out; }) >
                     sizes([](const ResampleAxis& a) { return a.in; });
  // Along a long inner run, rows first is the faster way to grow as well.
  if (grows && form.inner % 4 != 0) return {ResampleKernel::kGrow, ResampleKernel::kShrink};
  return {ResampleKernel::kStream, ResampleKernel::kShrink};
}

ResampleShape ChooseResampleShape(ResampleKernel kernel, const ResampleForm& form,
                                  int element_bytes, const void* x, const void* y) {
  ResampleShape shape{};
  shape.kernel = kernel;
  shape.element_bytes = element_bytes;
  shape.sum_bytes = element_bytes == 8 ? 8 : 4;
  const int sums = 16 / shape.sum_bytes;
  // What comes from memory at once; sums of more than four elements cost more threads than they
  // save.
  const int wide = kernel == ResampleKernel::kShrink ? sums : 16 / element_bytes;
  if (kernel == ResampleKernel::kGrow) {
    shape.parts = shape.planes = shape.rows = 1;
    shape.along = form.inner % sums == 0 || !form.width.resampled;
    const bool can = CanVectorize(form, sums, element_bytes, form.width.in, x);
    shape.vector = can ? sums : 1;
    shape.out_vector = CanVectorize(form, wide, element_bytes, form.width.out, y) ? wide : 1;
    return shape;
  }
  shape.planes = form.depth.resampled ? 2 : 1;
  shape.rows = 4;
  const bool can = CanVectorize(form, wide, element_bytes, form.width.in, x);
  shape.vector = can ? wide : 1;
  shape.parts = can ? 1 : kResampleScalarParts;
  const bool aligned =
      reinterpret_cast<uintptr_t>(y) % static_cast<uintptr_t>(sums * element_bytes) == 0;
  shape.out_vector = aligned && form.inner % sums == 0 ? sums : 1;
  return shape;
}

ResampleTiling ChooseResampleTiling(const ResampleForm& form, const ResampleShape& shape,
                                    const ResampleLimits& limits) {
  return shape.kernel == ResampleKernel::kGrow ? GrowTiling(form, shape, limits)
                                               : ShrinkTiling(form, shape, limits);
}

}  // namespace jax_convgrad
