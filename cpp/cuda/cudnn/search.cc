#include "cuda/cudnn/search.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "cuda/cudnn/handle.h"
#include "cuda/cudnn/late_engines.h"
#include "cuda/cudnn/plan.h"
#include "cuda/cudnn/workspace_cost.h"
#include "cuda/kernels/reordered.h"
#include "cuda/status.h"

namespace jax_convgrad {
namespace {

// How many engines `default` times, from the front of the heuristics' list; one engine behind them
// is timed too (FindLateEngine). On an H100, over 123 operators of published layers
// (benchmarks/h100/engine_ranks.txt), the first engine of the list is 1.08 times slower than the
// best one (geometric mean; 5.8 times in one case), and the best of the first 12 is 1.010 times
// slower (1.70 at most). Nearly all of that is due to the one engine behind them: with it the mean
// is 1.0003 (1.013 at most), where the first 32 of the list give 1.0017 (1.18). Timing so many
// costs about a tenth of a second, a third of what XLA spends on choosing among its own.
constexpr int kDefaultEngines = 12;
// How many it times behind one of the project's own kernels that works, and then no late engine.
// Over 291 operators of thin layers (benchmarks/h100/thin.json, thin_again.json and thin_f32.json)
// the best of these is more than 3% slower than the best of all in 2 cases (6% at most); over 90 of
// windows side by side (benchmarks/h200/windows.json) in 5 (10% at most), two of which the first 12
// would have found; over 39 of thin and depthwise layers (benchmarks/h200/engine_ranks.txt) in
// none. Each engine left out saves some 4 ms of a step's first run.
constexpr int kDefaultEnginesBehindOwn = 2;
// A timed search measures an engine in groups of runs and keeps the fastest group.
constexpr int kGroups = 3;
constexpr int kMaxRuns = 20;
constexpr double kGroupMicroseconds = 300;
// An engine whose second run takes this many times the best so far is not measured further, nor
// one whose very first run, which may load kernels, takes kFirstRunRatio times that long.
constexpr double kEarlyStopRatio = 3;
constexpr double kFirstRunRatio = 10;

class Event {
 public:
  Event() : status_(cudaEventCreate(&event_)) {}
  ~Event() {
    if (status_ == cudaSuccess) (void)cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaError_t status() const { return status_; }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
  cudaError_t status_;
};

using Plan = std::shared_ptr<const ConvPlan>;

// The candidates for a problem: the engines that cuDNN's heuristics propose, in their order, and
// the project's own kernels that serve it, before and behind them. All take the weights as the
// problem has them.
class CandidateList {
 public:
  static ffi::ErrorOr<CandidateList> Query(const ConvProblem& problem, const DnnHandle& handle) {
    // If cuDNN has no engine, the project's own kernels may still serve, and the other way round.
    ffi::ErrorOr<NativePlans> native = MakeNativePlans(problem);
    ffi::ErrorOr<ConvCandidates> dnn =
        ConvCandidates::Query(WithWeightsAsOXI(problem), handle.get());
    CandidateList list(problem);
    if (native.has_error()) {
      list.note_ = Text("the project's own kernels failed: ", native.error().message());
    } else {
      list.native_ = *std::move(native);
    }
    if (dnn.has_value()) {
      list.dnn_.emplace(*std::move(dnn));
      return list;
    }
    const ffi::Error& error = dnn.error();
    if (list.size() == 0) {
      if (list.note_.empty()) return ffi::Unexpected(error);
      return ffi::Unexpected(ffi::Error(error.errc().value_or(ffi::ErrorCode::kInternal),
                                        Text(error.message(), "; ", list.note_)));
    }
    list.note_ = Text("cuDNN names no engine: ", error.message());
    list.out_of_memory_ = error.errc() == ffi::ErrorCode::kResourceExhausted;
    return list;
  }

