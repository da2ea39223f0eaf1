#include "cpu/onednn/conv_plan.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cpu/kernels/depthwise/sizes.h"
#include "cpu/kernels/depthwise/wgrad.h"
#include "cpu/onednn/conv.h"
#include "cpu/onednn/conv_limits.h"
#include "cpu/onednn/conv_split.h"
#include "cpu/onednn/staging.h"
#include "cpu/onednn/weights_reorder.h"
#include "cpu/runtime/first_exception.h"
#include "cpu/runtime/parallel_for.h"
#include "cpu/runtime/scratch.h"
#include "ffi/checked.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

namespace ffi = ::xla::ffi;
using dnnl::memory;

// oneDNN's kernels address parts of an array with 32 bits.
constexpr int64_t kMaxPieceBytes = int64_t{1} << 30;
// A thread is also worth waking for this many bytes of both arrays. A depthwise layer of 256 KiB
// took two threads 21 us and one 17, of 800 KiB 29 and 33.
constexpr double kMinThreadBytes = 256 << 10;

double ThreadsWorthWaking(const ConvGeometry& g) {
  double x_bytes = 4.0 * static_cast<double>(g.batch * g.in_channels);
  double y_bytes = 4.0 * static_cast<double>(g.batch * g.out_channels);
  for (int axis = 0; axis < g.spatial; ++axis) {
    x_bytes *= static_cast<double>(g.in[axis]);
    y_bytes *= static_cast<double>(g.out[axis]);
  }
  return std::max(ConvFlops(g) / kMinThreadFlops, (x_bytes + y_bytes) / kMinThreadBytes);
}

// Chunks of the batch that keep both arrays of each within kMaxPieceBytes.
int64_t MinChunks(const ConvGeometry& g) {
  int64_t x_bytes = 4 * g.batch * g.in_channels, y_bytes = 4 * g.batch * g.out_channels;
  for (int axis = 0; axis < g.spatial; ++axis) {
    x_bytes *= g.in[axis];
    y_bytes *= g.out[axis];
  }
  return std::min(g.batch, std::max(x_bytes, y_bytes) / kMaxPieceBytes + 1);
}

// Of y or dx.
size_t ResultBytes(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  const bool fprop = problem.kind == ConvKind::kFprop;
  int64_t elements = g.batch * (fprop ? g.out_channels : g.in_channels);
  for (int axis = 0; axis < g.spatial; ++axis) elements *= fprop ? g.out[axis] : g.in[axis];
  return static_cast<size_t>(elements) * ffi::ByteWidth(problem.result_type);
}

// Pieces whose sums are added in float32: NOTE [Sums], conv_limits.cc.
constexpr int64_t kMaxFloatAddends = 8;

// Adds `count` numbers of each of `parts` in their order: the same sum at every call.
template <typename Number>
void AddParts(const std::vector<const Number*>& parts, float* sum, int64_t first, int64_t count) {
  constexpr int64_t kBlock = 1024;  // stays in the innermost cache between the parts
  Number totals[kBlock];
  for (int64_t begin = first; begin < first + count; begin += kBlock) {
    const int64_t size = std::min(kBlock, first + count - begin);
    std::copy_n(parts[0] + begin, size, totals);
    for (size_t part = 1; part < parts.size(); ++part) {
      const Number* const values = parts[part] + begin;
      for (int64_t i = 0; i < size; ++i) totals[i] += values[i];
    }
    for (int64_t i = 0; i < size; ++i) sum[begin + i] = static_cast<float>(totals[i]);
  }
}

size_t WholePages(size_t bytes) { return RoundUp(bytes, size_t{4096}); }

}  // namespace

struct ConvPlan::Impl {
  struct Convolution {
    ConvGeometry geometry;  // with its padding, also if x is staged
    OnednnConv onednn;
    PieceCopy x_copy, y_copy;  // of nothing where oneDNN works on the arrays themselves

