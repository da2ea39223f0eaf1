// The CUDA convolution handlers, called as XLA calls them, on an emulated device and fake_cudnn.cc:
// what is checked, found and made anew from call to call. Arguments: the fake's path.

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "cuda/cudnn/cache.h"
#include "cuda/cudnn/handle.h"
#include "cuda/cudnn/late_engines.h"
#include "cuda/handlers.h"
#include "cuda/kernels/depthwise/plan.h"
#include "cuda/kernels/dilated/plan.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/thin/plan.h"
#include "cuda/kernels/transpose/launch.h"
#include "fake_cudnn.h"
#include "ffi/error.h"

// Of benchmarks/ffi_caller.cc.
extern "C" {
struct CallerBuffer {
  void* data;
  int32_t dtype;
  int64_t rank;
  int64_t* dims;
};
struct CallerAttribute {
  const char* name;
  int32_t kind;
  int32_t dtype;
  int64_t size;
  void* data;
};
int32_t CallHandler(XLA_FFI_Handler* handler, int32_t stage, void* stream, int32_t device,
                    int64_t operands, int64_t buffer_count, const CallerBuffer* buffers,
                    int64_t attribute_count, const CallerAttribute* attributes, char* text,
                    size_t text_size);
}

namespace jax_convgrad {
namespace {

std::atomic<bool> has_native{false};
std::atomic<int64_t> native_runs{0};
std::atomic<int64_t> depthwise_limit{-1};  // of the workspace, of the last depthwise problem

// One of the project's plans, in place of its kernels, which need a device.
template <typename Kernels, typename Arrays>
class FakeKernels : public Kernels {
 public:
  int64_t workspace_bytes() const override { return 0; }
  cudaError_t Run(const Arrays&, cudaStream_t) const override {
    ++native_runs;
    return cudaSuccess;
  }
};

// The same of a family that offers several, each with a name.
template <typename Kernels, typename Arrays>
class FakeNamedKernels : public Kernels {
 public:
  FakeNamedKernels(std::string name, int64_t workspace_bytes, cudaError_t status)
      : name_(std::move(name)), workspace_bytes_(workspace_bytes), status_(status) {}
  const std::string& name() const override { return name_; }
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  bool ReusesSlots() const { return false; }  // of implicit GEMM kernels
  cudaError_t Run(const Arrays&, cudaStream_t) const override { return status_; }

 private:
  const std::string name_;
  const int64_t workspace_bytes_;
  const cudaError_t status_;
};

struct Offer {
  std::string name;
  int64_t workspace_bytes = 0;
  cudaError_t status = cudaSuccess;
};

// What such a family offers, and the problems for which it was asked.
template <typename Problem>
struct Family {
  std::vector<Offer> offers;
  std::vector<Problem> problems;
  bool is_fast = true;