  // Why a possible candidate is not one; empty if there is no such thing.
  const std::string& note() const { return note_; }
  bool out_of_memory() const { return out_of_memory_; }
  // How many of the project's own come before cuDNN's.
  size_t own_before() const { return native_.before.size(); }
  size_t size() const { return native_.before.size() + DnnCount() + native_.behind.size(); }
  const std::string& engine(size_t i) const {
    const Plan native = Native(i);
    return native != nullptr ? native->engine() : dnn_->engine(i - DnnFirst());
  }
  int64_t workspace_bytes(size_t i) const {
    const Plan native = Native(i);
    if (native != nullptr) return native->workspace_bytes();
    return WithWeightsCopy(problem_, dnn_->workspace_bytes(i - DnnFirst()));
  }
  // Whether it is one of the project's own.
  bool native(size_t i) const { return Native(i) != nullptr; }
  bool transforms(size_t i) const {
    return Native(i) == nullptr && dnn_->transforms(i - DnnFirst());
  }
  ffi::ErrorOr<Plan> Build(size_t i) const {
    if (Plan native = Native(i)) return native;
    ffi::ErrorOr<Plan> plan = dnn_->Build(i - DnnFirst());
    if (plan.has_error()) return plan;
    return Reordered(problem_, *std::move(plan));
  }

 private:
  explicit CandidateList(const ConvProblem& problem) : problem_(problem) {}

  size_t DnnCount() const { return dnn_ ? dnn_->size() : 0; }
  // The number of cuDNN's first engine.
  size_t DnnFirst() const { return native_.before.size(); }
  // Candidate i if it is the project's own, else null.
  Plan Native(size_t i) const {
    if (i < DnnFirst()) return native_.before[i];
    const size_t behind = DnnFirst() + DnnCount();
    return i < behind ? nullptr : native_.behind[i - behind];
  }

  ConvProblem problem_;
  NativePlans native_;
  std::optional<ConvCandidates> dnn_;
  std::string note_;
  bool out_of_memory_ = false;  // of the host or the device, while cuDNN was asked
};

// One search: the problem, its candidates, and what was found out about each of them.
class Search {
 public:
  Search(const ConvProblem& problem, const ConvBuffers& buffers, const DnnHandle& handle,
         DeviceScratch* scratch, CandidateList candidates)
      : problem_(problem),
        buffers_(buffers),
        handle_(handle),
        scratch_(*scratch),
        candidates_(std::move(candidates)),
        plans_(candidates_.size()),
        tried_(candidates_.size()),
        out_of_memory_(candidates_.out_of_memory()) {
    for (size_t i = 0; i < candidates_.size(); ++i) {
      tried_[i].engine = candidates_.engine(i);
      tried_[i].workspace_bytes = candidates_.workspace_bytes(i);
    }
  }

  // The plan of the engine of that name, null if it is not a candidate or does not work.
  Plan Named(const std::string& engine) {
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (candidates_.engine(i) == engine)
        return Ready(i) != nullptr && Runs(i) ? plans_[i] : nullptr;
    }
    return nullptr;
  }

  // The first plan that works; if `exact`, plans that transform the arrays come last.
  Plan First(bool exact) {
    for (const bool transforms : {false, true}) {
      for (size_t i = 0; i < candidates_.size(); ++i) {
        if (exact && candidates_.transforms(i) != transforms) continue;
        if (Ready(i) != nullptr && Runs(i)) return plans_[i];
      }
    }
    return nullptr;
  }

  struct Timed {
    Plan plan;
    double microseconds;
  };