    // Of a forward pass or input gradient.
    size_t ResultBytes(ConvKind kind) const {
      return (kind == ConvKind::kFprop ? onednn.y : onednn.x).get_size();
    }
  };
  // Some of the channels that a sum goes over: NOTE [Long sums], conv_limits.cc. Usually all.
  struct SummedRun {
    ChannelRun channels;
    size_t source_offset;         // of the first of them in a pixel, in bytes
    size_t w_offset;              // of their weights in the user's
    memory::desc user_w;          // as these lie there
    memory::desc w = {};          // as oneDNN wants them
    size_t reordered_offset = 0;  // in a copy of all
    bool reordered = false;       // the user's are not like that
    WeightsReorder reorder = {};
  };
  struct Piece {
    std::vector<size_t> convolutions;  // of each run, an index
    size_t x_offset;                   // in bytes
    size_t y_offset;
  };
  // What one thread needs to run pieces one after another.
  class Runner;

  ConvKind kind;
  int64_t workers = 1;
  bool cramped = false;  // more workers would have taken too much scratch memory
  std::vector<Convolution> convolutions;
  std::vector<Piece> pieces;
  bool depthwise = false;  // by DepthwiseWgrad, not by oneDNN
  ffi::DataType operand_type = ffi::DataType::F32;
  bool staged = false;  // oneDNN works on copies of x that contain their padding
  bool copied = false;  // and on copies of x and y, because pieces are not contiguous
  size_t x_element_bytes = 0, y_element_bytes = 0;
  // Of the result, all of it, where some of its pixels are no piece's: zeros. A weight gradient has
  // a piece at least.
  size_t zeroed_bytes = 0;
  std::vector<SummedRun> runs;

  // Scratch memory: what each worker needs for a piece, and what the weights need.
  size_t scratchpad_bytes = 0;
  size_t x_bytes = 0, y_bytes = 0;  // of copies
  size_t addend_bytes = 0;          // of the results of a run that is not the first
  size_t reordered_bytes = 0;       // of the weights of all runs
  size_t WorkerBytes() const { return scratchpad_bytes + x_bytes + y_bytes + addend_bytes; }
  bool CopiesX() const { return staged || copied || (kind == ConvKind::kFprop && runs.size() > 1); }
  bool CopiesY() const { return copied || (kind == ConvKind::kDgrad && runs.size() > 1); }
  // A weight gradient has one run.
  size_t WeightsBytes() const { return WholePages(runs[0].w.get_size()); }
  // Whether each worker of wgrad adds the sums of its pieces in float64.
  bool AddsDoubles() const {
    return static_cast<int64_t>(pieces.size()) > kMaxFloatAddends * workers;
  }
  // A worker of wgrad keeps its sum, and beside it the addend if it has several pieces.
  size_t SumBytes() const {
    if (AddsDoubles()) return 3 * WeightsBytes();
    return (pieces.size() > static_cast<size_t>(workers) ? 2 : 1) * WeightsBytes();
  }
  // Where the sum of all workers is before it is reordered: in place of the first one's sum, or of
  // its addend where that has another type.
  size_t UnorderedOffset() const { return AddsDoubles() ? 2 * WeightsBytes() : 0; }
  size_t ScratchBytes() const;

  static std::unique_ptr<const Impl> Make(const ConvProblem& problem);
  static std::unique_ptr<Impl> Cut(const ConvProblem& problem, ConvSplit split, int64_t workers);
  void MakeRuns(const ConvProblem& problem);
  void MakeReorders();
  void MakeDepthwise(const ConvProblem& problem, const std::vector<ConvPiece>& cut);
  bool MakeConvolutions(const ConvProblem& problem, const std::vector<ConvPiece>& cut, bool stage);
  size_t FindConvolution(const ConvGeometry& geometry) const;
  const Convolution& MakeConvolution(const ConvProblem& problem, const ConvGeometry& geometry,
                                     const std::optional<memory::desc>& w);
  void MakeCopies(const ConvGeometry& whole);
  size_t ReorderScratchBytes() const;
  int Slowest() const;

