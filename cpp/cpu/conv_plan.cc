#include "cpu/conv_plan.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "cpu/conv_split.h"
#include "cpu/lru_cache.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace jax_convgrad {
namespace {

namespace ffi = ::xla::ffi;
using dnnl::memory;

constexpr size_t kMostCachedPlans = 512;
// Scratch memory of one call. Two gradients can run at once and their layer's backward pass may
// take 64 MB beside its arrays, oneDNN's code and tables included.
constexpr size_t kMostScratchBytes = size_t{24} << 20;
// oneDNN's kernels address parts of an array with 32 bits.
constexpr int64_t kMostPieceBytes = int64_t{1} << 30;
// A thread is worth waking for this much work.
constexpr double kLeastFlops = 2e6;
constexpr double kLeastBytes = 128 << 10;

// oneDNN uses one OpenMP thread while this lives. The setting belongs to the calling thread, whose
// own value comes back afterwards.
class SingleThreaded {
 public:
  SingleThreaded() : threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleThreaded() { omp_set_num_threads(threads_); }
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  const int threads_;
};

// Never destroyed: pool threads may still run handlers while the process ends.
const dnnl::engine& Engine() {
  static const dnnl::engine* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

memory::data_type OnednnType(ffi::DataType type) {
  return type == ffi::DataType::BF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::dims Leading(const ConvGeometry& g, const ConvGeometry::PerAxis& values) {
  return memory::dims(values.begin(), values.begin() + g.spatial);
}

memory::dims Joined(memory::dims first, const memory::dims& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// x or y: channels-last in memory.
memory::desc ActivationDesc(const ConvGeometry& g, const ConvGeometry::PerAxis& size,
                            int64_t channels, memory::data_type type) {
  constexpr memory::format_tag kTags[] = {memory::format_tag::nwc, memory::format_tag::nhwc,
                                          memory::format_tag::ndhwc};
  return {Joined({g.batch, channels}, Leading(g, size)), type, kTags[g.spatial - 1]};
}

memory::dims WeightsDims(const ConvGeometry& g) {
  const int64_t out = g.out_channels / g.groups, in = g.in_channels / g.groups;
  const memory::dims channels =
      g.groups > 1 ? memory::dims{g.groups, out, in} : memory::dims{out, in};
  return Joined(channels, Leading(g, g.kernel));
}

// The user's w or dw.
memory::desc UserWeightsDesc(const ConvProblem& problem, memory::data_type type) {
  const ConvGeometry& g = problem.geometry;
  const auto& strides = problem.w_strides;
  memory::dims own(strides.begin(), strides.begin() + g.spatial + 2);
  if (g.groups > 1) own.insert(own.begin(), g.out_channels / g.groups * strides[0]);
  return {WeightsDims(g), type, own};
}

dnnl::primitive_attr UserScratchpad() {
  dnnl::primitive_attr attr;  // oneDNN's own scratchpad is shared between threads and not safe
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

// How good an implementation is, by oneDNN's name for it: 0 is code made for the problem.
int Slowness(const std::string& name) {
  if (name.find("ref") != std::string::npos) return 2;
  return name.find("gemm") != std::string::npos ? 1 : 0;
}

struct Convolution {
  ConvGeometry geometry;
  dnnl::primitive primitive;
  memory::desc x, w, y, scratchpad;
  int slowness = 0;
};

template <typename PrimitiveDesc, typename Primitive>
Convolution Finish(const ConvGeometry& geometry, const PrimitiveDesc& desc, const memory::desc& x,
                   const memory::desc& w, const memory::desc& y) {
  return {
      geometry, Primitive(desc), x, w, y, desc.scratchpad_desc(), Slowness(desc.impl_info_str())};
}

// Makes the primitive. `w` fixes the format of the weights; without it oneDNN chooses.
Convolution MakeConvolution(const ConvProblem& problem, const ConvGeometry& g,
                            const std::optional<memory::desc>& w) {
  const memory::data_type type = OnednnType(problem.operand_type);
  const memory::data_type result = OnednnType(problem.result_type);
  const bool dgrad = problem.kind == ConvKind::kDgrad, wgrad = problem.kind == ConvKind::kWgrad;
  const memory::desc x = ActivationDesc(g, g.in, g.in_channels, dgrad ? result : type);
  const memory::desc y =
      ActivationDesc(g, g.out, g.out_channels, problem.kind == ConvKind::kFprop ? result : type);
  // Parts of a weight gradient are added, so they are always float32.
  const memory::desc weights =
      w ? *w
        : memory::desc(WeightsDims(g), wgrad ? memory::data_type::f32 : type,
                       memory::format_tag::any);
  const memory::dims strides = Leading(g, g.strides);
  const memory::dims low = Leading(g, g.padding_low), high = Leading(g, g.padding_high);
  ConvGeometry::PerAxis zeros_between{};  // oneDNN counts the zeros between the taps
  for (size_t axis = 0; axis < zeros_between.size(); ++axis)
    zeros_between[axis] = g.dilation[axis] - 1;
  const memory::dims dilation = Leading(g, zeros_between);
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const dnnl::primitive_attr attr = UserScratchpad();

  const auto forward = [&](const memory::desc& src, const memory::desc& wei,
                           const memory::desc& dst) {
    return dnnl::convolution_forward::primitive_desc(Engine(), dnnl::prop_kind::forward_training,
                                                     algorithm, src, wei, dst, strides, dilation,
                                                     low, high, attr);
  };
  if (problem.kind == ConvKind::kFprop) {
    const auto desc = forward(x, weights, y);
    return Finish<decltype(desc), dnnl::convolution_forward>(g, desc, x, desc.weights_desc(), y);
  }
  // The hint of a gradient is a forward convolution of the operands' type.
  const auto hint = forward(ActivationDesc(g, g.in, g.in_channels, type),
                            memory::desc(WeightsDims(g), type, memory::format_tag::any),
                            ActivationDesc(g, g.out, g.out_channels, type));
  if (dgrad) {
    const dnnl::convolution_backward_data::primitive_desc desc(
        Engine(), algorithm, x, weights, y, strides, dilation, low, high, hint, attr);
    return Finish<decltype(desc), dnnl::convolution_backward_data>(g, desc, x, desc.weights_desc(),
                                                                   y);
  }
  const dnnl::convolution_backward_weights::primitive_desc desc(
      Engine(), algorithm, x, weights, y, strides, dilation, low, high, hint, attr);
  return Finish<decltype(desc), dnnl::convolution_backward_weights>(g, desc, x,
                                                                    desc.diff_weights_desc(), y);
}

// Threads that the amount of work can keep busy.
int64_t UsefulThreads(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  double flops = 2.0 * static_cast<double>(g.batch) * static_cast<double>(g.out_channels) *
                 static_cast<double>(g.in_channels / g.groups);
  double x_bytes = 4.0 * static_cast<double>(g.batch * g.in_channels);
  double y_bytes = 4.0 * static_cast<double>(g.batch * g.out_channels);
  for (int axis = 0; axis < g.spatial; ++axis) {
    flops *= static_cast<double>(g.out[axis] * g.kernel[axis]);
    x_bytes *= static_cast<double>(g.in[axis]);
    y_bytes *= static_cast<double>(g.out[axis]);
  }
  const double useful = std::max(flops / kLeastFlops, (x_bytes + y_bytes) / kLeastBytes);
  const double most = static_cast<double>(problem.threads);
  return static_cast<int64_t>(std::clamp(useful, 1.0, most));
}

// Images per piece that keep both of a piece's arrays within kMostPieceBytes.
int64_t LeastChunks(const ConvGeometry& g) {
  int64_t x_bytes = 4 * g.batch * g.in_channels, y_bytes = 4 * g.batch * g.out_channels;
  for (int axis = 0; axis < g.spatial; ++axis) {
    x_bytes *= g.in[axis];
    y_bytes *= g.out[axis];
  }
  return std::min(g.batch, std::max(x_bytes, y_bytes) / kMostPieceBytes + 1);
}

// Adds `count` floats of each of `parts` in their order: the same sum at every call.
void AddParts(const std::vector<const float*>& parts, float* sum, int64_t first, int64_t count) {
  constexpr int64_t kBlock = 2048;  // stays in the innermost cache between the parts
  for (int64_t begin = first; begin < first + count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, first + count);
    for (int64_t i = begin; i < end; ++i) sum[i] = parts[0][i] + parts[1][i];
    for (size_t part = 2; part < parts.size(); ++part) {
      const float* const values = parts[part];
      for (int64_t i = begin; i < end; ++i) sum[i] += values[i];
    }
  }
}

void Execute(const dnnl::primitive& primitive, dnnl::stream& stream,
             const std::unordered_map<int, memory>& arguments) {
  primitive.execute(stream, arguments);
  stream.wait();
}

// Keeps the first exception of several threads. XLA's threads must never see one.
class FirstException {
 public:
  template <typename Body>
  void Guard(const Body& body) noexcept {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      body();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!exception_) exception_ = std::current_exception();
      failed_.store(true, std::memory_order_relaxed);
    }
  }

  void Rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr exception_;
};

size_t RoundUp(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

struct KeyHash {
  size_t operator()(const std::vector<int64_t>& key) const {
    size_t hash = 0;
    for (int64_t value : key) {
      hash ^= std::hash<int64_t>()(value) + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
    }
    return hash;
  }
};

}  // namespace

std::vector<int64_t> ConvProblem::Key() const {
  const ConvGeometry& g = geometry;
  std::vector<int64_t> key{static_cast<int64_t>(kind),
                           g.spatial,
                           g.batch,
                           g.in_channels,
                           g.out_channels,
                           g.groups,
                           static_cast<int64_t>(operand_type),
                           static_cast<int64_t>(result_type),
                           threads};
  for (const auto* values :
       {&g.in, &g.kernel, &g.out, &g.strides, &g.padding_low, &g.padding_high, &g.dilation}) {
    key.insert(key.end(), values->begin(), values->end());
  }
  key.insert(key.end(), w_strides.begin(), w_strides.end());
  return key;
}

struct ConvPlan::Impl {
  struct Piece {
    size_t convolution;  // index
    size_t x_offset;     // in bytes
    size_t y_offset;
  };

  ConvKind kind;
  int64_t workers = 1;
  std::vector<Convolution> convolutions;
  std::vector<Piece> pieces;
  memory::desc weights, user_weights;
  bool reordered = false;  // the user's weights are not as oneDNN wants them
  std::optional<dnnl::reorder> reorder;
  size_t reorder_scratchpad_bytes = 0;
  size_t scratchpad_bytes = 0;  // of the greediest convolution

  static std::unique_ptr<const Impl> Make(const ConvProblem& problem);
  static std::unique_ptr<Impl> Cut(const ConvProblem& problem, const ConvSplit& split,
                                   int64_t workers);
  void MakeReorder();
  int Slowest() const;
  size_t ScratchBytes() const;
  // Arrays in which a worker of wgrad adds up: the sum, and the addend if it has several pieces.
  size_t ArraysPerSum() const { return pieces.size() > static_cast<size_t>(workers) ? 2 : 1; }

  void Run(ffi::ThreadPool& pool, char* x, char* w, char* y) const;
  void RunReorder(dnnl::stream& stream, char* from, char* to) const;
  void RunPiece(const Piece& piece, dnnl::stream& stream, char* x, char* w, char* y,
                char* scratchpad) const;
  void RunWgrad(ffi::ThreadPool& pool, char* x, char* dw, char* dy) const;
};

// Cuts the problem, or returns null if the pieces cannot agree on one format of the weights.
std::unique_ptr<ConvPlan::Impl> ConvPlan::Impl::Cut(const ConvProblem& problem,
                                                    const ConvSplit& split, int64_t workers) {
  auto plan = std::make_unique<Impl>();
  plan->kind = problem.kind;
  const std::vector<ConvPiece> pieces = SplitConv(problem.kind, problem.geometry, split);
  plan->workers = std::min<int64_t>(workers, static_cast<int64_t>(pieces.size()));

  const auto find = [&plan](const ConvGeometry& geometry) {
    return std::find_if(plan->convolutions.begin(), plan->convolutions.end(),
                        [&](const Convolution& c) { return c.geometry == geometry; });
  };
  // The middle piece is of the most frequent kind: it chooses the format for all.
  const ConvGeometry& typical = pieces[pieces.size() / 2].geometry;
  plan->convolutions.push_back(MakeConvolution(problem, typical, std::nullopt));
  plan->weights = plan->convolutions[0].w;
  for (const ConvPiece& piece : pieces) {
    if (find(piece.geometry) != plan->convolutions.end()) continue;
    try {
      plan->convolutions.push_back(MakeConvolution(problem, piece.geometry, plan->weights));
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
      return nullptr;
    }
  }
  const bool dgrad = problem.kind == ConvKind::kDgrad, fprop = problem.kind == ConvKind::kFprop;
  const size_t x_width = ffi::ByteWidth(dgrad ? problem.result_type : problem.operand_type);
  const size_t y_width = ffi::ByteWidth(fprop ? problem.result_type : problem.operand_type);
  for (const ConvPiece& piece : pieces) {
    plan->pieces.push_back({static_cast<size_t>(find(piece.geometry) - plan->convolutions.begin()),
                            static_cast<size_t>(piece.x_offset) * x_width,
                            static_cast<size_t>(piece.y_offset) * y_width});
  }
  for (const Convolution& convolution : plan->convolutions) {
    plan->scratchpad_bytes =
        std::max(plan->scratchpad_bytes, RoundUp(convolution.scratchpad.get_size()));
  }
  const bool wgrad = problem.kind == ConvKind::kWgrad;
  plan->user_weights =
      UserWeightsDesc(problem, OnednnType(wgrad ? problem.result_type : problem.operand_type));
  plan->reordered = plan->user_weights != plan->weights;
  return plan;
}

int ConvPlan::Impl::Slowest() const {
  int slowest = 0;
  for (const Convolution& convolution : convolutions) {
    slowest = std::max(slowest, convolution.slowness);
  }
  return slowest;
}

size_t ConvPlan::Impl::ScratchBytes() const {
  const size_t weights_bytes = RoundUp(weights.get_size());
  const size_t count = static_cast<size_t>(workers);
  if (kind != ConvKind::kWgrad) {
    return (reordered ? weights_bytes : 0) + count * scratchpad_bytes;
  }
  return count * (ArraysPerSum() * weights_bytes + scratchpad_bytes);
}

void ConvPlan::Impl::MakeReorder() {
  if (!reordered) return;
  const bool wgrad = kind == ConvKind::kWgrad;
  const memory::desc& from = wgrad ? weights : user_weights;
  const memory::desc& to = wgrad ? user_weights : weights;
  const dnnl::reorder::primitive_desc desc(Engine(), from, Engine(), to, UserScratchpad());
  reorder.emplace(desc);
  reorder_scratchpad_bytes = desc.scratchpad_desc().get_size();
}

std::unique_ptr<const ConvPlan::Impl> ConvPlan::Impl::Make(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  const int64_t least_chunks = LeastChunks(g);
  // From what is fastest to what takes the least memory, until one fits.
  std::unique_ptr<Impl> best;
  const auto consider = [&](ConvSplit split, int64_t workers) {
    if (split.row_blocks <= 1) split.chunks = std::max(split.chunks, least_chunks);
    std::unique_ptr<Impl> plan = Cut(problem, split, workers);
    if (plan && (!best || plan->ScratchBytes() < best->ScratchBytes())) best = std::move(plan);
    return best && best->ScratchBytes() <= kMostScratchBytes;
  };
  for (int64_t workers = UsefulThreads(problem);; workers /= 2) {
    const ConvSplit split = BalancedSplit(problem.kind, g, workers);
    if (consider(split, workers)) break;
    if (split.row_blocks > 1 && consider({std::min(g.batch, workers), 1}, workers)) break;
    if (consider({g.batch, 1}, workers)) break;
    if (workers == 1) {
      if (CanSplitRows(g) && !consider({g.batch, 4}, 1)) consider({g.batch, 16}, 1);
      break;
    }
  }
  if (best->Slowest() > 0 && best->pieces.size() > static_cast<size_t>(g.batch)) {
    // The padding of a piece of rows may be what oneDNN has no good code for.
    std::unique_ptr<Impl> whole =
        Cut(problem, {std::max(best->workers, least_chunks), 1}, best->workers);
    if (whole && whole->Slowest() < best->Slowest() &&
        whole->ScratchBytes() <= std::max(best->ScratchBytes(), kMostScratchBytes)) {
      best = std::move(whole);
    }
  }
  best->MakeReorder();
  return best;
}

void ConvPlan::Impl::RunReorder(dnnl::stream& stream, char* from, char* to) const {
  const bool wgrad = kind == ConvKind::kWgrad;
  const Scratch scratchpad(reorder_scratchpad_bytes);
  memory::desc scratchpad_desc({static_cast<memory::dim>(reorder_scratchpad_bytes)},
                               memory::data_type::u8, memory::format_tag::a);
  Execute(*reorder, stream,
          {{DNNL_ARG_FROM, memory(wgrad ? weights : user_weights, Engine(), from)},
           {DNNL_ARG_TO, memory(wgrad ? user_weights : weights, Engine(), to)},
           {DNNL_ARG_SCRATCHPAD, memory(scratchpad_desc, Engine(), scratchpad.data())}});
}

void ConvPlan::Impl::RunPiece(const Piece& piece, dnnl::stream& stream, char* x, char* w, char* y,
                              char* scratchpad) const {
  const Convolution& c = convolutions[piece.convolution];
  const memory x_memory(c.x, Engine(), x + piece.x_offset);
  const memory w_memory(c.w, Engine(), w);
  const memory y_memory(c.y, Engine(), y + piece.y_offset);
  const memory scratchpad_memory(c.scratchpad, Engine(), scratchpad);
  switch (kind) {
    case ConvKind::kFprop:
      return Execute(c.primitive, stream,
                     {{DNNL_ARG_SRC, x_memory},
                      {DNNL_ARG_WEIGHTS, w_memory},
                      {DNNL_ARG_DST, y_memory},
                      {DNNL_ARG_SCRATCHPAD, scratchpad_memory}});
    case ConvKind::kDgrad:
      return Execute(c.primitive, stream,
                     {{DNNL_ARG_DIFF_DST, y_memory},
                      {DNNL_ARG_WEIGHTS, w_memory},
                      {DNNL_ARG_DIFF_SRC, x_memory},
                      {DNNL_ARG_SCRATCHPAD, scratchpad_memory}});
    case ConvKind::kWgrad:
      return Execute(c.primitive, stream,
                     {{DNNL_ARG_SRC, x_memory},
                      {DNNL_ARG_DIFF_DST, y_memory},
                      {DNNL_ARG_DIFF_WEIGHTS, w_memory},
                      {DNNL_ARG_SCRATCHPAD, scratchpad_memory}});
  }
}

void ConvPlan::Impl::Run(ffi::ThreadPool& pool, char* x, char* w, char* y) const {
  if (kind == ConvKind::kWgrad) return RunWgrad(pool, x, w, y);
  const size_t weights_bytes = reordered ? RoundUp(weights.get_size()) : 0;
  const Scratch scratch(weights_bytes + static_cast<size_t>(workers) * scratchpad_bytes);
  if (reordered) {
    const SingleThreaded single;
    dnnl::stream stream(Engine());
    RunReorder(stream, w, scratch.data());
    w = scratch.data();
  }
  char* const scratchpads = scratch.data() + weights_bytes;
  FirstException exception;
  ParallelFor(pool, workers, static_cast<int64_t>(pieces.size()),
              [&](int64_t task, int64_t worker) {
                exception.Guard([&] {
                  const SingleThreaded single;
                  dnnl::stream stream(Engine());
                  RunPiece(pieces[static_cast<size_t>(task)], stream, x, w, y,
                           scratchpads + static_cast<size_t>(worker) * scratchpad_bytes);
                });
              });
  exception.Rethrow();
}

// Every sum is made of the same pieces in the same order at every call, whoever computes it.
void ConvPlan::Impl::RunWgrad(ffi::ThreadPool& pool, char* x, char* dw, char* dy) const {
  const size_t weights_bytes = RoundUp(weights.get_size());
  const size_t sums = static_cast<size_t>(workers);
  const size_t sum_bytes = ArraysPerSum() * weights_bytes;
  const Scratch scratch(sums * (sum_bytes + scratchpad_bytes));
  char* const scratchpads = scratch.data() + sums * sum_bytes;
  std::vector<const float*> parts(sums);
  for (size_t sum = 0; sum < sums; ++sum) {
    parts[sum] = reinterpret_cast<const float*>(scratch.data() + sum * sum_bytes);
  }
  const int64_t elements = static_cast<int64_t>(weights.get_size() / sizeof(float));

  FirstException exception;
  ParallelFor(pool, workers, workers, [&](int64_t sum, int64_t worker) {
    exception.Guard([&] {
      const SingleThreaded single;
      dnnl::stream stream(Engine());
      char* const total = scratch.data() + static_cast<size_t>(sum) * sum_bytes;
      char* const addend = total + weights_bytes;
      const int64_t count = static_cast<int64_t>(pieces.size());
      const int64_t first = count * sum / workers, last = count * (sum + 1) / workers;
      for (int64_t piece = first; piece < last; ++piece) {
        RunPiece(pieces[static_cast<size_t>(piece)], stream, x, piece == first ? total : addend, dy,
                 scratchpads + static_cast<size_t>(worker) * scratchpad_bytes);
        if (piece == first) continue;
        float* const floats = reinterpret_cast<float*>(total);
        AddParts({floats, reinterpret_cast<const float*>(addend)}, floats, 0, elements);
      }
    });
  });
  exception.Rethrow();

  float* const total = reinterpret_cast<float*>(reordered ? scratch.data() : dw);
  if (sums > 1) {
    constexpr int64_t kLeastElements = 32768;
    const int64_t tasks = std::clamp<int64_t>(elements / kLeastElements, 1, workers);
    ParallelFor(pool, workers, tasks, [&](int64_t task, int64_t) {
      const int64_t first = elements * task / tasks;
      AddParts(parts, total, first, elements * (task + 1) / tasks - first);
    });
  } else if (!reordered) {
    std::copy_n(parts[0], elements, total);
  }
  if (!reordered) return;
  const SingleThreaded single;
  dnnl::stream stream(Engine());
  RunReorder(stream, scratch.data(), dw);
}

ConvPlan::ConvPlan(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ConvPlan::~ConvPlan() = default;

std::shared_ptr<const ConvPlan> ConvPlan::Get(const ConvProblem& problem) {
  using Cache = LruCache<std::vector<int64_t>, ConvPlan, KeyHash>;
  static Cache* const cache = new Cache(kMostCachedPlans);
  const std::vector<int64_t> key = problem.Key();
  if (std::shared_ptr<const ConvPlan> plan = cache->Find(key)) return plan;
  // Made outside the cache's lock: other problems need not wait.
  const SingleThreaded single;
  return cache->Insert(key, std::shared_ptr<const ConvPlan>(new ConvPlan(Impl::Make(problem))));
}

void ConvPlan::Run(ffi::ThreadPool& pool, void* x, void* w, void* y) const {
  impl_->Run(pool, static_cast<char*>(x), static_cast<char*>(w), static_cast<char*>(y));
}

bool OnednnSupports(ffi::DataType type) {
  if (type != ffi::DataType::F32 && type != ffi::DataType::BF16) return false;
  const SingleThreaded single;
  ConvProblem problem{};
  problem.operand_type = problem.result_type = type;
  problem.geometry.spatial = 2;
  problem.geometry.batch = 1;
  problem.geometry.in_channels = problem.geometry.out_channels = 32;
  problem.geometry.in = problem.geometry.out = {8, 8, 1};
  for (const ConvKind kind : {ConvKind::kFprop, ConvKind::kDgrad, ConvKind::kWgrad}) {
    problem.kind = kind;
    try {
      if (MakeConvolution(problem, problem.geometry, std::nullopt).slowness > 1) return false;
    } catch (const dnnl::error&) {
      return false;
    }
  }
  return true;
}

std::string OnednnVersion() {
  const dnnl_version_t* version = dnnl_version();
  return std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

}  // namespace jax_convgrad