  // The fastest of the project's own plans that work and of cuDNN's: of all, or by `default` of the
  // first ones and its late engine, without those that transform the arrays (`exact`). NOTE
  // [Workspace cost] is included. None if there was nothing to compare or no memory for it; `note`
  // then says so.
  std::optional<Timed> Fastest(SearchMode mode, bool exact, const WorkspaceCost& cost,
                               std::string* note) {
    int64_t workspace = 0;
    int ready = 0, of_dnn = 0;
    bool behind_own = false;
    for (size_t i = 0; i < candidates_.own_before(); ++i) {
      behind_own = Ready(i) != nullptr || behind_own;
    }
    const int front = mode == SearchMode::kExhaustive ? std::numeric_limits<int>::max()
                      : behind_own                    ? kDefaultEnginesBehindOwn
                                                      : kDefaultEngines;
    const std::optional<size_t> late = behind_own ? std::nullopt : LateEngine(front, exact);
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const bool native = candidates_.native(i);
      if (!native && of_dnn >= front && i != late) continue;
      if (exact && candidates_.transforms(i)) continue;
      const Plan plan = Ready(i);
      if (plan == nullptr) continue;
      ++ready;
      if (!native) ++of_dnn;
      workspace = std::max(workspace, plan->workspace_bytes());
    }
    // Nothing to compare, or no candidate at all: First() says why.
    if (ready < 2) return std::nullopt;
    const cudaError_t status = scratch_.Allocate(problem_, workspace, Stream());
    if (status != cudaSuccess) {
      *note = Text("engines were not timed: ", cudaGetErrorName(status), " (",
                   DeviceScratch::BytesFor(problem_, workspace), " bytes)");
      return std::nullopt;
    }
    std::optional<Timed> best;
    double best_total = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (plans_[i] == nullptr) continue;
      const ffi::ErrorOr<double> time =
          Time(*plans_[i], scratch_.buffers(), kEarlyStopRatio * best_total);
      if (time.has_error()) {
        Fail(i, time.error());
        plans_[i] = nullptr;
        continue;
      }
      tried_[i].microseconds = *time;
      const double total = *time + cost.Microseconds(plans_[i]->workspace_bytes());
      if (total >= best_total) continue;
      best_total = total;
      best = Timed{plans_[i], *time};
    }
    if (!best) *note = "engines were not timed: none ran";
    return best;
  }

  // The error after the last engine has failed.
  ffi::Error Failure() const {
    int64_t min_bytes = std::numeric_limits<int64_t>::max();
    bool memory = false;
    std::string list;
    for (const TriedEngine& tried : tried_) {
      list += Text(list.empty() ? "" : "; ", tried.engine, ": ", tried.failure);
      if (tried.workspace_bytes > problem_.workspace_limit) {
        memory = true;
        min_bytes = std::min(min_bytes, tried.workspace_bytes);
      }
    }
    std::string advice;
    if (memory) {
      advice = Text("; with a workspace of ", min_bytes,
                    " bytes more engines could be tried, see jax_convgrad.set_workspace_limit");
    }
    size_t free = 0, total = 0;
    if (out_of_memory_ && cudaMemGetInfo(&free, &total) == cudaSuccess) {
      advice += Text("; ", free, " of the device's ", total, " bytes are free");
    }
    return ffi::Error(memory || out_of_memory_ ? ffi::ErrorCode::kResourceExhausted
                                               : ffi::ErrorCode::kUnimplemented,
                      Text(problem_.ToString(), ": none of ", tried_.size(),
                           " engines works: ", list, Note(), advice));
  }

  // The error where no other engine may take the place of the named one.
  ffi::Error FailureOf(const std::string& engine) const {
    const auto tried = std::find_if(tried_.begin(), tried_.end(),
                                    [&](const TriedEngine& t) { return t.engine == engine; });
    return ffi::Error(
        out_of_memory_ ? ffi::ErrorCode::kResourceExhausted : ffi::ErrorCode::kUnimplemented,
        Text(problem_.ToString(), ": cannot rebuild engine ", engine,
             ", which compiled programs depend on: ",
             tried == tried_.end() ? "cuDNN does not propose it" : tried->failure, Note()));
  }

  std::string Note() const {
    return candidates_.note().empty() ? std::string() : Text("; ", candidates_.note());
  }

  std::vector<TriedEngine> TakeTried() {
    // Candidates that were not reached have nothing to report.
    tried_.erase(std::remove_if(
                     tried_.begin(), tried_.end(),
                     [](const TriedEngine& t) { return t.failure.empty() && t.microseconds < 0; }),
                 tried_.end());
    return std::move(tried_);
  }

