#include "cuda/plan_cache.h"

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>

#include "common/lru_cache.h"
#include "cuda/dnn_handle.h"
#include "cuda/status.h"

namespace jax_convgrad {
namespace {

// More than any one program has layers: a plan must last from a program's preparation to its
// capture.
constexpr size_t kMostPlans = 4096;

std::atomic<SearchMode> search_mode{SearchMode::kDefault};
std::atomic<int64_t> workspace_limit{-1};
std::atomic<bool> deterministic{false};

struct Key {
  ConvProblem problem;
  SearchMode mode;

  bool operator==(const Key& other) const { return mode == other.mode && problem == other.problem; }
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    return ConvProblemHash()(key.problem) * 3 + static_cast<size_t>(key.mode);
  }
};

struct Entry {
  ChosenPlan chosen;
  std::string text;
};

struct Plans {
  LruCache<Key, Entry, KeyHash> cache{kMostPlans};

  std::mutex mutex;  // of what follows
  std::unordered_map<std::string, std::string> remembered;
  std::map<int, std::string> devices;
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

void Retire(std::vector<std::shared_ptr<const Entry>> entries) {
  Plans& plans = ThePlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  for (std::shared_ptr<const Entry>& entry : entries) {
    if (entry->chosen.plan->owns_kernels()) plans.retired.push_back(std::move(entry));
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

std::string Remembered(const std::string& text) {
  Plans& plans = ThePlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  const auto found = plans.remembered.find(text);
  return found == plans.remembered.end() ? "" : found->second;
}

}  // namespace

void SetSearchMode(SearchMode mode) { search_mode = mode; }
SearchMode GetSearchMode() { return search_mode; }
void SetWorkspaceLimit(int64_t bytes) { workspace_limit = bytes; }
int64_t GetWorkspaceLimit() { return workspace_limit; }
void SetDeterministic(bool value) { deterministic = value; }
bool GetDeterministic() { return deterministic; }

std::shared_ptr<const ChosenPlan> FindPlan(const ConvProblem& problem) {
  return ChosenOf(ThePlans().cache.Find({problem, GetSearchMode()}));
}

ffi::ErrorOr<std::shared_ptr<const ChosenPlan>> FindOrMakePlan(const ConvProblem& problem,
                                                               const ConvBuffers& buffers,
                                                               cudaStream_t stream) {
  Plans& plans = ThePlans();
  const Key key{problem, GetSearchMode()};
  std::shared_ptr<const Entry> entry = plans.cache.Find(key);
  if (entry != nullptr) return ChosenOf(entry);

  std::string text = TextOf(problem);
  ffi::ErrorOr<ChosenPlan> chosen =
      SearchPlan(problem, key.mode, Remembered(text), buffers, stream);
  if (chosen.has_error()) return ffi::Unexpected(chosen.error());
  auto made = std::make_shared<const Entry>(Entry{*std::move(chosen), std::move(text)});
  std::vector<std::shared_ptr<const Entry>> dropped;
  entry = plans.cache.Insert(key, made, &dropped);
  if (entry != made) dropped.push_back(std::move(made));  // another thread was faster
  Retire(std::move(dropped));
  return ChosenOf(entry);
}

std::vector<std::pair<std::string, std::shared_ptr<const ChosenPlan>>> ListPlans() {
  std::vector<std::pair<std::string, std::shared_ptr<const ChosenPlan>>> list;
  for (const std::shared_ptr<const Entry>& entry : ThePlans().cache.List()) {
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
  Retire(plans.cache.Clear());
  const std::lock_guard<std::mutex> lock(plans.mutex);
  plans.remembered.clear();
}

}  // namespace jax_convgrad
