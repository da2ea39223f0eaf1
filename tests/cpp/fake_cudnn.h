// The cuDNN of the tests: a library that keeps what it is given, names the engines that a test asks
// for, fails where a test says, and computes nothing.

#ifndef JAX_CONVGRAD_TESTS_FAKE_CUDNN_H_
#define JAX_CONVGRAD_TESTS_FAKE_CUDNN_H_

#include <cudnn_graph.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

struct FakeEngine {
  int64_t number = 0;
  std::vector<std::pair<int, int64_t>> settings;  // type and value
  std::vector<int> numerical_notes, behavior_notes;
  int64_t workspace = 0;  // -1: not known before the plan is built
  int64_t plan_workspace = 0;
};

struct FakeCudnn {
  std::map<int, std::vector<FakeEngine>> heuristics;  // by mode; engine 1 unless a test has others
  size_t version = 91900;

  // A call that fails: "finalize", "set", "get" or "create", the descriptor's type and the
  // attribute (0 where the call has none); execute fails by the engine's number.
  std::string failing_call;
  int failing_type = 0, failing_attribute = 0;
  cudnnStatus_t status = CUDNN_STATUS_BAD_PARAM;
  std::string last_error;

  std::mutex mutex;              // of what follows
  std::vector<std::string> log;  // every descriptor that was finalized, every execution
  std::map<std::string, int64_t> calls;
  int64_t alive = 0;    // descriptors
  int64_t misuses = 0;  // of descriptors that are gone, or not finalized
};

// The library's one state; the library's function of this name returns it.
using FakeCudnnFunction = FakeCudnn*();

#endif  // JAX_CONVGRAD_TESTS_FAKE_CUDNN_H_