 private:
  std::optional<size_t> LateEngine(int front, bool exact) const {
    const ffi::ErrorOr<const DnnLibrary*> library = DnnLibrary::Get();
    if (library.has_error()) return std::nullopt;
    std::vector<std::string> names;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const bool excluded = exact && candidates_.transforms(i);
      names.push_back(excluded ? std::string() : candidates_.engine(i));
    }
    return FindLateEngine(problem_.kind, (*library)->version(), names, static_cast<size_t>(front));
  }

  // The plan of candidate i, built and recorded once. Null, with the reason kept, if it fails.
  Plan Ready(size_t i) {
    if (plans_[i] != nullptr || !tried_[i].failure.empty()) return plans_[i];
    // Building a plan can take long and allocate, so the limit is checked first where possible.
    if (OverLimit(i)) return nullptr;
    ffi::ErrorOr<Plan> plan = candidates_.Build(i);
    if (plan.has_error()) {
      Fail(i, plan.error());
      return nullptr;
    }
    tried_[i].workspace_bytes = (*plan)->workspace_bytes();
    if (OverLimit(i)) return nullptr;
    const ffi::Error recorded = Record(**plan);
    if (recorded.failure()) {
      Fail(i, recorded);
      return nullptr;
    }
    plans_[i] = *std::move(plan);
    return plans_[i];
  }

  // Whether plan i, which is ready, runs. Assumed if there is no memory to try it.
  bool Runs(size_t i) {
    if (tried_[i].microseconds >= 0) return true;
    if (scratch_.Allocate(problem_, plans_[i]->workspace_bytes(), Stream()) != cudaSuccess)
      return true;
    const ffi::ErrorOr<double> time = Time(*plans_[i], scratch_.buffers(), 0);
    if (time.has_value()) return true;
    Fail(i, time.error());
    plans_[i] = nullptr;
    return false;
  }

  void Fail(size_t i, const ffi::Error& error) {
    tried_[i].failure = error.message();
    if (error.errc() == ffi::ErrorCode::kResourceExhausted) out_of_memory_ = true;
  }

  bool OverLimit(size_t i) {
    const int64_t bytes = tried_[i].workspace_bytes;
    if (bytes <= problem_.workspace_limit) return false;
    tried_[i].failure = Text("needs a workspace of ", bytes, " bytes");
    return true;
  }

  // Records one run into a graph that is thrown away. That loads the kernels, which must not happen
  // during another thread's capture, and shows that the engine can be captured. Nothing is
  // executed.
  ffi::Error Record(const ConvPlan& plan) const {
    const char* op = ConvName(problem_.kind);
    const cudaStream_t stream = handle_.stream();
    cudaError_t status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (status != cudaSuccess) return CudaError(op, "cudaStreamBeginCapture", status);
    const ffi::Error run = plan.Run(handle_.get(), Stream(), buffers_);
    cudaGraph_t graph = nullptr;
    status = cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    if (status != cudaSuccess) (void)cudaGetLastError();
    if (run.failure()) return run;
    return CudaError(op, "recording", status);
  }

  // Microseconds of one run; only approximate above `limit`.
  ffi::ErrorOr<double> Time(const ConvPlan& plan, const ConvBuffers& arrays, double limit) const {
    const Event start, stop;
    const auto group = [&](int runs) -> ffi::ErrorOr<double> {
      ffi::Error error =
          CudaError(ConvName(problem_.kind), "timing", cudaEventRecord(start.get(), Stream()));
      for (int i = 0; i < runs && error.success(); ++i)
        error = plan.Run(handle_.get(), Stream(), arrays);
      if (error.failure()) return ffi::Unexpected(error);
      float milliseconds = 0;
      cudaError_t status = cudaEventRecord(stop.get(), Stream());
      if (status == cudaSuccess) status = cudaEventSynchronize(stop.get());
      if (status == cudaSuccess) {
        status = cudaEventElapsedTime(&milliseconds, start.get(), stop.get());
      }
      if (status != cudaSuccess) {
        return ffi::Unexpected(CudaError(ConvName(problem_.kind), "timing", status));
      }
      return 1000.0 * static_cast<double>(milliseconds) / runs;
    };
    if (start.status() != cudaSuccess || stop.status() != cudaSuccess) {
      return ffi::Unexpected(
          CudaError(ConvName(problem_.kind), "cudaEventCreate",
                    start.status() != cudaSuccess ? start.status() : stop.status()));
    }
    ffi::ErrorOr<double> time = group(1);  // the very first run may be slower
    if (time.has_value() && *time <= kFirstRunRatio * limit) time = group(1);
    if (time.has_error() || *time > limit) return time;
    const double wanted = kGroupMicroseconds / std::max(*time, 1.0);
    const int runs = std::max(1, static_cast<int>(std::min<double>(kMaxRuns, wanted)));
    double best = *time;
    for (int i = 0; i < kGroups; ++i) {
      time = group(runs);
      if (time.has_error()) return time;
      best = std::min(best, *time);
    }
    return best;
  }

  cudaStream_t Stream() const { return handle_.stream(); }

  const ConvProblem& problem_;
  const ConvBuffers& buffers_;
  const DnnHandle& handle_;
  DeviceScratch& scratch_;
  const CandidateList candidates_;
  std::vector<Plan> plans_;
  std::vector<TriedEngine> tried_;
  bool out_of_memory_;  // of the host or the device, while cuDNN was asked or an engine made ready
};

}  // namespace

