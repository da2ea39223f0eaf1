// How convolution plans use cuDNN, on fake_cudnn.cc: which descriptors they make, which engines
// they take and how they name them, and what an error says. Arguments: the fake's path.

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "check.h"
#include "cuda/cudnn/handle.h"
#include "cuda/cudnn/plan.h"
#include "fake_cudnn.h"

namespace jax_convgrad {
namespace {

FakeCudnn* fake = nullptr;
// Never looked into.
const auto handle = reinterpret_cast<cudnnHandle_t>(uintptr_t{64});

ConvProblem Problem(ConvKind kind) {
  ConvProblem problem;
  problem.kind = kind;
  ConvGeometry& g = problem.geometry;
  g.spatial = 2;
  g.batch = 2;
  g.in_channels = 8;
  g.out_channels = 16;
  g.groups = 2;
  g.in = {9, 10, 1};
  g.kernel = {3, 2, 1};
  g.out = {5, 4, 1};
  g.strides = {2, 3, 1};
  g.padding_low = {1, 1, 0};
  g.padding_high = {1, 1, 0};
  g.dilation = {1, 1, 1};
  return problem;
}

FakeEngine Engine(int64_t number, std::vector<int> notes = {}) {
  FakeEngine engine;
  engine.number = number;
  engine.numerical_notes = std::move(notes);
  return engine;
}

void Reset(std::vector<FakeEngine> mode_a, std::vector<FakeEngine> fallback = {}) {
  fake->heuristics = {{CUDNN_HEUR_MODE_A, std::move(mode_a)},
                      {CUDNN_HEUR_MODE_FALLBACK, std::move(fallback)}};
  fake->failing_call.clear();
  fake->last_error.clear();
  fake->log.clear();
  fake->calls.clear();
}

std::vector<std::string> Names(const ConvProblem& problem) {
  const ffi::ErrorOr<ConvCandidates> candidates = ConvCandidates::Query(problem, handle);
  CHECK(candidates.has_value());
  std::vector<std::string> names;
  for (size_t i = 0; i < candidates->size(); ++i) names.push_back(candidates->engine(i));
  return names;
}

using Strings = std::vector<std::string>;

void TestNames() {
  FakeEngine engine = Engine(71);
  engine.settings = {{2, 3}, {45, 0}, {13, -1}, {0, 4294967296}};
  Reset({engine, Engine(0)});
  CHECK(Names(Problem(ConvKind::kFprop)) ==
        (Strings{"eng71_k2=3_k45=0_k13=-1_k0=4294967296", "eng0"}));
}

void TestOrderAndDuplicates() {
  FakeEngine set = Engine(5);
  set.settings = {{2, 3}};
  Reset({Engine(7), set, Engine(7)}, {Engine(9), set, Engine(5)});
  CHECK(Names(Problem(ConvKind::kFprop)) == (Strings{"eng7", "eng5_k2=3", "eng9", "eng5"}));
}

void TestNotes() {
  const std::vector<FakeEngine> engines = {
      Engine(0, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}),
      Engine(1, {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}),
      Engine(2, {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION}),
      Engine(3, {CUDNN_NUMERICAL_NOTE_FFT, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}), Engine(4)};
  ConvProblem problem = Problem(ConvKind::kFprop);
  Reset(engines);
  CHECK(Names(problem) == (Strings{"eng0", "eng1", "eng3", "eng4"}));
  problem.deterministic = true;
  CHECK(Names(problem) == (Strings{"eng0", "eng1", "eng4"}));
  problem.allow_tf32 = false;
  CHECK(Names(problem) == Strings{"eng4"});
  problem.operand_type = problem.result_type = ffi::DataType::BF16;  // in which TF32 has no meaning
  CHECK(Names(problem) == (Strings{"eng0", "eng1", "eng4"}));

