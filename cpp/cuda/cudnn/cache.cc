#include "cuda/cudnn/cache.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>

#include "cuda/cudnn/handle.h"
#include "cuda/cudnn/scratch.h"
#include "cuda/status.h"
#include "ffi/lru_cache.h"

namespace jax_convgrad {
namespace {

// More than any one program has layers: a plan must last from a program's preparation to its
// capture.
constexpr size_t kMostPlans = 4096;

std::atomic<int64_t> generation{0};

struct Key {
  ConvProblem problem;
  ChoiceRules rules;

  bool operator==(const Key& other) const {
    return rules == other.rules && problem == other.problem;
  }
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    return (ConvProblemHash()(key.problem) * 3 + static_cast<size_t>(key.rules.mode)) * 31 +
           static_cast<size_t>(key.rules.generation);
  }
};

struct Entry {
  Key key;
  ChosenPlan chosen;
  std::string text;
  int64_t made_in;  // the generation of the process, whatever the program's
};

struct Plans {
  LruCache<Key, Entry, KeyHash> cache{kMostPlans};

  std::mutex mutex;  // of what follows
  std::unordered_map<std::string, std::string> remembered;
  std::map<int, std::string> devices;
  // The engines of plans that left the cache, which are some hundred bytes each: made again, a plan
  // is the same.
  std::unordered_map<Key, KnownChoice, KeyHash> left;
  // Plans that left the cache and own kernels which a captured graph may hold.
  std::vector<std::shared_ptr<const Entry>> retired;
};

Plans& ThePlans() {
  static Plans* const plans = new Plans;  // never destroyed: other threads may use it
  return *plans;
}

std::shared_ptr<const ChosenPlan> ChosenOf(const std::shared_ptr<const Entry>& entry) {
  return entry == nullptr ? nullptr : std::shared_ptr<const ChosenPlan>(entry, &entry->chosen);
}

void Retire(const std::vector<std::shared_ptr<const Entry>>& entries) {
  Plans& plans = ThePlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  for (const std::shared_ptr<const Entry>& entry : entries) {
    plans.left[entry->key] = {entry->chosen.plan->engine(), entry->chosen.chosen_by, true};
    if (entry->chosen.plan->owns_kernels()) plans.retired.push_back(entry);
  }
}

std::string DeviceName(int device) {
  Plans& plans = ThePlans();
  {
    const std::lock_guard<std::mutex> lock(plans.mutex);
    const auto found = plans.devices.find(device);
    if (found != plans.devices.end()) return found->second;
  }
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    (void)cudaGetLastError();
    return "unknown device";
  }
  const std::lock_guard<std::mutex> lock(plans.mutex);
  return plans.devices.emplace(device, properties.name).first->second;
}

std::string TextOf(const ConvProblem& problem) {
  const ffi::ErrorOr<const DnnLibrary*> library = DnnLibrary::Get();
  return Text(problem.ToString(), ", on ", DeviceName(problem.device), ", cuDNN ",
              library.has_value() ? DnnLibrary::VersionText((*library)->version()) : "unknown");
}

// The choice that was made for it before, or was loaded for a problem of this text, or else the one
// that another device of the same kind has come to: replicas then compute the same, and search
// once.
KnownChoice Known(const Key& key, const std::string& text) {
  Plans& plans = ThePlans();
  {
    const std::lock_guard<std::mutex> lock(plans.mutex);
    const auto before = plans.left.find(key);
    if (before != plans.left.end()) return before->second;
    const auto found = plans.remembered.find(text);
    if (found != plans.remembered.end()) return {found->second, "loaded", false};
  }
  for (const std::shared_ptr<const Entry>& entry : plans.cache.List()) {
    const ChosenPlan& chosen = entry->chosen;
    if (entry->text == text && entry->key.rules == key.rules &&
        chosen.chosen_by == SearchModeName(key.rules.mode)) {
      return {chosen.plan->engine(), chosen.chosen_by, false};
    }
  }
  return {};
}

}  // namespace

std::shared_ptr<const ChosenPlan> FindPlan(const ConvProblem& problem, const ChoiceRules& rules) {
  return ChosenOf(ThePlans().cache.Find({problem, rules}));
}

ffi::ErrorOr<std::shared_ptr<const ChosenPlan>> FindOrMakePlan(const ConvProblem& problem,
                                                               const ChoiceRules& rules,
                                                               const ConvBuffers& buffers,
                                                               cudaStream_t stream) {
  Plans& plans = ThePlans();
  const Key key{problem, rules};
  std::shared_ptr<const Entry> entry = plans.cache.Find(key);
  if (entry != nullptr) return ChosenOf(entry);

  const RelaxedCaptureMode relaxed;
  std::string text = TextOf(problem);  // which opens cuDNN
  // A search should have the device to itself. What can wait for other devices, as this and giving
  // back memory can, is done without the lock that their searches wait for.
  const cudaError_t status = cudaStreamSynchronize(stream);
  if (status != cudaSuccess) {
    return ffi::Unexpected(
        WithSizes(CudaError(ConvName(problem.kind), "cudaStreamSynchronize", status),
                  [&] { return problem.ToString(); }));
  }
  DeviceScratch scratch;
  std::vector<std::shared_ptr<const Entry>> dropped;
  {
    static std::mutex* const searching = new std::mutex;
    const std::lock_guard<std::mutex> lock(*searching);
    entry = plans.cache.Find(key);  // made by another thread meanwhile?
    if (entry != nullptr) return ChosenOf(entry);
    ffi::ErrorOr<ChosenPlan> chosen =
        SearchPlan(problem, rules.mode, Known(key, text), buffers, &scratch);
    if (chosen.has_error()) return ffi::Unexpected(chosen.error());
    auto made =
        std::make_shared<const Entry>(Entry{key, *std::move(chosen), std::move(text), generation});
    entry = plans.cache.Insert(key, std::move(made), &dropped);
    // Under the lock: who waits for it to make what was dropped again must find its engine.
    Retire(dropped);
  }
  return ChosenOf(entry);
}

std::vector<std::pair<std::string, std::shared_ptr<const ChosenPlan>>> ListPlans() {
  std::vector<std::pair<std::string, std::shared_ptr<const ChosenPlan>>> list;
  for (const std::shared_ptr<const Entry>& entry : ThePlans().cache.List()) {
    if (entry->made_in != generation) continue;
    list.emplace_back(entry->text, ChosenOf(entry));
  }
  return list;
}

void RememberChoices(std::vector<std::pair<std::string, std::string>> choices) {
  Plans& plans = ThePlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  for (auto& [text, engine] : choices) plans.remembered[std::move(text)] = std::move(engine);
}

std::vector<std::pair<std::string, std::string>> RememberedChoices() {
  Plans& plans = ThePlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  return {plans.remembered.begin(), plans.remembered.end()};
}

void ClearPlans() {
  Plans& plans = ThePlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  plans.remembered.clear();
  ++generation;
}

int64_t Generation() { return generation; }

void SetMostPlans(size_t most) { ThePlans().cache.SetCapacity(std::max<size_t>(1, most)); }

}  // namespace jax_convgrad
