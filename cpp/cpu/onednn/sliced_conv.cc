#include "cpu/onednn/sliced_conv.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "cpu/onednn/conv.h"
#include "cpu/onednn/staging.h"
#include "cpu/runtime/first_exception.h"
#include "cpu/runtime/parallel_for.h"
#include "cpu/runtime/scratch.h"
#include "ffi/checked.h"
#include "ffi/integers.h"
#include "ffi/lru_cache.h"

namespace jax_convgrad {
namespace {

namespace ffi = ::xla::ffi;

constexpr size_t kMaxCached = 512;
// oneDNN computes channels in blocks of up to 64; slices of fewer than 16 waste most of a block.
constexpr int64_t kMinChannels = 16;
// Rows of channels that are worth a task of their own when they are copied.
constexpr int64_t kRowsPerTask = 1024;

struct KeyHash {
  size_t operator()(const std::vector<int64_t>& key) const {
    size_t hash = 0;
    for (int64_t value : key) {
      hash ^= std::hash<int64_t>()(value) + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
    }
    return hash;
  }
};

int64_t Pixels(const ConvGeometry& g, const ConvGeometry::PerAxis& size) {
  int64_t pixels = g.batch;
  for (int axis = 0; axis < g.spatial; ++axis) pixels *= size[axis];
  return pixels;
}

// Whether a weight gradient cannot do without a padded copy of x, and that of one image is too
// large.
bool MustStageMuch(const ConvGeometry& g) {
  ConvGeometry image = g;
  image.batch = 1;
  const std::optional<size_t> bytes = StagedBytes(image, sizeof(float));
  return (!bytes || *bytes > kMaxScratchBytes) && WgradNeedsStaging(g);
}

// Whether the slices are of y's channels, not of x's.
bool SlicesOutput(ConvKind kind, const ConvGeometry& g) {
  if (kind != ConvKind::kWgrad) return kind == ConvKind::kFprop;
  if (MustStageMuch(g)) return false;  // only fewer channels of x make its padded copy smaller
  return g.out_channels * Pixels(g, g.out) < g.in_channels * Pixels(g, g.in);
}

size_t XElementBytes(const ConvProblem& problem) {
  const bool result = problem.kind == ConvKind::kDgrad;
  return ffi::ByteWidth(result ? problem.result_type : problem.operand_type);
}

size_t YElementBytes(const ConvProblem& problem) {
  const bool result = problem.kind == ConvKind::kFprop;
  return ffi::ByteWidth(result ? problem.result_type : problem.operand_type);
}

size_t WElementBytes(const ConvProblem& problem) {
  const bool result = problem.kind == ConvKind::kWgrad;
  return ffi::ByteWidth(result ? problem.result_type : problem.operand_type);
}

// Whether each group is run as a convolution of its own, one in each thread. For the weight
// gradients of many groups oneDNN's one call is up to 2.7 times slower: every thread sums for
// all weights, and the change of their format is not shared among threads. Gradients of single
// examples are such, with as many groups as examples. Small groups fill no vector alone, and oneDNN
// has kernels for them.
bool RunsGroupsApart(const ConvProblem& problem) {
  constexpr int64_t kMinGroupChannels = 32;
  constexpr int64_t kMinRounds = 4;  // keeps all threads busy except in a part of the last
  const ConvGeometry& g = problem.geometry;
  return problem.kind == ConvKind::kWgrad && g.groups / problem.threads >= kMinRounds &&
         g.in_channels / g.groups >= kMinGroupChannels &&
         g.out_channels / g.groups >= kMinGroupChannels;
}

// Copies rows of `bytes` from an array whose rows are `from_stride` apart to one with `to_stride`.
void CopyRows(ffi::ThreadPool& pool, int64_t workers, int64_t rows, size_t bytes, const char* from,
              size_t from_stride, char* to, size_t to_stride) {
  const int64_t tasks = CeilDivide(rows, kRowsPerTask);
  ParallelFor(pool, workers, tasks, [&](int64_t task, int64_t) {
    const int64_t last = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < last; ++row) {
      const size_t r = static_cast<size_t>(row);
      std::memcpy(to + r * to_stride, from + r * from_stride, bytes);
    }
  });
}

}  // namespace