const char* SearchModeName(SearchMode mode) {
  switch (mode) {
    case SearchMode::kDefault:
      return "default";
    case SearchMode::kHeuristic:
      return "heuristic";
    case SearchMode::kExhaustive:
      return "exhaustive";
  }
  return "";
}

std::optional<SearchMode> SearchModeNamed(std::string_view name) {
  for (SearchMode mode : {SearchMode::kDefault, SearchMode::kHeuristic, SearchMode::kExhaustive}) {
    if (name == SearchModeName(mode)) return mode;
  }
  return std::nullopt;
}

ffi::ErrorOr<ChosenPlan> SearchPlan(const ConvProblem& problem, SearchMode mode,
                                    const KnownChoice& known, const ConvBuffers& buffers,
                                    DeviceScratch* scratch) {
  const char* op = ConvName(problem.kind);
  const auto sizes = [&] { return problem.ToString(); };
  const ScopedDevice current(problem.device);
  if (current.status() != cudaSuccess) {
    return ffi::Unexpected(WithSizes(CudaError(op, "cudaSetDevice", current.status()), sizes));
  }
  ffi::ErrorOr<DnnHandle> handle = DnnHandle::BorrowWithStream(op, problem.device);
  if (handle.has_error()) return ffi::Unexpected(WithSizes(handle.error(), sizes));
  ffi::ErrorOr<CandidateList> candidates = CandidateList::Query(problem, *handle);
  if (candidates.has_error()) return ffi::Unexpected(candidates.error());

  ChosenPlan chosen;
  chosen.problem = problem.ToString();
  const auto note = [&](const std::string& text) {
    chosen.note += Text(chosen.note.empty() || text.empty() ? "" : "; ", text);
  };
  note(candidates->note());
  Search search(problem, buffers, *handle, scratch, *std::move(candidates));
  if (!known.engine.empty()) {
    chosen.plan = search.Named(known.engine);
    if (chosen.plan != nullptr) {
      chosen.chosen_by = known.chosen_by;
      return chosen;
    }
    if (known.binding) return ffi::Unexpected(search.FailureOf(known.engine));
    note(Text("the ", known.chosen_by, " choice ", known.engine,
              " is not a candidate or does not work"));
  }
  // If determinism is asked for, `default` too must choose the same in every process.
  const bool timed =
      mode == SearchMode::kExhaustive || (mode == SearchMode::kDefault && !problem.deterministic);
  // Winograd and Fourier engines lose digits, so `default` leaves them to `exhaustive`.
  const bool exact = mode == SearchMode::kDefault;
  chosen.chosen_by = SearchModeName(mode);
  if (timed) {
    std::string why_not;
    if (const auto fastest =
            search.Fastest(mode, exact, WorkspaceCost::Of(problem.device), &why_not)) {
      chosen.plan = fastest->plan;
      chosen.microseconds = fastest->microseconds;
    } else if (!why_not.empty()) {
      chosen.chosen_by = SearchModeName(SearchMode::kHeuristic);
      note(why_not);
    }
  }
  if (chosen.plan == nullptr) chosen.plan = search.First(exact);
  if (chosen.plan == nullptr) return ffi::Unexpected(search.Failure());
  chosen.tried = search.TakeTried();
  return chosen;
}

}  // namespace jax_convgrad
