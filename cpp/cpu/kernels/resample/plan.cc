#include "cpu/kernels/resample/plan.h"

#include <algorithm>
#include <limits>

#include "ffi/checked.h"
#include "ffi/error.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

using Place = ResamplePlan::Place;

// The bytes of sums between two stages: few enough for a core's second-level cache beside the rows
// of x that are read more than once.
constexpr size_t kBufferBytes = size_t{192} << 10;
// The bytes of a tile's rows of x, for the same reason: as many rows as one output row reads.
constexpr int64_t kRowElements = 16 << 10;
constexpr int64_t kMinTileElements = 8 << 10;  // of x and y: less does not justify a tile
// The cost of a stage per element beside its products, counted in products: stores, and transposing
// rows into lanes and back where the inner run is short.
constexpr double kStoreCost = 1.0, kTurnCost = 4.0;

constexpr const char* kPlaceNames[] = {"first", "second", "third"};

template <typename Weight>
ffi::ErrorOr<PlannedAxis> Unpack(const ResampleAxis& axis, const char* which) {
  PlannedAxis planned;
  planned.in = axis.in;
  planned.out = axis.out;
  if (!axis.resampled) return planned;
  const Weight* weights = static_cast<const Weight*>(axis.weights);
  planned.rows.resize(static_cast<size_t>(axis.out));
  for (int64_t i = 0; i < axis.out; ++i, weights += axis.taps) {
    const int64_t start = axis.start[i];
    if (start < 0 || start > axis.in - axis.taps) {
      return ffi::Unexpected(InvalidArgument("resample: start of the ", which, " of the axes is ",
                                             start, " at ", i, ", expected 0 to ",
                                             axis.in - axis.taps, " for ", axis.taps, " taps and ",
                                             axis.in, " elements"));
    }
    int64_t first = 0, last = axis.taps;
    while (first < last && weights[first] == 0) ++first;
    while (first < last && weights[last - 1] == 0) --last;
    planned.rows[static_cast<size_t>(i)] = {start + first, last - first, weights + first};
  }
  return planned;
}

template <typename Weight>
bool Copies(const PlannedAxis& axis) {
  return std::all_of(axis.rows.begin(), axis.rows.end(), [](const BandRow& row) {
    return row.taps == 1 && *static_cast<const Weight*>(row.weights) == 1;
  });
}

// Chooses tiles for one order of the stages.
class Tiler {
 public:
  Tiler(ResamplePlan& plan, int64_t sum_bytes, int64_t lanes)
      : plan_(plan), sum_bytes_(sum_bytes), lanes_(lanes) {}

  int64_t Window(Place place, int64_t size) {
    const PlannedAxis& axis = plan_.axes[place];
    if (!axis.resampled()) return size;
    for (const auto& [known, window] : windows_[place]) {
      if (known == size) return window;
    }
    windows_[place].emplace_back(size, axis.WidestWindow(size));
    return windows_[place].back().second;
  }

  // Products, and what counts like them, of one tile.
  double Work(const std::array<int64_t, ResamplePlan::kPlaces>& tile) {
    double work = 0;
    VisitStages(tile, [&](Place place, const auto& from, const auto& to) {
      const double out = Volume(to);
      const double taps = static_cast<double>(plan_.axes[place].rows.empty() ? 0 : MeanTaps(place));
      if (place == ResamplePlan::kWidth && plan_.form.inner < lanes_ && !plan_.copies) {
        // Whole lanes of rows.
        const int64_t rows = to[0] * to[1];
        const double padding =
            static_cast<double>(CeilDivide(rows, lanes_) * lanes_) / static_cast<double>(rows);
        work += padding * (out * (taps + kStoreCost + kTurnCost) + Volume(from) * kTurnCost);
      } else {
        work += out * (taps + kStoreCost);
      }
    });
    return work;
  }