  void Run(ffi::ThreadPool& pool, char* x, char* w, char* y) const;
  void FillZeros(ffi::ThreadPool& pool, char* result) const;
  void RunWgrad(ffi::ThreadPool& pool, char* x, char* dw, char* dy) const;
  template <typename Number>
  void AddPieces(ffi::ThreadPool& pool, char* sums, char* workers_scratch, char* x, char* dw,
                 char* dy) const;
};

size_t ConvPlan::Impl::FindConvolution(const ConvGeometry& geometry) const {
  const auto found = std::find_if(
      convolutions.begin(), convolutions.end(),
      [&](const Convolution& convolution) { return convolution.geometry == geometry; });
  return static_cast<size_t>(found - convolutions.begin());
}

int ConvPlan::Impl::Slowest() const {
  int slowest = 0;
  for (const Convolution& convolution : convolutions) {
    slowest = std::max(slowest, convolution.onednn.slowness);
  }
  return slowest;
}

size_t ConvPlan::Impl::ScratchBytes() const {
  const size_t count = static_cast<size_t>(workers);
  return kind == ConvKind::kWgrad ? MultipliedBytes(count, SumBytes() + WorkerBytes())
                                  : reordered_bytes + MultipliedBytes(count, WorkerBytes());
}

size_t ConvPlan::Impl::ReorderScratchBytes() const {
  size_t bytes = 0;
  for (const SummedRun& run : runs) bytes = std::max(bytes, run.reorder.ScratchBytes());
  return bytes;
}

void ConvPlan::Impl::MakeRuns(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  const bool fprop = kind == ConvKind::kFprop;
  const ffi::DataType type = kind == ConvKind::kWgrad ? problem.result_type : problem.operand_type;
  const size_t w_element_bytes = ffi::ByteWidth(type);
  for (const ChannelRun& channels : SummedChannels(problem)) {
    const size_t first = static_cast<size_t>(channels.first);
    const size_t w_step = static_cast<size_t>(problem.w_strides[fprop ? 1 : 0]);
    runs.push_back(
        {channels, first * (fprop ? x_element_bytes : y_element_bytes),
         first * w_step * w_element_bytes,
         UserWeightsDesc(WithSummed(kind, g, channels), OnednnType(type), problem.w_strides,
                         g.out_channels / g.groups * problem.w_strides[0])});
  }
}

// To be called when oneDNN's formats are known.
void ConvPlan::Impl::MakeReorders() {
  for (SummedRun& run : runs) {
    if (!run.reordered) continue;
    run.reorder = kind == ConvKind::kWgrad ? WeightsReorder(run.w, run.user_w, workers)
                                           : WeightsReorder(run.user_w, run.w, workers);
  }
}

// The convolution of such pieces, which is made if there is none.
const ConvPlan::Impl::Convolution& ConvPlan::Impl::MakeConvolution(
    const ConvProblem& problem, const ConvGeometry& geometry,
    const std::optional<memory::desc>& w) {
  const size_t found = FindConvolution(geometry);
  if (found == convolutions.size()) {
    const ConvGeometry& computed = staged ? StagedGeometry(geometry) : geometry;
    convolutions.push_back(
        {geometry,
         MakeOnednnConv(kind, computed, problem.operand_type, problem.result_type, w),
         {},
         {}});
  }
  return convolutions[found];
}

// Makes the primitives of all pieces. False if they cannot agree on one format of the weights.
bool ConvPlan::Impl::MakeConvolutions(const ConvProblem& problem, const std::vector<ConvPiece>& cut,
                                      bool stage) {
  staged = stage;
  for (SummedRun& run : runs) {
    // The middle piece is of the most frequent kind: it chooses the format for all.
    const ConvGeometry middle = WithSummed(kind, cut[cut.size() / 2].geometry, run.channels);
    run.w = MakeConvolution(problem, middle, std::nullopt).onednn.w;
    for (const ConvPiece& piece : cut) {
      try {
        MakeConvolution(problem, WithSummed(kind, piece.geometry, run.channels), run.w);
      } catch (const dnnl::error& error) {
        if (error.status != dnnl_unimplemented) throw;
        return false;
      }
    }
    run.reordered = run.user_w != run.w;
    run.reordered_offset = reordered_bytes;
    if (run.reordered) reordered_bytes += WholePages(run.w.get_size());
  }
  for (const Convolution& convolution : convolutions) {
    scratchpad_bytes =
        std::max(scratchpad_bytes, WholePages(convolution.onednn.scratchpad.get_size()));
  }
  MakeCopies(problem.geometry);
  return true;
}