  const auto candidates = ConvCandidates::Query(Problem(ConvKind::kFprop), handle);
  CHECK(!candidates->transforms(0) && candidates->transforms(2));
}

// Both orders of the weights are two problems; the text of one is what it was without the other.
void TestOrdersOfWeights() {
  CHECK(WeightsOrderNamed("OXI") == WeightsOrder::kOXI);
  CHECK(WeightsOrderNamed("XIO") == WeightsOrder::kXIO);
  for (const char* other : {"", "oxi", "OIX", "OXI ", "HWIO"}) CHECK(!WeightsOrderNamed(other));
  const ConvProblem problem = Problem(ConvKind::kFprop);
  ConvProblem other = problem;
  other.weights = WeightsOrder::kXIO;
  CHECK(problem == problem && other == other && !(problem == other));
  CHECK(ConvProblemHash()(problem) != ConvProblemHash()(other));
  CHECK(problem.ToString().find("weights") == std::string::npos);
  CHECK(other.ToString() == problem.ToString() + ", weights XIO");
}

void TestEnginesWithErrata() {
  ConvProblem problem = Problem(ConvKind::kWgrad);
  Reset({Engine(1), Engine(2)});
  CHECK(Names(problem) == (Strings{"eng1", "eng2"}));
  problem.geometry.padding_high[1] = 2;
  CHECK(Names(problem) == Strings{"eng2"});
}

// The text of the operation in the graph of which the heuristics were asked.
std::string Graph(const ConvProblem& problem) {
  Reset({Engine(1)});
  CHECK(ConvCandidates::Query(problem, handle).has_value());
  for (const std::string& line : fake->log) {
    if (line.rfind(std::to_string(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) + "{", 0) == 0) {
      return line;
    }
  }
  return "";
}

void TestDescriptors() {
  // Channels-last, and w as output channel, kernel, input channel.
  const std::string x = "17{901:1= 0;902:3= 2 8 9 10;903:3= 720 1 80 8;906:3= 1;900:3= 16;}";
  const std::string w = "17{901:1= 0;902:3= 16 4 3 2;903:3= 24 1 8 4;906:3= 2;900:3= 16;}";
  const std::string y = "17{901:1= 0;902:3= 2 16 5 4;903:3= 320 1 64 16;906:3= 3;900:3= 16;}";
  const std::string conv =
      "1{100:1= 0;101:7= 1;106:3= 2;105:3= 1 1;104:3= 1 1;102:3= 1 1;103:3= 2 3;}";
  CHECK(Graph(Problem(ConvKind::kFprop)) == "15{801:15= 10{704:15= " + x + ";703:15= " + w +
                                                ";705:15= " + y + ";702:15= " + conv +
                                                ";700:4= 1;701:4= 0;};800:0= handle;}");
  CHECK(Graph(Problem(ConvKind::kDgrad)) == "15{801:15= 12{710:15= " + x + ";709:15= " + w +
                                                ";711:15= " + y + ";708:15= " + conv +
                                                ";706:4= 1;707:4= 0;};800:0= handle;}");
  CHECK(Graph(Problem(ConvKind::kWgrad)) == "15{801:15= 11{716:15= " + x + ";715:15= " + w +
                                                ";717:15= " + y + ";714:15= " + conv +
                                                ";712:4= 1;713:4= 0;};800:0= handle;}");
  // The result's own type, and float64's scale factors.
  ConvProblem problem = Problem(ConvKind::kWgrad);
  problem.operand_type = ffi::DataType::BF16;
  const std::string mixed = Graph(problem);
  CHECK(mixed.find("716:15= 17{901:1= 9;") != std::string::npos);
  CHECK(mixed.find("715:15= 17{901:1= 0;") != std::string::npos);
  problem.operand_type = problem.result_type = ffi::DataType::F64;
  const std::string wide = Graph(problem);
  CHECK(wide.find("1{100:1= 1;") != std::string::npos);
  CHECK(wide.find(";712:5= 1;713:5= 0;}") != std::string::npos);
}

void TestPlans() {
  FakeEngine compiled = Engine(4);
  compiled.behavior_notes = {3, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION};
  compiled.workspace = -1;
  compiled.plan_workspace = 4096;
  FakeEngine other = Engine(5);
  other.workspace = 100;
  Reset({compiled, other});
  std::shared_ptr<const ConvPlan> plan;
  {
    const auto candidates = ConvCandidates::Query(Problem(ConvKind::kFprop), handle);
    CHECK(candidates->workspace_bytes(0) == -1 && candidates->workspace_bytes(1) == 100);
    plan = *candidates->Build(0);
    CHECK(!(*candidates->Build(1))->owns_kernels());
  }
  // It outlives what it was made of.
  CHECK(plan->engine() == "eng4" && plan->workspace_bytes() == 4096);
  CHECK(plan->owns_kernels() && plan->needs_handle());

  const auto address = [](uintptr_t value) { return reinterpret_cast<void*>(value); };
  const ConvBuffers buffers{address(16), address(32), address(48), address(64)};
  fake->log.clear();
  CHECK(plan->Run(handle, nullptr, buffers).success());
  const std::string pack = "16{1001:6= 0x10 0x20 0x30;1000:3= 1 2 3;1003:6= 0x40;}";
  CHECK(fake->log == (Strings{pack, "execute eng4 " + pack}));
  // The same arrays again: nothing is made anew. Others: not those of before.
  const int64_t created = fake->calls["create"];
  CHECK(plan->Run(handle, nullptr, buffers).success());
  CHECK(fake->calls["create"] == created && fake->log.back() == "execute eng4 " + pack);
  for (uintptr_t i = 1; i <= 100; ++i) {
    for (ConvBuffers moved : {ConvBuffers{address(i), buffers.w, buffers.y, buffers.workspace},
                              ConvBuffers{buffers.x, address(i), buffers.y, buffers.workspace},
                              ConvBuffers{buffers.x, buffers.w, address(i), buffers.workspace},
                              ConvBuffers{buffers.x, buffers.w, buffers.y, address(i)}}) {
      CHECK(plan->Run(handle, nullptr, moved).success());
      char expected[64];
      std::snprintf(expected, sizeof(expected), "= %p %p %p;", moved.x, moved.w, moved.y);
      CHECK(fake->log.back().find(expected) != std::string::npos);
      std::snprintf(expected, sizeof(expected), "1003:6= %p;", moved.workspace);
      CHECK(fake->log.back().find(expected) != std::string::npos);
    }
  }
  CHECK(fake->alive < 20);

  fake->failing_call = "execute";
  fake->failing_type = 4;
  fake->status = CUDNN_STATUS_EXECUTION_FAILED;
  fake->last_error = "words of the library's";
  const ffi::Error error = plan->Run(handle, nullptr, buffers);
  CHECK(error.errc() == ffi::ErrorCode::kInternal);
  CHECK(error.message().find("conv_fprop: running engine eng4 (conv_fprop: batch 2") == 0);
  CHECK(error.message().find("): cuDNN: cudnnBackendExecute: CUDNN_STATUS_FAKE: words of the "
                             "library's") != std::string::npos);
  plan.reset();
  CHECK(fake->alive == 0);
}

struct Failing {
  const char* call;
  int type, attribute;
  const char* words;
};

// Each call that can fail is named with its descriptor and its attribute.
void TestErrors() {
  const auto failure = [](const Failing& failing, cudnnStatus_t status) {
    Reset({Engine(3)});
    fake->failing_call = failing.call;
    fake->failing_type = failing.type;
    fake->failing_attribute = failing.attribute;
    fake->status = status;
    fake->last_error = "words of the library's";
    const auto candidates = ConvCandidates::Query(Problem(ConvKind::kDgrad), handle);
    ffi::Error error = ffi::Error::Success();
    if (candidates.has_error()) {
      error = candidates.error();
    } else {
      const auto plan = candidates->Build(0);
      CHECK(plan.has_error());
      error = plan.error();
    }
    CHECK(error.message().rfind("conv_dgrad: ", 0) == 0);
    CHECK(error.message().find("CUDNN_STATUS_FAKE: words of the library's") != std::string::npos);
    return error;
  };
  const Failing all[] = {
      {"create", 17, 0, "cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR)"},
      {"set", 17, 903,
       "cudnnBackendSetAttribute(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "
       "CUDNN_ATTR_TENSOR_STRIDES)"},
      {"finalize", 17, 0, "cudnnBackendFinalize(CUDNN_BACKEND_TENSOR_DESCRIPTOR)"},
      {"set", 1, 104,
       "(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS)"},
      {"set", 12, 710,
       "(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, "
       "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX)"},
      {"finalize", 12, 0, "(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)"},
      {"set", 15, 800, "CUDNN_ATTR_OPERATIONGRAPH_HANDLE"},
      {"finalize", 15, 0, "cudnnBackendFinalize(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)"},
      {"finalize", 4, 0,
       "CUDNN_HEUR_MODE_A: cudnnBackendFinalize(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)"},
      {"get", 4, 202,
       "cudnnBackendGetAttribute(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "
       "CUDNN_ATTR_ENGINEHEUR_RESULTS)"},
      {"create", 3, 0, "cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)"},
      {"get", 3, 300,
       "an engine was left out: cudnnBackendGetAttribute("
       "CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE)"},
      {"get", 2, 1303, "(CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE)"},
      {"create", 7, 0, "cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR)"},
      {"set", 5, 401,
       "building a plan: cuDNN: cudnnBackendSetAttribute("
       "CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)"},
      {"finalize", 5, 0, "cudnnBackendFinalize(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)"},
      {"get", 5, 402, "CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE"},
  };
  for (const Failing& failing : all) {
    const ffi::Error error = failure(failing, CUDNN_STATUS_BAD_PARAM);
    if (error.message().find(failing.words) == std::string::npos) {
      std::fprintf(stderr, "expected: %s\ngot: %s\n", failing.words, error.message().c_str());
      std::exit(1);
    }
    CHECK(fake->alive == 0);
  }
  // cuDNN's statuses as XLA's codes.
  const Failing plan{"finalize", 5, 0, ""};
  CHECK(failure(plan, CUDNN_STATUS_BAD_PARAM).errc() == ffi::ErrorCode::kInvalidArgument);
  CHECK(failure(plan, CUDNN_STATUS_NOT_SUPPORTED).errc() == ffi::ErrorCode::kUnimplemented);
  CHECK(failure(plan, CUDNN_STATUS_INTERNAL_ERROR).errc() == ffi::ErrorCode::kInternal);
  CHECK(failure(plan, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED).errc() ==
        ffi::ErrorCode::kResourceExhausted);
  CHECK(failure(plan, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED).errc() ==
        ffi::ErrorCode::kResourceExhausted);
}

// One mode that fails, or an engine that says nothing of itself, leaves the others.
void TestPartsThatFail() {
  Reset({}, {Engine(6)});
  CHECK(Names(Problem(ConvKind::kFprop)) == Strings{"eng6"});

  ConvProblem problem = Problem(ConvKind::kFprop);
  problem.allow_tf32 = false;
  Reset({Engine(8, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE})});
  const auto none = ConvCandidates::Query(problem, handle);
  CHECK(none.has_error() && none.error().errc() == ffi::ErrorCode::kUnimplemented);
  CHECK(
      none.error().message().find("no engine for this problem: eng8 is left out: its precision or "
                                  "nondeterminism is forbidden; CUDNN_HEUR_MODE_FALLBACK "
                                  "proposes no engine (conv_fprop: batch 2") != std::string::npos);
}

}  // namespace
}  // namespace jax_convgrad

int main(int, char** arguments) {
  using namespace jax_convgrad;
  DnnLibrary::SetPath(arguments[1]);
  const auto library = DnnLibrary::Get();
  CHECK(library.has_value());
  fake = reinterpret_cast<FakeCudnnFunction*>(dlsym((*library)->dlhandle(), "fake_cudnn"))();
  TestNames();
  TestOrderAndDuplicates();
  TestNotes();
  TestOrdersOfWeights();
  TestEnginesWithErrata();
  TestDescriptors();
  TestPlans();
  TestErrors();
  TestPartsThatFail();
  CHECK(fake->alive == 0 && fake->misuses == 0);
}