  // The bytes of the larger of the two buffers.
  int64_t BufferElements(const std::array<int64_t, ResamplePlan::kPlaces>& tile) {
    int64_t max_elements = 0;
    int stage = 0;
    VisitStages(tile, [&](Place, const auto&, const auto& to) {
      if (++stage == plan_.stages) return;
      int64_t elements = 1;  // of what lies between two stages, which may be larger than x and y
      for (int64_t size : to) elements = SaturatedMultiply(elements, size);
      max_elements = std::max(max_elements, elements);
    });
    return max_elements;
  }

  void ChooseTile(int64_t threads) {
    auto tile = Whole();
    const auto too_big = [&] {
      return BufferElements(tile) > static_cast<int64_t>(kBufferBytes) / sum_bytes_ ||
             Window(ResamplePlan::kWidth, tile[ResamplePlan::kWidth]) * tile[ResamplePlan::kInner] >
                 kRowElements;
    };
    while (too_big() && Halve(tile)) {
    }
    const auto count = [&] {
      int64_t tiles = plan_.form.batches();
      for (int place = 0; place < ResamplePlan::kPlaces; ++place) {
        tiles *= CeilDivide(Whole()[place], tile[place]);
      }
      return tiles;
    };
    const auto elements = [&] {
      double all = 1;
      for (int place = 0; place < 3; ++place) {
        all *= static_cast<double>(
            std::max(tile[place], Window(static_cast<Place>(place), tile[place])));
      }
      return all * static_cast<double>(tile[ResamplePlan::kInner]);
    };
    while (threads > 1 && count() < 3 * threads &&
           elements() >= 2.0 * static_cast<double>(kMinTileElements) && Halve(tile)) {
    }
    const auto whole = Whole();
    for (size_t place = 0; place < tile.size(); ++place) {
      plan_.tiles[place] = CeilDivide(whole[place], tile[place]);
      plan_.tile[place] = CeilDivide(whole[place], plan_.tiles[place]);
    }
    plan_.buffer_bytes = (MultipliedBytes(static_cast<size_t>(BufferElements(plan_.tile)),
                                          static_cast<size_t>(sum_bytes_)) +
                          63) /
                         64 * 64;
    // One vector per column and channel that a tile reads, and padding of the same size; or the
    // column of x for each column that a tile makes.
    const int64_t width = plan_.tile[ResamplePlan::kWidth];
    const int64_t lanes =
        Window(ResamplePlan::kWidth, width) * std::min(plan_.tile[ResamplePlan::kInner], lanes_) +
        2 * lanes_;
    const int64_t bytes = plan_.copies ? width * 4 : lanes * lanes_ * sum_bytes_;
    plan_.lane_bytes =
        plan_.axes[ResamplePlan::kWidth].resampled() ? static_cast<size_t>(bytes) : 0;
  }

 private:
  using Sizes = std::array<int64_t, ResamplePlan::kPlaces>;

  static double Volume(const Sizes& sizes) {
    double volume = 1;
    for (int64_t size : sizes) volume *= static_cast<double>(size);
    return volume;
  }

  Sizes Whole() const {
    return {plan_.axes[0].out, plan_.axes[1].out, plan_.axes[2].out, plan_.form.inner};
  }

  double MeanTaps(Place place) {
    if (mean_taps_[place] == 0) {
      double sum = 0;
      for (const BandRow& row : plan_.axes[place].rows) sum += static_cast<double>(row.taps);
      mean_taps_[place] = sum / static_cast<double>(plan_.axes[place].rows.size());
    }
    return mean_taps_[place];
  }

  // Calls visit(place, sizes before, sizes after) for each stage of a tile.
  template <typename Visit>
  void VisitStages(const Sizes& tile, const Visit& visit) {
    std::array<Sizes, 4> sizes;
    sizes[static_cast<size_t>(plan_.stages)] = tile;
    for (int stage = plan_.stages; stage-- > 0;) {
      const size_t at = static_cast<size_t>(stage);
      const Place place = plan_.order[at];
      sizes[at] = sizes[at + 1];
      sizes[at][place] = Window(place, sizes[at][place]);
    }
    for (size_t at = 0; at < static_cast<size_t>(plan_.stages); ++at) {
      visit(plan_.order[at], sizes[at], sizes[at + 1]);
    }
  }