// `whole` are the sizes of the arrays that the pieces lie in.
void ConvPlan::Impl::MakeCopies(const ConvGeometry& whole) {
  constexpr ConvGeometry::PerAxis kNone{};
  const auto runs_of = [&](int64_t channels, int64_t all, size_t element_bytes) {
    const size_t groups = static_cast<size_t>(whole.groups);
    return PixelRuns{whole.groups, static_cast<size_t>(channels) / groups * element_bytes,
                     static_cast<size_t>(all) / groups * element_bytes};
  };
  for (Convolution& convolution : convolutions) {
    const ConvGeometry& g = convolution.geometry;
    if (CopiesX()) {
      if (staged && !StagedBytes(g, x_element_bytes)) throw std::bad_alloc();
      convolution.x_copy = {g.spatial,
                            g.batch,
                            runs_of(g.in_channels, whole.in_channels, x_element_bytes),
                            g.in,
                            staged ? g.padding_low : kNone,
                            staged ? g.padding_high : kNone,
                            whole.in};
      x_bytes = std::max(x_bytes, WholePages(convolution.x_copy.bytes()));
    }
    if (CopiesY()) {
      convolution.y_copy = {
          g.spatial, g.batch, runs_of(g.out_channels, whole.out_channels, y_element_bytes),
          g.out,     kNone,   kNone,
          whole.out};
      y_bytes = std::max(y_bytes, WholePages(convolution.y_copy.bytes()));
    }
    if (runs.size() > 1) {
      addend_bytes = std::max(addend_bytes, WholePages(convolution.ResultBytes(kind)));
    }
  }
}

// The same for DepthwiseWgrad, which needs no primitives.
void ConvPlan::Impl::MakeDepthwise(const ConvProblem& problem, const std::vector<ConvPiece>& cut) {
  const ConvGeometry& g = problem.geometry;
  depthwise = true;
  std::array<int64_t, kMaxSpatialAxes + 2> strides{1, 1};
  int64_t stride = g.out_channels;
  for (int axis = g.spatial; axis-- > 0;) {
    strides[static_cast<size_t>(axis) + 2] = stride;
    stride *= g.kernel[axis];
  }
  runs[0].w = UserWeightsDesc(g, memory::data_type::f32, strides, strides[0]);
  runs[0].reordered = runs[0].user_w != runs[0].w;
  for (const ConvPiece& piece : cut) {
    if (FindConvolution(piece.geometry) == convolutions.size()) {
      convolutions.push_back({piece.geometry, {}, {}, {}});
    }
  }
  MakeCopies(g);
}