std::vector<ChannelSlice> SliceChannels(const ConvProblem& problem, int64_t count) {
  const ConvGeometry& g = problem.geometry;
  const bool grouped = g.groups > 1, output = SlicesOutput(problem.kind, g);
  const int64_t all = grouped ? g.groups : output ? g.out_channels : g.in_channels;
  int64_t step = CeilDivide(all, count);
  if (!grouped) step = RoundUp(step, kMinChannels);
  std::vector<ChannelSlice> slices;
  for (int64_t first = 0; first < all; first += step) {
    const int64_t channels = std::min(step, all - first);
    ChannelSlice slice{g};
    if (grouped) {
      const int64_t in = g.in_channels / g.groups, out = g.out_channels / g.groups;
      slice.geometry.groups = channels;
      slice.geometry.in_channels = channels * in;
      slice.geometry.out_channels = channels * out;
      slice.x_channel = first * in;
      slice.y_channel = first * out;
      slice.w_offset = slice.y_channel * problem.w_strides[0];
    } else if (output) {
      slice.geometry.out_channels = channels;
      slice.y_channel = first;
      slice.w_offset = first * problem.w_strides[0];
    } else {
      slice.geometry.in_channels = channels;
      slice.x_channel = first;
      slice.w_offset = first * problem.w_strides[1];
    }
    slices.push_back(slice);
  }
  return slices;
}

SlicedConv::SlicedConv(const ConvProblem& problem, int64_t count, int64_t at_once)
    : problem_(problem), at_once_(at_once) {
  for (const ChannelSlice& channels : SliceChannels(problem, count)) {
    // All have the same sizes except the last.
    if (!slices_.empty() && slices_.back().channels.geometry == channels.geometry) {
      slices_.push_back({channels, slices_.back().plan});
      continue;
    }
    ConvProblem part = problem;
    part.geometry = channels.geometry;
    if (at_once > 1) part.threads = 1;
    slices_.push_back({channels, ConvPlan::Make(part)});
  }
}

// Memory for the x and the y of a slice, where it has not all channels.
size_t SlicedConv::SliceBytes(const ChannelSlice& slice) const {
  const ConvGeometry &all = problem_.geometry, &g = slice.geometry;
  size_t bytes = 0;
  if (g.in_channels < all.in_channels) {
    bytes += static_cast<size_t>(Pixels(g, g.in) * g.in_channels) * XElementBytes(problem_);
  }
  if (g.out_channels < all.out_channels) {
    bytes += static_cast<size_t>(Pixels(g, g.out) * g.out_channels) * YElementBytes(problem_);
  }
  return bytes;
}

size_t SlicedConv::ScratchBytes() const {
  size_t max_bytes = 0;
  for (const Slice& slice : slices_) {
    max_bytes = std::max(max_bytes, slice.plan->ScratchBytes() + SliceBytes(slice.channels));
  }
  return MultipliedBytes(static_cast<size_t>(at_once_), max_bytes);
}

bool SlicedConv::IsCramped() const {
  return ScratchBytes() > kMaxScratchBytes ||
         std::any_of(slices_.begin(), slices_.end(),
                     [](const Slice& slice) { return slice.plan->is_cramped(); });
}

// Whether it keeps to the limit where `other` does not, or keeps more threads busy.
bool SlicedConv::IsBetterThan(const SlicedConv& other) const {
  const size_t bytes = ScratchBytes(), other_bytes = other.ScratchBytes();
  if (std::max(bytes, other_bytes) > kMaxScratchBytes) return bytes < other_bytes;
  return at_once_ * slices_[0].plan->workers() > other.at_once_ * other.slices_[0].plan->workers();
}