  template <typename Kernels, typename Arrays>
  std::vector<std::unique_ptr<const Kernels>> Candidates(const Problem& problem) {
    problems.push_back(problem);
    std::vector<std::unique_ptr<const Kernels>> plans;
    for (const Offer& offer : offers) {
      plans.push_back(std::make_unique<FakeNamedKernels<Kernels, Arrays>>(
          offer.name, offer.workspace_bytes, offer.status));
    }
    return plans;
  }
};

Family<ThinProblem> thin;
Family<ImplicitGemmProblem> gemm;

FakeCudnn* fake = nullptr;
cudaError_t transpose_status = cudaSuccess;

}  // namespace

// Writes down that it would run, among what cuDNN runs.
cudaError_t LaunchTranspose(const void* from, void* to, int64_t rows, int64_t columns,
                            int64_t element_bytes, cudaStream_t) {
  fake->log.push_back(
      Text("transpose ", from, " ", to, " ", rows, "x", columns, " of ", element_bytes));
  return transpose_status;
}

std::unique_ptr<const DepthwisePlan> DepthwisePlan::Make(const DepthwiseProblem& problem) {
  if (!has_native) return nullptr;
  depthwise_limit = problem.workspace_limit;
  return std::make_unique<FakeKernels<DepthwisePlan, DepthwiseArrays>>();
}

std::unique_ptr<const DilatedPlan> DilatedPlan::Make(const DilatedProblem&) {
  if (!has_native) return nullptr;
  return std::make_unique<FakeKernels<DilatedPlan, DilatedArrays>>();
}

std::vector<std::unique_ptr<const ThinPlan>> ThinPlan::Candidates(const ThinProblem& problem) {
  return thin.Candidates<ThinPlan, ThinArrays>(problem);
}

bool ThinPlan::IsFast(const ThinProblem&) { return thin.is_fast; }

std::vector<std::unique_ptr<const ImplicitGemmPlan>> ImplicitGemmPlan::Candidates(
    const ImplicitGemmProblem& problem, GemmWanted) {
  return gemm.Candidates<ImplicitGemmPlan, ImplicitGemmArrays>(problem);
}

bool ImplicitGemmPlan::IsFast(const ImplicitGemmProblem&) { return gemm.is_fast; }

namespace {

using List = std::vector<int64_t>;

// A call by its parts, each of which a test may change.
struct TestCall {
  List x{2, 8, 9, 10}, w{16, 4, 3, 2}, y{2, 16, 5, 4}, workspace{1 << 16};
  int32_t x_type = XLA_FFI_DataType_F32, w_type = XLA_FFI_DataType_F32,
          y_type = XLA_FFI_DataType_F32;
  List strides{2, 3}, low{1, 1}, high{1, 1}, dilation{1, 1};
  List x_spec{0, 1, 2, 3}, w_spec{0, 1, 2, 3}, y_spec{0, 1, 2, 3};
  int64_t groups = 2, generation = 0;
  bool allow_tf32 = true, deterministic = false;
  std::string search = "heuristic", weights = "OXI";
  int32_t device = 0;
  uintptr_t address = 4096;
  ConvKind kind = ConvKind::kFprop;
};

struct Outcome {
  int32_t code = 0;
  std::string text;
  bool operator==(const Outcome& other) const { return code == other.code && text == other.text; }
};

constexpr int32_t kInitialize = XLA_FFI_ExecutionStage_INITIALIZE;
constexpr int32_t kExecute = XLA_FFI_ExecutionStage_EXECUTE;

Outcome Run(TestCall call, int32_t stage) {
  const auto at = [&](uintptr_t number) {
    return reinterpret_cast<void*>(call.address + 4096 * number);
  };
  const auto buffer = [&](uintptr_t number, int32_t type, List& dims) {
    return CallerBuffer{at(number), type, static_cast<int64_t>(dims.size()), dims.data()};
  };
  const CallerBuffer x = buffer(0, call.x_type, call.x), w = buffer(1, call.w_type, call.w),
                     y = buffer(2, call.y_type, call.y),
                     workspace = buffer(3, XLA_FFI_DataType_U8, call.workspace);
  const CallerBuffer of_kinds[][4] = {
      {x, w, y, workspace}, {y, w, x, workspace}, {x, y, w, workspace}};
  XLA_FFI_Handler* const handlers[][2] = {{ConvFpropInitialize, ConvFprop},
                                          {ConvDgradInitialize, ConvDgrad},
                                          {ConvWgradInitialize, ConvWgrad}};
  const auto kind = static_cast<size_t>(call.kind);
  const auto list = [](const char* name, List& values) {
    return CallerAttribute{name, XLA_FFI_AttrType_ARRAY, XLA_FFI_DataType_S64,
                           static_cast<int64_t>(values.size()), values.data()};
  };
  const auto scalar = [](const char* name, int32_t type, void* value) {
    return CallerAttribute{name, XLA_FFI_AttrType_SCALAR, type, 1, value};
  };
  const CallerAttribute attributes[] = {
      scalar("allow_tf32", XLA_FFI_DataType_PRED, &call.allow_tf32),
      scalar("deterministic", XLA_FFI_DataType_PRED, &call.deterministic),
      list("dilation", call.dilation),
      scalar("generation", XLA_FFI_DataType_S64, &call.generation),
      scalar("groups", XLA_FFI_DataType_S64, &call.groups),
      list("padding_high", call.high),
      list("padding_low", call.low),
      {"search", XLA_FFI_AttrType_STRING, 0, static_cast<int64_t>(call.search.size()),
       call.search.data()},
      list("strides", call.strides),
      list("w_spec", call.w_spec),
      {"weights", XLA_FFI_AttrType_STRING, 0, static_cast<int64_t>(call.weights.size()),
       call.weights.data()},
      list("x_spec", call.x_spec),
      list("y_spec", call.y_spec)};
  char text[4096] = "";
  Outcome outcome;
  outcome.code = CallHandler(handlers[kind][stage == kInitialize ? 0 : 1], stage,
                             reinterpret_cast<void*>(uintptr_t{8}), call.device, 2, 4,
                             of_kinds[kind], 13, attributes, text, sizeof(text));
  outcome.text = text;
  return outcome;
}

// Both stages, and the plan that they used: its problem, or the error.
Outcome RunBoth(const TestCall& call) {
  const Outcome first = Run(call, kInitialize);
  const Outcome second = Run(call, kExecute);
  CHECK(first == second);
  if (first.code != 0) return first;
  return {0, ListPlans().front().first};
}

FakeEngine Engine(int64_t number) {
  FakeEngine engine;
  engine.number = number;
  return engine;
}

// Nothing that the check looks at can change without the call being looked at anew.
void TestEveryPartOfACallCounts() {
  std::vector<TestCall> calls;
  const auto add = [&](const std::function<void(TestCall&)>& change) {
    TestCall call;
    change(call);
    calls.push_back(call);
  };
  for (List TestCall::* list :
       {&TestCall::x, &TestCall::w, &TestCall::y, &TestCall::workspace, &TestCall::strides,
        &TestCall::low, &TestCall::high, &TestCall::dilation, &TestCall::x_spec, &TestCall::w_spec,
        &TestCall::y_spec}) {
    for (size_t i = 0; i < (TestCall().*list).size(); ++i) {
      for (int64_t by : {-1, 1, 4096}) add([&](TestCall& call) { (call.*list)[i] += by; });
    }
    if (list != &TestCall::workspace) {  // of one axis, or XLA refuses the call
      add([&](TestCall& call) { (call.*list).push_back(1); });
      add([&](TestCall& call) { (call.*list).pop_back(); });
      add([&](TestCall& call) { (call.*list).assign(100, 1); });
      add([&](TestCall& call) { (call.*list).clear(); });
    }
    if ((TestCall().*list).size() > 2) {
      add([&](TestCall& call) { std::swap((call.*list)[2], (call.*list)[3]); });
    }
  }
  for (int32_t TestCall::* type : {&TestCall::x_type, &TestCall::w_type, &TestCall::y_type}) {
    for (int32_t other : {XLA_FFI_DataType_BF16, XLA_FFI_DataType_F64, XLA_FFI_DataType_S32}) {
      add([&](TestCall& call) { call.*type = other; });
    }
  }
  for (int64_t groups : {0, 1, 4, -2}) add([&](TestCall& call) { call.groups = groups; });
  add([](TestCall& call) { call.search = "heuristics"; });
  add([](TestCall& call) { call.search = "exhaustive"; });
  add([](TestCall& call) { call.search = ""; });
  for (const char* weights : {"XIO", "OIX", "XI", ""}) {
    add([&](TestCall& call) { call.weights = weights; });
  }
  add([](TestCall& call) { call.allow_tf32 = false; });
  add([](TestCall& call) { call.deterministic = true; });
  add([](TestCall& call) { call.generation = 1; });
  for (uintptr_t by : {1, 2, 4, 8, 16}) add([&](TestCall& call) { call.address += by; });
  // Padding that moves from one list, or one axis, to the next.
  add([](TestCall& call) { call.low = {2, 1}, call.high = {0, 1}; });
  add([](TestCall& call) { call.low = {1, 2}, call.high = {1, 0}; });
  // Of a valid call, with all three types.
  add([](TestCall& call) { call.x_type = call.w_type = call.y_type = XLA_FFI_DataType_BF16; });

  // Before a call like them has been seen, and after.
  std::vector<Outcome> before;
  for (const TestCall& call : calls) before.push_back(RunBoth(call));
  CHECK(RunBoth(TestCall()).code == 0);
  for (size_t i = 0; i < calls.size(); ++i) {
    CHECK(RunBoth(TestCall()).code == 0);
    const Outcome after = RunBoth(calls[i]);
    if (after == before[i]) continue;
    std::fprintf(stderr, "call %zu: %s\nthen: %s\n", i, before[i].text.c_str(), after.text.c_str());
    std::exit(1);
  }
  const auto failed = [](const Outcome& o) { return o.code != 0; };
  const auto failures = std::count_if(before.begin(), before.end(), failed);
  CHECK(failures > 80 && failures < static_cast<std::ptrdiff_t>(calls.size()) - 10);
  // The problem of a plan is that of the call.
  TestCall moved;
  moved.low = {2, 1}, moved.high = {0, 1};
  CHECK(RunBoth(moved).text.find("padding_low (2, 1), padding_high (0, 1)") != std::string::npos);
  TestCall odd;
  odd.address += 2;
  CHECK(RunBoth(odd).text.find("alignment 2") != std::string::npos);
  TestCall unknown;
  unknown.weights = "HWIO";
  const Outcome outcome = RunBoth(unknown);
  CHECK(outcome.code == XLA_FFI_Error_Code_INVALID_ARGUMENT);
  CHECK(outcome.text == "conv_fprop: weights is \"HWIO\", expected OXI or XIO");
}

void TestACallAgainMakesNothing() {
  const TestCall call;
  CHECK(RunBoth(call).code == 0);
  const int64_t created = fake->calls["create"], executed = fake->calls["execute"];
  const int64_t synchronized = emulated_cuda::synchronized;
  for (int i = 0; i < 100; ++i) CHECK(RunBoth(call).code == 0);
  CHECK(fake->calls["create"] == created && fake->calls["execute"] == executed + 100);
  CHECK(emulated_cuda::synchronized == synchronized);
}

void TestEmptyArrays() {
  TestCall call;
  call.x[0] = call.y[0] = 0;
  const int64_t executed = fake->calls["execute"];
  CHECK(Run(call, kInitialize).code == 0 && Run(call, kExecute).code == 0);
  CHECK(fake->calls["execute"] == executed);
}

void TestOwnKernelsTakeNoHandle() {
  has_native = true;
  TestCall call;
  call.w = {8, 1, 3, 2};
  call.y[1] = call.groups = 8;
  call.generation = 100;
  CHECK(Run(call, kInitialize).code == 0);
  const int64_t set = fake->calls["set_stream"], runs = native_runs;
  CHECK(Run(call, kExecute).code == 0);
  CHECK(fake->calls["set_stream"] == set && native_runs == runs + 1);
  has_native = false;
}

std::string EngineOf(const TestCall& call) {
  CHECK(RunBoth(call).code == 0);
  return ListPlans().front().second->plan->engine();
}

// A plan that is evicted is made again with its engine, another device takes the first one's.
void TestChoicesThatAreKnown() {
  fake->heuristics = {{CUDNN_HEUR_MODE_A, {Engine(11), Engine(12)}}};
  TestCall call;
  call.generation = 200;
  CHECK(EngineOf(call) == "eng11");
  fake->heuristics = {{CUDNN_HEUR_MODE_A, {Engine(12), Engine(11)}}};
  TestCall second = call;
  second.device = 1;
  CHECK(EngineOf(second) == "eng11");
  TestCall other = call;
  other.generation = 201;
  SetMaxPlans(1);
  CHECK(EngineOf(other) == "eng12");  // now the cache has no other
  CHECK(ListPlans().size() == 1);
  CHECK(EngineOf(call) == "eng11");
  second.device = 2;
  CHECK(EngineOf(second) == "eng11");  // as device 0, which is there; it evicts that one
  second.device = 3;
  CHECK(EngineOf(second) == "eng11");  // as device 2
  CHECK(EngineOf(other) == "eng12");

  // A loaded choice, by the text under which it was listed.
  TestCall third = call;
  third.generation = 202;
  const std::string text = RunBoth(third).text;
  LoadChoices({{text, "eng11"}});
  CHECK(LoadedChoices().size() == 1);
  third.generation = 203;
  CHECK(EngineOf(third) == "eng11" && ListPlans().front().second->chosen_by == "loaded");
  ClearPlans();
  CHECK(LoadedChoices().empty() && ListPlans().empty() && Generation() == 1);

  // Not in a capture, which is no place to make one.
  CHECK(Run(other, kInitialize).code == 0);
  emulated_cuda::capturing = true;
  CHECK(Run(other, kExecute).code == 0);
  const Outcome gone = Run(call, kExecute);
  emulated_cuda::capturing = false;
  CHECK(gone.code == XLA_FFI_Error_Code_FAILED_PRECONDITION);
  CHECK(gone.text.find("conv_fprop: its plan was evicted from the plan cache before a capture") ==
        0);
  SetMaxPlans(4096);
}

void TestThreads() {
  std::vector<std::thread> threads;
  std::atomic<int64_t> failures{0};
  const int64_t executed = fake->calls["execute"];
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([t, &failures] {
      for (int i = 0; i < 300; ++i) {
        TestCall call;
        call.generation = 300;
        call.x[0] = call.y[0] = 1 + i % 3;
        call.address = 4096 * static_cast<uintptr_t>(1 + t % 4);
        if (Run(call, kInitialize).code != 0 || Run(call, kExecute).code != 0) ++failures;
        call.y[0] += 1;
        if (Run(call, kExecute).code != XLA_FFI_Error_Code_INVALID_ARGUMENT) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0 && fake->calls["execute"] >= executed + 2400);
}

void TestLateEngines() {
  const std::vector<std::string> engines{"native_dilated", "eng3_k2=1",  "eng78", "eng70",
                                         "eng71",          "eng99_k1=2", "eng80", "eng0"};
  const auto find = [&](ConvKind kind, size_t version, size_t front = 3) {
    const std::optional<size_t> found = FindLateEngine(kind, version, engines, front);
    return found ? engines[*found] : std::string("none");
  };
  for (size_t version : {91900, 91901, 91999}) {
    CHECK(find(ConvKind::kFprop, version) == "eng71");
    CHECK(find(ConvKind::kDgrad, version) == "eng78");
    CHECK(find(ConvKind::kWgrad, version) == "eng70");
  }
  CHECK(!FindLateEngine(ConvKind::kFprop, 91900, {"eng3", "eng71_k2=1", "eng4"}, 1));
  // Other versions: the newest without settings behind the first.
  for (size_t version : {91001, 91899, 92000, 93000}) {
    CHECK(find(ConvKind::kFprop, version) == "eng80");
    CHECK(find(ConvKind::kWgrad, version, 7) == "none");
    CHECK(find(ConvKind::kWgrad, version, 8) == "none");
    CHECK(find(ConvKind::kWgrad, version, 100) == "none");
  }
  CHECK(!FindLateEngine(ConvKind::kFprop, 92000, {"", "eng", "engine7", "eng5 ", "eng-3"}, 0));
}

// What `default` times where the list is long.
void TestTheLateEngineIsTimed() {
  std::vector<FakeEngine> engines;
  for (int64_t number = 1; number <= 40; ++number) {
    engines.push_back(Engine(number));
    engines.back().settings = {{0, 1}};
  }
  engines[30] = Engine(71);
  engines[35] = Engine(90);
  fake->heuristics = {{CUDNN_HEUR_MODE_A, engines}};
  TestCall call;
  call.generation = 400;
  call.search = "default";
  CHECK(RunBoth(call).code == 0);
  std::vector<std::string> timed;
  ClearPlans();
  call.generation = 401;
  call.device = 5;
  CHECK(RunBoth(call).code == 0);
  for (const TriedEngine& tried : ListPlans().front().second->tried) timed.push_back(tried.engine);
  CHECK(timed.size() == 13 && timed[11] == "eng12_k0=1" && timed[12] == "eng71");
}

using Names = std::vector<std::string>;

// The engines that a search has timed, or found wanting.
Names Tried(const TestCall& call) {
  CHECK(RunBoth(call).code == 0);
  Names names;
  for (const TriedEngine& tried : ListPlans().front().second->tried) names.push_back(tried.engine);
  return names;
}

// The kernels for dilated gradients go before cuDNN's engines where a layer fills their tiles.
void TestPlacesOfOwnKernels() {
  has_native = true;
  emulated_cuda::capability = 90;
  fake->heuristics = {{CUDNN_HEUR_MODE_A, {Engine(11), Engine(12)}}};
  TestCall call;
  call.generation = 500;
  call.kind = ConvKind::kDgrad;
  call.x = {8, 192, 16, 16}, call.w = {96, 192, 3, 3}, call.y = {8, 96, 16, 16};
  call.strides = {1, 1}, call.low = call.high = call.dilation = {2, 2};
  call.groups = 1;
  call.search = "exhaustive";
  CHECK(Tried(call) == (Names{"native_dilated", "eng11", "eng12"}));
  call.x[1] = call.w[1] = 188;
  CHECK(Tried(call) == (Names{"eng11", "eng12", "native_dilated"}));
  emulated_cuda::capability = 80;
  call.generation = 501;
  CHECK(Tried(call) == (Names{"eng11", "eng12"}));
  has_native = false;
}

// A bfloat16 convolution of 8 to 16 channels.
TestCall ThinCall(int64_t generation, const std::string& search) {
  TestCall call;
  call.x_type = call.w_type = call.y_type = XLA_FFI_DataType_BF16;
  call.w[1] = 8;
  call.groups = 1;
  call.generation = generation;
  call.search = search;
  return call;
}

// In front of cuDNN's engines or behind them, and timed in both places. Behind them a default
// search times few of cuDNN's.
void TestPlacesOfThinEngines() {
  std::vector<FakeEngine> engines;
  Names of_dnn;
  for (int64_t id = 11; id < 31; ++id) {
    engines.push_back(Engine(id));
    of_dnn.push_back(Text("eng", id));
  }
  fake->heuristics = {{CUDNN_HEUR_MODE_A, engines}};
  thin.offers = {{"image"}, {"windows", 1000}};
  const Names own{"native_thin_image", "native_thin_windows"};
  int64_t generation = 600;
  for (const bool fast : {true, false}) {
    thin.is_fast = fast;
    for (const char* search : {"default", "exhaustive"}) {
      const bool few = search == std::string("default");
      Names all(of_dnn.begin(), few ? of_dnn.begin() + (fast ? 2 : 12) : of_dnn.end());
      all.insert(fast ? all.begin() : all.end(), own.begin(), own.end());
      CHECK(Tried(ThinCall(++generation, search)) == all);
    }
    // A search that times nothing takes the first.
    TestCall call = ThinCall(++generation, "default");
    call.deterministic = true;
    CHECK(EngineOf(call) == (fast ? "native_thin_image" : "eng11"));
    CHECK(EngineOf(ThinCall(++generation, "heuristic")) == EngineOf(call));
  }
  thin.is_fast = true;
  fake->heuristics = {{CUDNN_HEUR_MODE_A, {Engine(11), Engine(12)}}};
  const Outcome outcome = Run(ThinCall(600, "thin"), kInitialize);
  CHECK(outcome.code == XLA_FFI_Error_Code_INVALID_ARGUMENT);
  CHECK(outcome.text ==
        "conv_fprop: search is \"thin\", expected default, heuristic or exhaustive");
}

// Those of a ThinCall whose padding is 2 and 1 in front, as a family of kernels is given them.
template <typename Problem>
void CheckSizes(const Problem& p) {
  using Axes = typename Problem::PerAxis;
  CHECK(p.batch == 2 && p.in_channels == 8 && p.out_channels == 16);
  CHECK(p.in == (Axes{1, 9, 10}) && p.kernel == (Axes{1, 3, 2}) && p.out == (Axes{1, 5, 4}));
  CHECK(p.strides == (Axes{1, 2, 3}) && p.padding_low == (Axes{0, 2, 1}));
  CHECK(p.dilation == (Axes{1, 1, 1}) && p.alignment == 4);
  CHECK(p.workspace_limit == (1 << 16) - kWorkspaceAlignment);
  CHECK(p.device.multiprocessors == 132 && p.device.shared_bytes == 233472 &&
        p.device.block_shared_bytes == 232448);
}

void TestThinProblems() {
  thin.offers = {{"image"}};
  const ThinKind kinds[] = {ThinKind::kFprop, ThinKind::kDgrad, ThinKind::kWgrad};
  for (const ConvKind kind : {ConvKind::kFprop, ConvKind::kDgrad, ConvKind::kWgrad}) {
    TestCall call = ThinCall(700, "heuristic");
    call.kind = kind;
    call.low = {2, 1}, call.high = {0, 1};
    call.address += 4;
    thin.problems.clear();
    CHECK(EngineOf(call) == "native_thin_image" && thin.problems.size() == 1);
    const ThinProblem& p = thin.problems.front();
    CHECK(p.kind == kinds[static_cast<size_t>(kind)] && p.type == ThinType::kBF16);
    CHECK(p.weights == ThinWeights::kOutIn);
    CheckSizes(p);
  }
  TestCall other_order = ThinCall(700, "heuristic");
  other_order.weights = "XIO";
  thin.problems.clear();
  CHECK(EngineOf(other_order) == "native_thin_image" && thin.problems.size() == 1);
  CHECK(thin.problems[0].weights == ThinWeights::kInOut);
  CHECK(thin.problems[0].workspace_limit == (1 << 16) - kWorkspaceAlignment);

  // One axis, and the other type.
  TestCall line = ThinCall(700, "heuristic");
  line.x_type = line.w_type = line.y_type = XLA_FFI_DataType_F16;
  line.x = {2, 8, 10}, line.w = {16, 8, 2}, line.y = {2, 16, 4};
  line.strides = {3}, line.low = line.high = line.dilation = {1};
  line.x_spec = line.w_spec = line.y_spec = {0, 1, 2};
  thin.problems.clear();
  CHECK(EngineOf(line) == "native_thin_image" && thin.problems.size() == 1);
  CHECK(thin.problems[0].type == ThinType::kF16);
  CHECK(thin.problems[0].in == (ThinProblem::PerAxis{1, 1, 10}));
  CHECK(thin.problems[0].strides == (ThinProblem::PerAxis{1, 1, 3}));

  TestCall floats = ThinCall(700, "heuristic");
  floats.x_type = floats.w_type = floats.y_type = XLA_FFI_DataType_F32;
  thin.problems.clear();
  CHECK(EngineOf(floats) == "native_thin_image" && thin.problems.size() == 1);
  CHECK(thin.problems[0].type == ThinType::kTf32);

  // What the kernels are not made for does not reach them.
  thin.problems.clear();
  TestCall other = ThinCall(700, "heuristic");
  other.x_type = other.w_type = other.y_type = XLA_FFI_DataType_F32;
  other.allow_tf32 = false;
  CHECK(EngineOf(other) == "eng11");
  other = ThinCall(700, "heuristic");
  other.y_type = XLA_FFI_DataType_F32;
  CHECK(EngineOf(other) == "eng11");
  other = ThinCall(700, "heuristic");
  other.w[1] = 4;
  other.groups = 2;
  CHECK(EngineOf(other) == "eng11");
  CHECK(thin.problems.empty());
}

void TestThinEnginesThatFail() {
  thin.offers = {{"large", 1 << 20}, {"broken", 0, cudaErrorInvalidValue}, {"image"}};
  CHECK(EngineOf(ThinCall(800, "heuristic")) == "native_thin_image");
  const auto tried = ListPlans().front().second->tried;
  CHECK(tried.size() == 2);
  CHECK(tried[0].engine == "native_thin_large");
  CHECK(tried[0].failure == "needs a workspace of 1048576 bytes");
  CHECK(tried[1].failure.find("conv_fprop: running engine native_thin_broken, conv_fprop: batch "
                              "2, ") == 0);
  CHECK(tried[1].failure.find("cudaError: an error") != std::string::npos);
  thin.offers = {{"broken", 0, cudaErrorInvalidValue}};
  CHECK(EngineOf(ThinCall(801, "default")) == "eng11");

  // A saved choice of one where it is not offered any more.
  thin.offers = {{"image"}};
  const std::string text = RunBoth(ThinCall(802, "heuristic")).text;
  LoadChoices({{text, "native_thin_image"}});
  CHECK(EngineOf(ThinCall(803, "default")) == "native_thin_image");
  CHECK(ListPlans().front().second->chosen_by == "loaded");
  thin.offers.clear();
  CHECK(EngineOf(ThinCall(804, "heuristic")) == "eng11");
  CHECK(ListPlans().front().second->note ==
        "the loaded choice native_thin_image is not a candidate or does not work");
  ClearPlans();
}

// Each family goes in front of cuDNN's engines or behind them by itself, implicit GEMM before thin.
void TestPlacesOfImplicitGemmEngines() {
  fake->heuristics = {{CUDNN_HEUR_MODE_A, {Engine(11), Engine(12)}}};
  gemm.offers = {{"fprop_planes_16x16"}, {"fprop_rows_64"}};
  thin.offers = {{"image"}};
  const Names of_gemm{"native_implicit_gemm_fprop_planes_16x16",
                      "native_implicit_gemm_fprop_rows_64"};
  const Names of_thin{"native_thin_image"}, of_dnn{"eng11", "eng12"};
  const auto joined = [](std::initializer_list<Names> parts) {
    Names all;
    for (const Names& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  int64_t generation = 850;
  for (const char* search : {"default", "exhaustive"}) {
    const auto tried = [&] { return Tried(ThinCall(++generation, search)); };
    emulated_cuda::capability = 90;
    gemm.is_fast = thin.is_fast = true;
    CHECK(tried() == joined({of_gemm, of_thin, of_dnn}));
    thin.is_fast = false;
    CHECK(tried() == joined({of_gemm, of_dnn, of_thin}));
    gemm.is_fast = false;
    CHECK(tried() == joined({of_dnn, of_gemm, of_thin}));
    thin.is_fast = true;
    CHECK(tried() == joined({of_thin, of_dnn, of_gemm}));
    // Other devices have no warpgroups, also those that are newer.
    gemm.is_fast = true;
    for (const int capability : {80, 89, 90, 91, 100, 120}) {
      emulated_cuda::capability = capability;
      gemm.problems.clear();
      CHECK(tried() == joined({of_gemm, of_thin, of_dnn}) && gemm.problems.size() == 1);
      CHECK(gemm.problems.front().device.has_warpgroups == (capability == 90));
    }
  }
  // A search that times nothing takes the first.
  emulated_cuda::capability = 90;
  CHECK(EngineOf(ThinCall(++generation, "heuristic")) == of_gemm[0]);
  gemm.is_fast = thin.is_fast = false;
  CHECK(EngineOf(ThinCall(++generation, "heuristic")) == "eng11");
  gemm.is_fast = thin.is_fast = true;
  emulated_cuda::capability = 80;
  gemm.offers.clear();
  thin.offers.clear();
}

void TestImplicitGemmProblems() {
  emulated_cuda::capability = 90;
  gemm.offers = {{"some"}};
  const std::string engine = "native_implicit_gemm_some";
  const GemmKind kinds[] = {GemmKind::kFprop, GemmKind::kDgrad, GemmKind::kWgrad};
  const std::pair<int32_t, GemmType> types[] = {{XLA_FFI_DataType_BF16, GemmType::kBF16},
                                                {XLA_FFI_DataType_F16, GemmType::kF16},
                                                {XLA_FFI_DataType_F32, GemmType::kTf32}};
  for (const ConvKind kind : {ConvKind::kFprop, ConvKind::kDgrad, ConvKind::kWgrad}) {
    for (const char* weights : {"OXI", "XIO"}) {
      for (const auto& [type, of_gemm] : types) {
        TestCall call = ThinCall(880, "heuristic");
        call.kind = kind;
        call.weights = weights;
        call.x_type = call.w_type = call.y_type = type;
        call.low = {2, 1}, call.high = {0, 1};
        call.address += 4;
        gemm.problems.clear();
        CHECK(EngineOf(call) == engine && gemm.problems.size() == 1);
        const ImplicitGemmProblem& p = gemm.problems.front();
        CHECK(p.kind == kinds[static_cast<size_t>(kind)]);
        CHECK(p.type == of_gemm);
        CHECK((p.weights == GemmWeights::kOutIn) == (weights == std::string("OXI")));
        CheckSizes(p);
      }
    }
  }

  // What the kernels are not made for does not reach them.
  gemm.problems.clear();
  TestCall other = ThinCall(880, "heuristic");
  other.x_type = other.w_type = other.y_type = XLA_FFI_DataType_F32;
  other.allow_tf32 = false;
  CHECK(EngineOf(other) == "eng11");
  other = ThinCall(880, "heuristic");
  other.y_type = XLA_FFI_DataType_F32;
  CHECK(EngineOf(other) == "eng11");
  other = ThinCall(880, "heuristic");
  other.w[1] = 4;
  other.groups = 2;
  CHECK(EngineOf(other) == "eng11");
  CHECK(gemm.problems.empty());
  gemm.offers.clear();
  emulated_cuda::capability = 80;
}

// Weights of 16 output channels and 4 * 3 * 2 others in XIO, for engines that read OXI.
TestCall ReorderedCall(int64_t generation, ConvKind kind = ConvKind::kFprop) {
  TestCall call;
  call.kind = kind;
  call.weights = "XIO";
  call.generation = generation;
  return call;
}

constexpr int64_t kCopyBytes = 1536;  // 16 * 24 floats

// What ran since `first`: transpositions, and cuDNN's engines with the addresses of x, w and y.
Names RanSince(size_t first) {
  Names ran;
  for (size_t i = first; i < fake->log.size(); ++i) {
    const std::string& line = fake->log[i];
    if (line.rfind("transpose", 0) == 0 || line.rfind("execute", 0) == 0) ran.push_back(line);
  }
  return ran;
}

void TestWeightsThatAreReordered() {
  FakeEngine engine = Engine(11);
  engine.workspace = engine.plan_workspace = 100;
  fake->heuristics = {{CUDNN_HEUR_MODE_A, {engine}}};
  // Where Run puts the arrays.
  const std::string w = "0x2000", copy = "0x4000";
  const std::string to_copy = Text("transpose ", w, " ", copy, " 24x16 of 4");
  const std::string from_copy = Text("transpose ", copy, " ", w, " 16x24 of 4");
  for (const ConvKind kind : {ConvKind::kFprop, ConvKind::kDgrad, ConvKind::kWgrad}) {
    const TestCall call = ReorderedCall(900, kind);
    const std::string text = RunBoth(call).text;
    CHECK(text.find(", alignment 16, weights XIO, on an emulated device") != std::string::npos);
    const auto plan = ListPlans().front().second->plan;
    CHECK(plan->engine() == "eng11" && plan->needs_handle());
    CHECK(plan->workspace_bytes() == kCopyBytes + 100);
    const size_t before = fake->log.size();
    CHECK(Run(call, kExecute).code == 0);
    const Names ran = RanSince(before);
    CHECK(ran.size() == 2);
    const bool result = kind == ConvKind::kWgrad;
    CHECK(ran[result ? 1 : 0] == (result ? from_copy : to_copy));
    // The engine has the copy, and the workspace behind it.
    CHECK(ran[result ? 0 : 1].find("= 0x1000 0x4000 0x3000;1000:3= 1 2 3;1003:6= 0x4600;") !=
          std::string::npos);
    CHECK(fake->log.back() == ran[1]);

    // In the other order it is another plan, which reorders nothing.
    TestCall other = call;
    other.weights = "OXI";
    CHECK(RunBoth(other).text.find("weights") == std::string::npos);
    CHECK(ListPlans().front().second->plan->workspace_bytes() == 100);
    const size_t again = fake->log.size();
    CHECK(Run(other, kExecute).code == 0 && RanSince(again).size() == 1);
    CHECK(ListPlans()[0].second->plan != plan && ListPlans()[1].second->plan == plan);
  }
  // A weight gradient in float32 of 16-bit operands is reordered as float32.
  TestCall mixed = ReorderedCall(901, ConvKind::kWgrad);
  mixed.x_type = mixed.y_type = XLA_FFI_DataType_BF16;
  CHECK(RunBoth(mixed).code == 0 && fake->log.back() == from_copy);
  mixed = ReorderedCall(901);
  mixed.x_type = mixed.w_type = XLA_FFI_DataType_BF16;
  size_t before = fake->log.size();
  CHECK(RunBoth(mixed).code == 0);
  CHECK(RanSince(before).front() == Text("transpose ", w, " ", copy, " 24x16 of 2"));

  // A saved choice is of one order.
  const std::string text = RunBoth(ReorderedCall(902)).text;
  fake->heuristics = {{CUDNN_HEUR_MODE_A, {Engine(12), engine}}};
  LoadChoices({{text, "eng11"}});
  TestCall other = ReorderedCall(903);
  CHECK(EngineOf(other) == "eng11");
  other.weights = "OXI";
  CHECK(EngineOf(other) == "eng12");
  ClearPlans();
}

// One output channel, or one weight for each: nothing to reorder.
void TestWeightsInOneOrder() {
  TestCall call = ReorderedCall(910);
  call.w = {1, 8, 3, 2}, call.y[1] = call.groups = 1;
  TestCall pointwise = ReorderedCall(910);
  pointwise.x = {2, 1, 9, 10}, pointwise.w = {16, 1, 1, 1}, pointwise.y = {2, 16, 6, 4};
  pointwise.groups = 1;
  for (const TestCall& each : {call, pointwise}) {
    const size_t before = fake->log.size();
    CHECK(RunBoth(each).text.find("weights") == std::string::npos);
    for (const std::string& line : RanSince(before)) CHECK(line.rfind("execute", 0) == 0);
  }
}

void TestTheLimitOfReorderedWeights() {
  FakeEngine large = Engine(11), unknown = Engine(12);
  large.workspace = large.plan_workspace = 1000;
  unknown.workspace = -1;
  unknown.plan_workspace = 500;
  fake->heuristics = {{CUDNN_HEUR_MODE_A, {large, unknown, Engine(13)}}};
  TestCall call = ReorderedCall(920);
  const auto engine_with = [&](int64_t limit) {
    call.workspace = {limit + kWorkspaceAlignment};
    return EngineOf(call);
  };
  CHECK(engine_with(kCopyBytes + 1000) == "eng11");
  CHECK(engine_with(kCopyBytes + 999) == "eng12");
  CHECK(ListPlans().front().second->plan->workspace_bytes() == kCopyBytes + 500);
  CHECK(engine_with(kCopyBytes + 499) == "eng13");
  CHECK(engine_with(kCopyBytes) == "eng13");
  // No room for the copy: no engine, whether it needs memory of its own or not.
  for (const int64_t limit : {kCopyBytes - 1, int64_t{0}}) {
    call.workspace = {limit + kWorkspaceAlignment};
    const Outcome outcome = Run(call, kInitialize);
    CHECK(outcome.code == XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
    CHECK(outcome.text.find("eng11: needs a workspace of 2536 bytes; eng12: needs a workspace of "
                            "2036 bytes; eng13: needs a workspace of 1536 bytes") !=
          std::string::npos);
    CHECK(outcome.text.find("with a workspace of 1536 bytes more engines could be tried, see "
                            "jax_convgrad.set_workspace_limit") != std::string::npos);
  }
  // A thin engine, which needs no copy, is left.
  thin.offers = {{"image"}};
  TestCall call_of_thin = ThinCall(921, "default");
  call_of_thin.weights = "XIO";
  call_of_thin.workspace = {kWorkspaceAlignment};
  CHECK(EngineOf(call_of_thin) == "native_thin_image");
  thin.offers.clear();
}

void TestReorderingThatFails() {
  fake->heuristics = {{CUDNN_HEUR_MODE_A, {Engine(11)}}};
  for (const ConvKind kind : {ConvKind::kFprop, ConvKind::kWgrad}) {
    const TestCall call = ReorderedCall(930, kind);
    CHECK(RunBoth(call).code == 0);
    transpose_status = cudaErrorInvalidValue;
    const int64_t executed = fake->calls["execute"];
    const Outcome outcome = Run(call, kExecute);
    transpose_status = cudaSuccess;
    CHECK(outcome.code == XLA_FFI_Error_Code_INTERNAL);
    CHECK(outcome.text.find("reordering the weights for engine eng11, conv_") != std::string::npos);
    CHECK(outcome.text.find("weights XIO: cudaError: an error") != std::string::npos);
    // What fails in front of the engine keeps it from running.
    CHECK(fake->calls["execute"] == executed + (kind == ConvKind::kWgrad ? 1 : 0));
  }
}

// The project's kernels that read one order take part in it too, without a handle.
void TestOwnKernelsOnReorderedWeights() {
  has_native = true;
  TestCall call = ReorderedCall(940);
  call.w = {8, 1, 3, 2};
  call.y[1] = call.groups = 8;
  CHECK(EngineOf(call) == "native_depthwise");
  const auto plan = ListPlans().front().second->plan;
  CHECK(!plan->needs_handle() && !plan->owns_kernels() && plan->workspace_bytes() == 256);
  const size_t before = fake->log.size();
  const int64_t runs = native_runs;
  CHECK(Run(call, kExecute).code == 0 && native_runs == runs + 1);
  CHECK(RanSince(before) == Names{"transpose 0x2000 0x4000 6x8 of 4"});
  // They may use what the copy leaves.
  CHECK(depthwise_limit == (1 << 16) - kWorkspaceAlignment - 256);
  call.workspace = {100 + kWorkspaceAlignment};
  const Outcome outcome = Run(call, kInitialize);
  CHECK(depthwise_limit == 0);
  CHECK(outcome.code == XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
  CHECK(outcome.text.find("native_depthwise: needs a workspace of 256 bytes") != std::string::npos);
  has_native = false;
}

}  // namespace
}  // namespace jax_convgrad

int main(int, char** arguments) {
  using namespace jax_convgrad;
  DnnLibrary::SetPath(arguments[1]);
  const auto library = DnnLibrary::Get();
  CHECK(library.has_value());
  fake = reinterpret_cast<FakeCudnnFunction*>(dlsym((*library)->dlhandle(), "fake_cudnn"))();
  TestEveryPartOfACallCounts();
  TestACallAgainMakesNothing();
  TestEmptyArrays();
  TestOwnKernelsTakeNoHandle();
  TestChoicesThatAreKnown();
  TestThreads();
  TestLateEngines();
  TestTheLateEngineIsTimed();
  TestPlacesOfOwnKernels();
  TestPlacesOfThinEngines();
  TestThinProblems();
  TestThinEnginesThatFail();
  TestPlacesOfImplicitGemmEngines();
  TestImplicitGemmProblems();
  TestWeightsThatAreReordered();
  TestWeightsInOneOrder();
  TestTheLimitOfReorderedWeights();
  TestReorderingThatFails();
  TestOwnKernelsOnReorderedWeights();
  CHECK(fake->misuses == 0);
}