// Cuts the problem, or returns null if the pieces cannot agree on one format of the weights.
std::unique_ptr<ConvPlan::Impl> ConvPlan::Impl::Cut(const ConvProblem& problem, ConvSplit split,
                                                    int64_t workers) {
  split = LimitedSplit(problem.kind, problem.geometry, split, MaxPixels(problem));
  std::vector<ConvPiece> cut = SplitConv(problem.kind, problem.geometry, split);
  const size_t all = cut.size();
  cut.erase(std::remove_if(cut.begin(), cut.end(),
                           [](const ConvPiece& piece) { return piece.geometry.IsAllZero(); }),
            cut.end());
  const bool fprop = problem.kind == ConvKind::kFprop, dgrad = problem.kind == ConvKind::kDgrad;
  Impl empty;
  empty.kind = problem.kind;
  empty.workers = std::min<int64_t>(workers, static_cast<int64_t>(cut.size()));
  empty.operand_type = problem.operand_type;
  empty.copied = split.CutsRows();
  if (cut.size() < all && problem.kind != ConvKind::kWgrad) {
    empty.zeroed_bytes = ResultBytes(problem);
  }
  empty.x_element_bytes = ffi::ByteWidth(dgrad ? problem.result_type : problem.operand_type);
  empty.y_element_bytes = ffi::ByteWidth(fprop ? problem.result_type : problem.operand_type);
  empty.MakeRuns(problem);

  const bool must_stage = problem.kind == ConvKind::kWgrad &&
                          std::any_of(cut.begin(), cut.end(), [](const auto& piece) {
                            return WgradNeedsStaging(piece.geometry);
                          });
  std::unique_ptr<Impl> plan;
  if (!must_stage) {
    plan = std::make_unique<Impl>(empty);
    if (!plan->MakeConvolutions(problem, cut, /*stage=*/false)) plan = nullptr;
  }
  if ((!plan || plan->Slowest() > 0) && HasPadding(problem.geometry)) {
    auto staged = std::make_unique<Impl>(empty);
    if (staged->MakeConvolutions(problem, cut, /*stage=*/true) &&
        (!plan || staged->Slowest() < plan->Slowest())) {
      plan = std::move(staged);
    }
  }
  if (problem.kind == ConvKind::kWgrad && IsDepthwise(problem.geometry) &&
      (!plan || plan->Slowest() > 0)) {
    plan = std::make_unique<Impl>(empty);
    plan->MakeDepthwise(problem, cut);
  }
  if (!plan) return nullptr;
  for (const ConvPiece& piece : cut) {
    std::vector<size_t> of_runs;
    for (const SummedRun& run : plan->runs) {
      of_runs.push_back(
          plan->FindConvolution(WithSummed(problem.kind, piece.geometry, run.channels)));
    }
    plan->pieces.push_back({std::move(of_runs),
                            static_cast<size_t>(piece.x_offset) * plan->x_element_bytes,
                            static_cast<size_t>(piece.y_offset) * plan->y_element_bytes});
  }
  return plan;
}

std::unique_ptr<const ConvPlan::Impl> ConvPlan::Impl::Make(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  const int64_t min_chunks = MinChunks(g);
  // From what is fastest to what takes the least memory, until one fits.
  std::unique_ptr<Impl> best;
  const auto consider = [&](ConvSplit split, int64_t workers) {
    if (!split.CutsImages()) split.chunks = std::max(split.chunks, min_chunks);
    std::unique_ptr<Impl> plan = Cut(problem, split, workers);
    if (plan && (!best || plan->ScratchBytes() < best->ScratchBytes())) best = std::move(plan);
    return best && best->ScratchBytes() <= kMaxScratchBytes;
  };
  const int64_t useful = UsefulThreads(problem, ThreadsWorthWaking(problem.geometry));
  int64_t workers = useful;
  for (;; workers /= 2) {
    const ConvSplit split = BalancedSplit(problem.kind, g, workers);
    if (consider(split, workers)) break;
    if (split.CutsImages() && consider({std::min(g.batch, workers)}, workers)) break;
    if (consider({g.batch}, workers)) break;
    if (workers == 1) {
      if (!consider({g.batch, {4, 1, 1}}, 1)) consider({g.batch, {16, 1, 1}}, 1);
      break;
    }
  }
  if (!best) throw dnnl::error(dnnl_unimplemented, "no format of the weights that all pieces take");
  if (best->Slowest() == kReferenceSlowness) {
    // oneDNN turns matrix products down when their workspace would be huge, and is a hundred times
    // slower then. Fewer rows need less of it.
    for (int64_t blocks = 2; blocks <= g.out[0]; blocks *= 2) {
      std::unique_ptr<Impl> plan = Cut(problem, {g.batch, {blocks, 1, 1}}, best->workers);
      if (!plan || plan->Slowest() == kReferenceSlowness) continue;
      best = std::move(plan);
      if (best->ScratchBytes() <= kMaxScratchBytes) break;
    }
  }
  if (best->Slowest() > 0 && best->pieces.size() > static_cast<size_t>(g.batch)) {
    // The padding of a piece of rows may be what oneDNN has no good code for.
    std::unique_ptr<Impl> whole =
        Cut(problem, {std::max(best->workers, min_chunks)}, best->workers);
    if (whole && whole->Slowest() < best->Slowest() &&
        whole->ScratchBytes() <= std::max(best->ScratchBytes(), kMaxScratchBytes)) {
      best = std::move(whole);
    }
  }
  best->cramped = workers < useful || best->ScratchBytes() > kMaxScratchBytes;
  best->MakeReorders();
  return best;
}