  // Halves the extent that adds the least work; false if nothing is left to halve.
  bool Halve(Sizes& tile) {
    double min_work = std::numeric_limits<double>::infinity();
    Sizes best = tile;
    for (size_t place = 0; place < tile.size(); ++place) {
      // Whole vectors of the inner run.
      const int64_t smallest = place == ResamplePlan::kInner ? 4 * lanes_ : 1;
      if (tile[place] <= smallest) continue;
      Sizes candidate = tile;
      candidate[place] = std::max(smallest, (tile[place] + 1) / 2);
      const double work = Work(candidate) / Volume(candidate);
      if (work < min_work) {
        min_work = work;
        best = candidate;
      }
    }
    if (best == tile) return false;
    tile = best;
    return true;
  }

  ResamplePlan& plan_;
  const int64_t sum_bytes_, lanes_;
  std::array<std::vector<std::pair<int64_t, int64_t>>, 3> windows_;
  std::array<double, 3> mean_taps_{};
};

}  // namespace

Interval PlannedAxis::Window(Interval outputs) const {
  if (!resampled()) return outputs;
  int64_t begin = in, end = 0;
  for (int64_t i = outputs.begin; i < outputs.end; ++i) {
    const BandRow& row = rows[static_cast<size_t>(i)];
    if (row.taps == 0) continue;
    begin = std::min(begin, row.start);
    end = std::max(end, row.start + row.taps);
  }
  return begin < end ? Interval{begin, end} : Interval{};
}

int64_t PlannedAxis::WidestWindow(int64_t size) const {
  int64_t widest = 0;
  for (int64_t begin = 0; begin < out; begin += size) {
    widest = std::max(widest, Window({begin, std::min(begin + size, out)}).size());
  }
  return widest;
}

ffi::ErrorOr<ResamplePlan> MakeResamplePlan(const ResampleForm& form, ffi::DataType type,
                                            const void* x, void* y, int64_t lanes,
                                            int64_t threads) {
  const bool is_double = type == ffi::DataType::F64;
  ResamplePlan plan;
  plan.form = form;
  plan.x = x;
  plan.y = y;
  plan.copies = true;
  const ResampleAxis* const axes[] = {&form.depth, &form.height, &form.width};
  for (size_t place = 0; place < 3; ++place) {
    const char* const which = kPlaceNames[plan.stages];
    ffi::ErrorOr<PlannedAxis> axis =
        is_double ? Unpack<double>(*axes[place], which) : Unpack<float>(*axes[place], which);
    if (axis.has_error()) return ffi::Unexpected(axis.error());
    plan.axes[place] = std::move(*axis);
    if (!plan.axes[place].resampled()) continue;
    plan.order[static_cast<size_t>(plan.stages++)] = static_cast<Place>(place);
    plan.copies = plan.copies &&
                  (is_double ? Copies<double>(plan.axes[place]) : Copies<float>(plan.axes[place]));
  }

  const int64_t sum_bytes = is_double ? 8 : 4;
  if (is_double) lanes /= 2;
  const std::array<int64_t, ResamplePlan::kPlaces> whole{form.depth.out, form.height.out,
                                                         form.width.out, form.inner};
  auto last = plan.order.begin() + plan.stages;
  std::array<Place, 3> best = plan.order;
  double min_work = std::numeric_limits<double>::infinity();
  do {
    const double work = Tiler(plan, sum_bytes, lanes).Work(whole);
    if (work < min_work) {
      min_work = work;
      best = plan.order;
    }
  } while (std::next_permutation(plan.order.begin(), last));
  plan.order = best;
  Tiler(plan, sum_bytes, lanes).ChooseTile(threads);
  plan.runs = std::min(plan.tile_count(), 6 * threads);
  return plan;
}

}  // namespace jax_convgrad