void SlicedConv::RunSlice(const Slice& slice, ffi::ThreadPool& pool, char* x, char* w,
                          char* y) const {
  const ConvGeometry &all = problem_.geometry, &g = slice.channels.geometry;
  const size_t x_element = XElementBytes(problem_), y_element = YElementBytes(problem_);
  const Scratch scratch(SliceBytes(slice.channels));
  const int64_t workers = at_once_ > 1 ? 1 : problem_.threads;
  char* slice_x = x;
  char* slice_y = y;
  char* next = scratch.data();
  const bool some_x = g.in_channels < all.in_channels, some_y = g.out_channels < all.out_channels;
  const int64_t x_rows = Pixels(g, g.in), y_rows = Pixels(g, g.out);
  const size_t x_bytes = static_cast<size_t>(g.in_channels) * x_element;
  const size_t y_bytes = static_cast<size_t>(g.out_channels) * y_element;
  const size_t all_x_bytes = static_cast<size_t>(all.in_channels) * x_element;
  const size_t all_y_bytes = static_cast<size_t>(all.out_channels) * y_element;
  char* const from_x = x + static_cast<size_t>(slice.channels.x_channel) * x_element;
  char* const from_y = y + static_cast<size_t>(slice.channels.y_channel) * y_element;
  if (some_x) {
    slice_x = next;
    next += static_cast<size_t>(x_rows) * x_bytes;
    if (problem_.kind != ConvKind::kDgrad) {
      CopyRows(pool, workers, x_rows, x_bytes, from_x, all_x_bytes, slice_x, x_bytes);
    }
  }
  if (some_y) {
    slice_y = next;
    if (problem_.kind != ConvKind::kFprop) {
      CopyRows(pool, workers, y_rows, y_bytes, from_y, all_y_bytes, slice_y, y_bytes);
    }
  }
  w += slice.channels.w_offset * static_cast<std::ptrdiff_t>(WElementBytes(problem_));
  slice.plan->Run(pool, slice_x, w, slice_y);
  if (some_x && problem_.kind == ConvKind::kDgrad) {
    CopyRows(pool, workers, x_rows, x_bytes, slice_x, x_bytes, from_x, all_x_bytes);
  }
  if (some_y && problem_.kind == ConvKind::kFprop) {
    CopyRows(pool, workers, y_rows, y_bytes, slice_y, y_bytes, from_y, all_y_bytes);
  }
}

void SlicedConv::Run(ffi::ThreadPool& pool, void* x, void* w, void* y) const {
  FirstException exception;
  ParallelFor(pool, at_once_, static_cast<int64_t>(slices_.size()), [&](int64_t task, int64_t) {
    exception.Guard([&] {
      RunSlice(slices_[static_cast<size_t>(task)], pool, static_cast<char*>(x),
               static_cast<char*>(w), static_cast<char*>(y));
    });
  });
  exception.Rethrow();
}

std::shared_ptr<const SlicedConv> SlicedConv::Get(const ConvProblem& problem) {
  using Cache = LruCache<std::vector<int64_t>, SlicedConv, KeyHash>;
  static Cache* const cache = new Cache(kMaxCached);
  const std::vector<int64_t> key = problem.Key();
  if (std::shared_ptr<const SlicedConv> found = cache->Find(key)) return found;
  // Made outside the cache's lock: other problems need not wait.
  const SingleThreaded single;
  std::shared_ptr<const SlicedConv> best;
  if (RunsGroupsApart(problem)) {
    best.reset(new SlicedConv(problem, problem.geometry.groups, problem.threads));
    if (!best->IsCramped()) return cache->Insert(key, std::move(best));
  }
  for (int64_t count = 1;; count *= 2) {
    std::shared_ptr<const SlicedConv> conv(new SlicedConv(problem, count, /*at_once=*/1));
    const bool last = static_cast<int64_t>(conv->slices_.size()) < count;
    if (!best || conv->IsBetterThan(*best)) best = std::move(conv);
    if (last || !best->IsCramped()) break;
  }
  return cache->Insert(key, std::move(best));
}

}  // namespace jax_convgrad
