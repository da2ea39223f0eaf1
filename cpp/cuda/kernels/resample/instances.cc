#include "cuda/kernels/resample/instances.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda/kernels/resample/tiling.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

// Figures beside choices are measured times on an H100, as multiples of the memory roofline: the
// time to read x once and to write y once at 3.0 TB/s.

constexpr int64_t kMaxStagedInner = 16, kMaxPairsInner = 4;
constexpr int64_t kFewColumnTaps = 4, kMinShiftedGrowth = 4;
constexpr int64_t kMinFlatLine = 192, kMaxFlatLine = kFlatVector * kFlatThreads - 2;

// Whether an instance can do what the problem needs, and quickly unless a band is long.
bool Serves(const ResampleRow& row, const ResampleInstance& instance, const ResampleNeeds& needs) {
  if (instance.vector == 0 || row.load != needs.load || needs.aligned < instance.aligned ||
      row.grow != needs.grow || row.rows < needs.rows) {
    return false;
  }
  switch (row.load) {
    case ResampleLoad::kWindow:
    case ResampleLoad::kSpread:
      if (row.step != needs.step) return false;
      break;
    case ResampleLoad::kPairs:
    case ResampleLoad::kColumns:
      // A window begins up to three columns in front of its first weight, and has two columns'.
      return needs.taps + needs.step + 3 <= row.taps && needs.mid_taps == 1;
    case ResampleLoad::kStrip:
      if (row.step > 0 && row.step < needs.step) return false;
      return row.taps == 0 || needs.mid_taps <= row.mid;  // columns may have any number of taps
    default:
      break;
  }
  return row.taps == 0 || (needs.taps <= row.taps && needs.mid_taps <= row.mid);
}

// The row of the first that serves, or -1.
int FirstThatServes(const ResampleNeeds& needs,
                    const ResampleInstance (&instances)[kResampleRowCount]) {
  for (int row = 0; row < kResampleRowCount; ++row) {
    if (Serves(kResampleRows[row], instances[row], needs)) return row;
  }
  return -1;
}

// The load that takes the problems for which a load has no instance: itself where there is none.
ResampleLoad NextLoad(ResampleLoad load) {
  switch (load) {
    case ResampleLoad::kWindow:
    case ResampleLoad::kPairs:
    case ResampleLoad::kColumns:
      return ResampleLoad::kStrip;
    case ResampleLoad::kFlat:
      return ResampleLoad::kShifted;
    case ResampleLoad::kStaged:
    case ResampleLoad::kSpread:
    case ResampleLoad::kShifted:
      return ResampleLoad::kElements;
    default:
      return load;
  }
}

}  // namespace