class ConvPlan::Impl::Runner {
 public:
  // `scratch` has WorkerBytes().
  Runner(const Impl& plan, char* scratch)
      : plan_(plan),
        x_(scratch + plan.scratchpad_bytes),
        y_(x_ + plan.x_bytes),
        addend_(y_ + plan.y_bytes),
        scratch_(scratch),
        stream_(CpuEngine()),
        calls_(plan.convolutions.size()) {}

  // `weights` are those of each run, as oneDNN wants them.
  void Run(const Piece& piece, char* x, char* const* weights, char* y) {
    const bool fprop = plan_.kind == ConvKind::kFprop, dgrad = plan_.kind == ConvKind::kDgrad;
    char* const piece_x = x + piece.x_offset;
    char* const piece_y = y + piece.y_offset;
    char* const used_x = plan_.CopiesX() ? x_ : piece_x;
    char* const used_y = plan_.CopiesY() ? y_ : piece_y;
    for (size_t i = 0; i < plan_.runs.size(); ++i) {
      const Convolution& convolution = plan_.convolutions[piece.convolutions[i]];
      const size_t source_offset = plan_.runs[i].source_offset;
      if (plan_.CopiesX() && !dgrad) convolution.x_copy.CopyIn(piece_x + source_offset, x_);
      if (plan_.CopiesY() && !fprop) convolution.y_copy.CopyIn(piece_y + source_offset, y_);
      if (plan_.depthwise) {
        DepthwiseWgrad(convolution.geometry, plan_.operand_type, used_x, used_y,
                       reinterpret_cast<float*>(weights[i]));
        continue;
      }
      Call(piece.convolutions[i], dgrad && i > 0 ? addend_ : used_x, weights[i],
           fprop && i > 0 ? addend_ : used_y);
      if (i > 0) Add(convolution.ResultBytes(plan_.kind), fprop ? used_y : used_x);
    }
    const Convolution& convolution = plan_.convolutions[piece.convolutions[0]];
    if (plan_.CopiesX() && dgrad) convolution.x_copy.CopyOut(x_, piece_x);
    if (plan_.CopiesY() && fprop) convolution.y_copy.CopyOut(y_, piece_y);
  }

 private:
  // A primitive's memory objects: pointing them elsewhere is faster than making them.
  struct Arguments {
    memory x, w, y;
    std::unordered_map<int, memory> all;
  };

  // Adds what a run has left.
  void Add(size_t bytes, char* to) const {
    const float* const addends = reinterpret_cast<const float*>(addend_);
    float* const sums = reinterpret_cast<float*>(to);
    for (size_t i = 0; i < bytes / sizeof(float); ++i) sums[i] += addends[i];
  }

  void Call(size_t index, char* x, char* w, char* y) {
    const OnednnConv& onednn = plan_.convolutions[index].onednn;
    std::optional<Arguments>& call = calls_[index];
    if (!call) {
      const memory scratchpad(onednn.scratchpad, CpuEngine(), scratch_);
      call = Arguments{memory(onednn.x, CpuEngine(), x),
                       memory(onednn.w, CpuEngine(), w),
                       memory(onednn.y, CpuEngine(), y),
                       {}};
      const bool fprop = plan_.kind == ConvKind::kFprop, dgrad = plan_.kind == ConvKind::kDgrad;
      call->all = {{dgrad ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, call->x},
                   {fprop || dgrad ? DNNL_ARG_WEIGHTS : DNNL_ARG_DIFF_WEIGHTS, call->w},
                   {fprop ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, call->y},
                   {DNNL_ARG_SCRATCHPAD, scratchpad}};
    } else {
      call->x.set_data_handle(x);
      call->w.set_data_handle(w);
      call->y.set_data_handle(y);
    }
    Execute(onednn.primitive, stream_, call->all);
  }

