#ifndef JAX_CONVGRAD_CPU_KERNELS_RESAMPLE_PLAN_H_
#define JAX_CONVGRAD_CPU_KERNELS_RESAMPLE_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ffi/resample_form.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// The elements that one output reads along an axis: `taps` elements from `start` on, without the
// zero weights at either end of its row in the table. No elements for a row of zeros.
struct BandRow {
  int64_t start = 0;
  int64_t taps = 0;
  const void* weights = nullptr;
};

struct Interval {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
};

// An axis of a ResampleForm with its table unpacked; an axis without rows is left as it is.
struct PlannedAxis {
  int64_t in = 1, out = 1;
  std::vector<BandRow> rows;

  bool resampled() const { return !rows.empty(); }

  // The elements that outputs [out.begin, out.end) read in all.
  Interval Window(Interval out) const;
  // The most elements that any tile of `size` neighboring outputs reads.
  int64_t WidestWindow(int64_t size) const;
};

// How a problem is divided: into tiles of y, and each tile into one axis after the other, with the
// sums between two axes in a small buffer. Axes that shrink go first, axes that grow go last. The
// result depends neither on the tiles nor on the number of threads.
struct ResamplePlan {
  enum Place { kDepth, kHeight, kWidth, kInner, kPlaces };

  ResampleForm form;
  const void* x = nullptr;
  void* y = nullptr;
  std::array<PlannedAxis, 3> axes;
  std::array<Place, 3> order{};
  int stages = 0;
  bool copies = false;  // every row is one element times 1

  std::array<int64_t, kPlaces> tile{};   // sizes
  std::array<int64_t, kPlaces> tiles{};  // numbers of them
  size_t buffer_bytes = 0;               // of each of two buffers between the stages
  size_t lane_bytes = 0;                 // of the buffer in which rows lie side by side
  int64_t runs = 1;                      // of neighboring tiles, one at a time for a thread

  int64_t tile_count() const {
    return form.batches() * tiles[kDepth] * tiles[kHeight] * tiles[kWidth] * tiles[kInner];
  }
  size_t scratch_bytes() const { return 2 * buffer_bytes + lane_bytes; }
};

// Unpacks and checks the tables: INVALID_ARGUMENT if a start leads outside x.
::xla::ffi::ErrorOr<ResamplePlan> MakeResamplePlan(const ResampleForm& form,
                                                   ::xla::ffi::DataType type, const void* x,
                                                   void* y, int64_t lanes, int64_t threads);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_RESAMPLE_PLAN_H_
