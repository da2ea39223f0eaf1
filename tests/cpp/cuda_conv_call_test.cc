// The CUDA convolution handlers, called as XLA calls them, on an emulated device and fake_cudnn.cc:
// what is checked, found and made anew from call to call. Arguments: the fake's path.

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cuda/cudnn/cache.h"
#include "cuda/cudnn/handle.h"
#include "cuda/cudnn/late_engines.h"
#include "cuda/handlers.h"
#include "cuda/kernels/plan.h"
#include "fake_cudnn.h"

#define CHECK(condition)                                                         \
  do {                                                                           \
    if (!(condition)) {                                                          \
      std::fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
      std::exit(1);                                                              \
    }                                                                            \
  } while (false)

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

class FakeNativePlan : public ConvPlan {
 public:
  const std::string& engine() const override { return name_; }
  int64_t workspace_bytes() const override { return 0; }
  bool owns_kernels() const override { return false; }
  bool needs_handle() const override { return false; }
  ffi::Error Run(cudnnHandle_t, cudaStream_t, const ConvBuffers&) const override {
    ++native_runs;
    return ffi::Error::Success();
  }

 private:
  const std::string name_ = "native_fake";
};

}  // namespace

// In place of kernels/plan.cc, whose kernels need a device.
ffi::ErrorOr<std::shared_ptr<const ConvPlan>> MakeNativePlan(const ConvProblem&) {
  if (!has_native) return std::shared_ptr<const ConvPlan>();
  return std::shared_ptr<const ConvPlan>(std::make_shared<FakeNativePlan>());
}

bool NativeIsFast(const ConvProblem&) { return true; }

namespace {

FakeCudnn* fake = nullptr;

using List = std::vector<int64_t>;

// A call of conv_fprop by its parts, each of which a test may change.
struct TestCall {
  List x{2, 8, 9, 10}, w{16, 4, 3, 2}, y{2, 16, 5, 4}, workspace{1 << 16};
  int32_t x_type = XLA_FFI_DataType_F32, w_type = XLA_FFI_DataType_F32,
          y_type = XLA_FFI_DataType_F32;
  List strides{2, 3}, low{1, 1}, high{1, 1}, dilation{1, 1};
  List x_spec{0, 1, 2, 3}, w_spec{0, 1, 2, 3}, y_spec{0, 1, 2, 3};
  int64_t groups = 2, generation = 0;
  bool allow_tf32 = true, deterministic = false;
  std::string search = "heuristic";
  int32_t device = 0;
  uintptr_t address = 4096;
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
  const CallerBuffer buffers[] = {buffer(0, call.x_type, call.x), buffer(1, call.w_type, call.w),
                                  buffer(2, call.y_type, call.y),
                                  buffer(3, XLA_FFI_DataType_U8, call.workspace)};
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
      list("x_spec", call.x_spec),
      list("y_spec", call.y_spec)};
  char text[4096] = "";
  Outcome outcome;
  outcome.code = CallHandler(stage == kInitialize ? ConvFpropInitialize : ConvFprop, stage,
                             reinterpret_cast<void*>(uintptr_t{8}), call.device, 2, 4, buffers, 12,
                             attributes, text, sizeof(text));
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
  CHECK(gone.text.find("conv_fprop: its plan left the cache before a capture") == 0);
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
  CHECK(fake->misuses == 0);
}