  const Impl& plan_;
  char *const x_, *const y_, *const addend_, *const scratch_;
  dnnl::stream stream_;
  std::vector<std::optional<Arguments>> calls_;
};

void ConvPlan::Impl::Run(ffi::ThreadPool& pool, char* x, char* w, char* y) const {
  if (kind == ConvKind::kWgrad) return RunWgrad(pool, x, w, y);
  const size_t workers_bytes = MultipliedBytes(static_cast<size_t>(workers), WorkerBytes());
  const Scratch scratch(reordered_bytes + std::max(workers_bytes, ReorderScratchBytes()));
  char* const workers_scratch = scratch.data() + reordered_bytes;
  std::vector<char*> weights;
  for (const SummedRun& run : runs) {
    weights.push_back(w + run.w_offset);
    if (!run.reordered) continue;
    char* const reordered = scratch.data() + run.reordered_offset;
    run.reorder.Run(pool, weights.back(), reordered, workers_scratch);
    weights.back() = reordered;
  }
  FillZeros(pool, kind == ConvKind::kFprop ? y : x);
  FirstException exception;
  std::vector<std::optional<Runner>> runners(static_cast<size_t>(workers));
  ParallelFor(pool, workers, static_cast<int64_t>(pieces.size()),
              [&](int64_t task, int64_t worker) {
                exception.Guard([&] {
                  const SingleThreaded single;
                  const size_t index = static_cast<size_t>(worker);
                  std::optional<Runner>& runner = runners[index];
                  if (!runner) runner.emplace(*this, workers_scratch + index * WorkerBytes());
                  runner->Run(pieces[static_cast<size_t>(task)], x, weights.data(), y);
                });
              });
  exception.Rethrow();
}

void ConvPlan::Impl::FillZeros(ffi::ThreadPool& pool, char* result) const {
  constexpr size_t kBytesPerTask = 1 << 20;
  const int64_t tasks = static_cast<int64_t>(RoundUp(zeroed_bytes, kBytesPerTask) / kBytesPerTask);
  ParallelFor(pool, workers, tasks, [&](int64_t task, int64_t) {
    const size_t first = static_cast<size_t>(task) * kBytesPerTask;
    std::memset(result + first, 0, std::min(kBytesPerTask, zeroed_bytes - first));
  });
}

// Every sum is made of the same pieces in the same order at every call, whoever computes it.
void ConvPlan::Impl::RunWgrad(ffi::ThreadPool& pool, char* x, char* dw, char* dy) const {
  const size_t sums_bytes = MultipliedBytes(static_cast<size_t>(workers), SumBytes());
  const Scratch scratch(sums_bytes +
                        std::max(MultipliedBytes(static_cast<size_t>(workers), WorkerBytes()),
                                 ReorderScratchBytes()));
  char* const workers_scratch = scratch.data() + sums_bytes;
  if (AddsDoubles()) {
    AddPieces<double>(pool, scratch.data(), workers_scratch, x, dw, dy);
  } else {
    AddPieces<float>(pool, scratch.data(), workers_scratch, x, dw, dy);
  }
  if (!runs[0].reordered) return;
  runs[0].reorder.Run(pool, scratch.data() + UnorderedOffset(), dw, workers_scratch);
}