ResampleNeeds GetResampleNeeds(const ResampleTask& task, int element_bytes) {
  const ResampleForm& form = task.form;
  const ResampleAxis &walk = task.walk, &width = form.width;
  ResampleNeeds needs{};
  needs.taps = width.resampled ? width.taps : 1;
  needs.mid_taps = task.mid.resampled ? std::max<int64_t>(task.mid.taps, 2) : 1;
  // As many rows of y add up at a time as there are bands over a row of x. Bands end with weights
  // that are not zero, so that a band's width lies between taps - 1 and taps.
  needs.grow = !walk.resampled || walk.out >= walk.in;
  needs.rows = !walk.resampled ? 1
               : needs.grow
                   ? walk.taps
                   : std::max<int64_t>(1, static_cast<int64_t>(std::ceil(
                                              static_cast<double>(walk.taps - 1) / StepOf(walk))));
  const bool strip = width.resampled && width.out <= width.in && (!needs.grow || !walk.resampled);
  // Threads of 16 bytes of sums have a pair of columns each where columns become half as many, and
  // each is made of many. Times the roofline: with 14 taps 1.5 instead of 3.2, of elements of 2
  // bytes 2.9 instead of 5.3; but with 5 taps 1.53 instead of 1.47.
  const bool pairs = strip && width.taps >= kManyTaps && !task.mid.resampled &&
                     width.in >= 2 * width.out && form.inner <= kMaxPairsInner &&
                     element_bytes <= 4;
  const auto aligned = [&](const void* data, int64_t run) {
    int64_t elements = 1;
    while (elements < 8 && run % (2 * elements) == 0 &&
           IsAligned(data, 2 * elements * element_bytes)) {
      elements *= 2;
    }
    return elements;
  };
  const int64_t x_inner = aligned(task.x, form.inner), y_inner = aligned(task.y, form.inner);
  if (std::min(x_inner, y_inner) * element_bytes >= 16) {
    needs.load = ResampleLoad::kVectors;
    needs.aligned = 8;
  } else if (strip && form.inner == 1 && width.in % 8 == 0 && width.in % width.out == 0 &&
             element_bytes <= 4 && IsAligned(task.x, 16) && IsAligned(task.y, 16)) {
    needs.load = ResampleLoad::kWindow;
    needs.aligned = 8;
    needs.step = width.in / width.out;
  } else if (strip) {
    needs.aligned = aligned(task.x, width.in * form.inner);
    // Of rows that can be read as packs from the stage. Times the roofline: with 5 taps 1.3 instead
    // of 1.6, with 14 taps 1.41 instead of 1.68; but 1.93 instead of 1.50 with 3 channels, each in
    // a plane of its own, and 3.3 instead of 2.6 with elements of 2 bytes.
    const bool columns = width.taps >= kFewColumnTaps && width.in >= 2 * width.out &&
                         form.inner == 1 && element_bytes == 4 && needs.aligned >= 4 &&
                         !task.mid.resampled;
    needs.load = columns                       ? ResampleLoad::kColumns
                 : pairs && needs.aligned >= 4 ? ResampleLoad::kPairs
                                               : ResampleLoad::kStrip;
    needs.step = CeilDivide(width.in, width.out);
  } else {
    // Reads of few taps are served equally well by caches.
    const bool staged = needs.grow && width.resampled && width.out >= width.in &&
                        std::max(needs.taps, needs.rows) > 4 && form.inner <= kMaxStagedInner;
    needs.aligned = aligned(task.y, width.out * form.inner);
    // Columns that become twice as many or more, times the roofline: along three axes 1.3 instead
    // of 1.8, along two 1.2 to 1.6 instead of 1.4 to 1.7. With elements of 4 bytes, of which a
    // vector has half as many, nothing is won (1.25 instead of 1.23), nor is it where rows are not
    // resampled (1.40 instead of 1.33).
    const bool spread = needs.grow && walk.resampled && width.resampled && form.inner == 1 &&
                        width.out % width.in == 0 && element_bytes == 2 && needs.aligned == 8 &&
                        IsAligned(task.x, 16);
    // It saves writes. Times the roofline: of rows that become 8 each 1.8 and 1.4 instead
    // of 2.2 and 1.9, with elements of 4 bytes 1.3 and 1.2 instead of 1.4 and 1.3; but of rows that
    // become 2.5 each 2.5 instead of 2.1, and 1.4 instead of 1.3.
    const bool shifted = needs.grow && walk.out >= kMinShiftedGrowth * walk.in &&
                         needs.aligned * element_bytes < 16 && element_bytes <= 4 &&
                         needs.mid_taps == 1 && task.mid.out == 1;
    const int64_t line = width.out;
    // Lines that threads of one block can make, and enough for a few warps.
    const bool flat = shifted && element_bytes == 2 && form.inner == 1 && line % 2 != 0 &&
                      line == task.y_walk && needs.rows <= 2 && needs.taps <= 2 &&
                      width.in <= line && line >= kMinFlatLine && line <= kMaxFlatLine;
    needs.load = staged    ? ResampleLoad::kStaged
                 : flat    ? ResampleLoad::kFlat
                 : spread  ? ResampleLoad::kSpread
                 : shifted ? ResampleLoad::kShifted
                           : ResampleLoad::kElements;
    if (spread) needs.step = width.out / width.in;
  }
  return needs;
}

ResampleChoice ChooseResampleInstance(const ResampleNeeds& needs,
                                      const ResampleInstance (&instances)[kResampleRowCount]) {
  ResampleNeeds some = needs;
  for (;;) {
    const int row = FirstThatServes(some, instances);
    if (row >= 0) return {row, some};
    const ResampleLoad next = NextLoad(some.load);
    if (next == some.load) break;
    some.load = next;
  }
  some.gather = true;
  some.grow = false;
  some.rows = 1;
  return {FirstThatServes(some, instances), some};
}

}  // namespace jax_convgrad