// `Number` is that in which the sums of a worker's pieces are added. The result goes to dw, or, if
// it is to be reordered, into `sums`.
template <typename Number>
void ConvPlan::Impl::AddPieces(ffi::ThreadPool& pool, char* sums, char* workers_scratch, char* x,
                               char* dw, char* dy) const {
  const int64_t count = static_cast<int64_t>(pieces.size());
  const int64_t elements = static_cast<int64_t>(runs[0].w.get_size() / sizeof(float));
  std::vector<const Number*> parts(static_cast<size_t>(workers));
  for (size_t sum = 0; sum < parts.size(); ++sum) {
    parts[sum] = reinterpret_cast<const Number*>(sums + sum * SumBytes());
  }
  FirstException exception;
  ParallelFor(pool, workers, workers, [&](int64_t sum, int64_t worker) {
    exception.Guard([&] {
      const SingleThreaded single;
      Runner runner(*this, workers_scratch + static_cast<size_t>(worker) * WorkerBytes());
      const int64_t first = count * sum / workers, last = count * (sum + 1) / workers;
      char* const total = sums + static_cast<size_t>(sum) * SumBytes();
      char* const addend = total + sizeof(Number) / sizeof(float) * WeightsBytes();
      Number* const totals = reinterpret_cast<Number*>(total);
      const float* const addends = reinterpret_cast<const float*>(addend);
      for (int64_t piece = first; piece < last; ++piece) {
        const bool into_total = piece == first && std::is_same_v<Number, float>;
        char* const sum_of_piece = into_total ? total : addend;
        runner.Run(pieces[static_cast<size_t>(piece)], x, &sum_of_piece, dy);
        if (into_total) continue;
        if (piece == first) {
          std::copy_n(addends, elements, totals);
        } else {
          for (int64_t i = 0; i < elements; ++i) totals[i] += addends[i];
        }
      }
    });
  });
  exception.Rethrow();

  const bool reordered = runs[0].reordered;
  float* const result = reinterpret_cast<float*>(reordered ? sums + UnorderedOffset() : dw);
  if (parts.size() == 1 && std::is_same_v<Number, float> && reordered) return;
  constexpr int64_t kMinElements = 32768;
  const int64_t tasks = std::clamp<int64_t>(elements / kMinElements, 1, workers);
  ParallelFor(pool, workers, tasks, [&](int64_t task, int64_t) {
    const int64_t first = elements * task / tasks;
    AddParts(parts, result, first, elements * (task + 1) / tasks - first);
  });
}

ConvPlan::ConvPlan(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ConvPlan::~ConvPlan() = default;

std::shared_ptr<const ConvPlan> ConvPlan::Make(const ConvProblem& problem) {
  return std::shared_ptr<const ConvPlan>(new ConvPlan(Impl::Make(problem)));
}

size_t ConvPlan::ScratchBytes() const { return impl_->ScratchBytes(); }
int64_t ConvPlan::workers() const { return impl_->workers; }
bool ConvPlan::is_cramped() const { return impl_->cramped; }

void ConvPlan::Run(ffi::ThreadPool& pool, void* x, void* w, void* y) const {
  impl_->Run(pool, static_cast<char*>(x), static_cast<char*>(w), static_cast<char*>(y));
}

bool OnednnMultipliesBf16() {
  constexpr unsigned kBf16 = dnnl_cpu_isa_avx512_core_bf16;  // a set of bits, each an extension
  return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & kBf16) == kBf16;
}

bool OnednnSupports(ffi::DataType type) {
  if (type != ffi::DataType::F32 && type != ffi::DataType::BF16) return false;
  const SingleThreaded single;
  ConvGeometry geometry;
  geometry.spatial = 2;
  geometry.batch = 1;
  geometry.in_channels = geometry.out_channels = 32;
  geometry.in = geometry.out = {8, 8, 1};
  for (const ConvKind kind : {ConvKind::kFprop, ConvKind::kDgrad, ConvKind::kWgrad}) {
    try {
      if (MakeOnednnConv(kind, geometry, type, type, std::nullopt).slowness == kReferenceSlowness) {
        return false;
      }
    } catch (const dnnl::error&) {
      return false;
    }
  }
  return true;
}

std::string OnednnVersionText() {
  const dnnl_version_t* version = dnnl_version();
  return std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

}  // namespace jax_convgrad
