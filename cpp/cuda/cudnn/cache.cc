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
constexpr size_t kMaxPlans = 4096;

std::atomic<int64_t> generation{0};

struct KeyHash {
  size_t operator()(const PlanKey& key) const {
    return (ConvProblemHash()(key.problem) * 3 + static_cast<size_t>(key.rules.mode)) * 31 +
           static_cast<size_t>(key.rules.generation);
  }
};

struct Entry {
  PlanKey key;
  ChosenPlan chosen;
  std::string text;
  int64_t made_in;  // the generation of the process, whatever the program's is
};

struct PlanCache {
  LruCache<PlanKey, Entry, KeyHash> plans{kMaxPlans};

  std::mutex mutex;                                     // protects the following members
  std::unordered_map<std::string, std::string> loaded;  // engines by the texts of problems
  std::map<int, std::string> device_names;
  // The keys in `plans`, by the text of the problem: the same problem on several devices.
  std::unordered_multimap<std::string, std::shared_ptr<const Entry>> by_text;
  // The engines of plans that were evicted, some hundred bytes each: a plan that is made again then
  // has the same engine.
  std::unordered_map<PlanKey, KnownChoice, KeyHash> evicted;
  // Plans that were evicted but own kernels that a captured graph may hold: never destroyed.
  std::vector<std::shared_ptr<const Entry>> leaked_for_graphs;
};

PlanCache& GlobalPlanCache() {
  static PlanCache* const cache = new PlanCache;  // never destroyed: other threads may use it
  return *cache;
}

std::shared_ptr<const ChosenPlan> ChosenOf(const std::shared_ptr<const Entry>& entry) {
  return entry == nullptr ? nullptr : std::shared_ptr<const ChosenPlan>(entry, &entry->chosen);
}

// Notes that `entry` is in the cache now, and that the entries that it evicted are not.
void NoteInsertion(const std::shared_ptr<const Entry>& entry,
                   const std::vector<std::shared_ptr<const Entry>>& evicted) {
  PlanCache& cache = GlobalPlanCache();
  const std::lock_guard<std::mutex> lock(cache.mutex);
  cache.by_text.emplace(entry->text, entry);
  for (const std::shared_ptr<const Entry>& gone : evicted) {
    const auto [begin, end] = cache.by_text.equal_range(gone->text);
    const auto found = std::find_if(begin, end, [&](const auto& e) { return e.second == gone; });
    if (found != end) cache.by_text.erase(found);
    cache.evicted[gone->key] = {gone->chosen.plan->engine(), gone->chosen.chosen_by, true};
    if (gone->chosen.plan->owns_kernels()) cache.leaked_for_graphs.push_back(gone);
  }
}

std::string DeviceName(int device) {
  PlanCache& cache = GlobalPlanCache();
  {
    const std::lock_guard<std::mutex> lock(cache.mutex);
    const auto found = cache.device_names.find(device);
    if (found != cache.device_names.end()) return found->second;
  }
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    (void)cudaGetLastError();
    return "unknown device";
  }
  const std::lock_guard<std::mutex> lock(cache.mutex);
  return cache.device_names.emplace(device, properties.name).first->second;
}

std::string TextOf(const ConvProblem& problem) {
  const ffi::ErrorOr<const DnnLibrary*> library = DnnLibrary::Get();
  return Text(problem.ToString(), ", on ", DeviceName(problem.device), ", cuDNN ",
              library.has_value() ? DnnLibrary::VersionText((*library)->version()) : "unknown");
}

// The choice that was made for the problem before, or was loaded for its text, or else the choice
// of another device of the same kind: replicas then compute the same, and search once.
KnownChoice Known(const PlanKey& key, const std::string& text) {
  PlanCache& cache = GlobalPlanCache();
  const std::lock_guard<std::mutex> lock(cache.mutex);
  const auto before = cache.evicted.find(key);
  if (before != cache.evicted.end()) return before->second;
  const auto loaded = cache.loaded.find(text);
  if (loaded != cache.loaded.end()) return {loaded->second, "loaded", false};
  const auto [begin, end] = cache.by_text.equal_range(text);
  for (auto it = begin; it != end; ++it) {
    const Entry& entry = *it->second;
    if (entry.key.rules == key.rules && entry.chosen.chosen_by == SearchModeName(key.rules.mode)) {
      return {entry.chosen.plan->engine(), entry.chosen.chosen_by, false};
    }
  }
  return {};
}

}  // namespace

std::shared_ptr<const ChosenPlan> FindPlan(const PlanKey& key) {
  return ChosenOf(GlobalPlanCache().plans.Find(key));
}

ffi::ErrorOr<std::shared_ptr<const ChosenPlan>> FindOrMakePlan(const PlanKey& key,
                                                               const ConvBuffers& buffers,
                                                               cudaStream_t stream) {
  PlanCache& cache = GlobalPlanCache();
  std::shared_ptr<const Entry> entry = cache.plans.Find(key);
  if (entry != nullptr) return ChosenOf(entry);

  const ConvProblem& problem = key.problem;
  const RelaxedCaptureMode relaxed;
  std::string text = TextOf(problem);  // which opens cuDNN
  // A search should have the device to itself. Work that can wait for other devices, such as this
  // and giving back memory, is done without the lock that their searches wait for.
  const cudaError_t status = cudaStreamSynchronize(stream);
  if (status != cudaSuccess) {
    return ffi::Unexpected(
        WithSizes(CudaError(ConvName(problem.kind), "cudaStreamSynchronize", status),
                  [&] { return problem.ToString(); }));
  }
  DeviceScratch scratch;
  std::vector<std::shared_ptr<const Entry>> evicted;
  {
    static std::mutex* const searching = new std::mutex;
    const std::lock_guard<std::mutex> lock(*searching);
    entry = cache.plans.Find(key);  // made by another thread meanwhile?
    if (entry != nullptr) return ChosenOf(entry);
    ffi::ErrorOr<ChosenPlan> chosen =
        SearchPlan(problem, key.rules.mode, Known(key, text), buffers, &scratch);
    if (chosen.has_error()) return ffi::Unexpected(chosen.error());
    auto made =
        std::make_shared<const Entry>(Entry{key, *std::move(chosen), std::move(text), generation});
    entry = cache.plans.Insert(key, std::move(made), &evicted);
    // Under the lock: a thread that waits for it to make an evicted plan again must find its
    // engine.
    NoteInsertion(entry, evicted);
  }
  return ChosenOf(entry);
}

std::vector<std::pair<std::string, std::shared_ptr<const ChosenPlan>>> ListPlans() {
  std::vector<std::pair<std::string, std::shared_ptr<const ChosenPlan>>> list;
  for (const std::shared_ptr<const Entry>& entry : GlobalPlanCache().plans.List()) {
    if (entry->made_in != generation) continue;
    list.emplace_back(entry->text, ChosenOf(entry));
  }
  return list;
}

void LoadChoices(std::vector<std::pair<std::string, std::string>> choices) {
  PlanCache& cache = GlobalPlanCache();
  const std::lock_guard<std::mutex> lock(cache.mutex);
  for (auto& [text, engine] : choices) cache.loaded[std::move(text)] = std::move(engine);
}

std::vector<std::pair<std::string, std::string>> LoadedChoices() {
  PlanCache& cache = GlobalPlanCache();
  const std::lock_guard<std::mutex> lock(cache.mutex);
  return {cache.loaded.begin(), cache.loaded.end()};
}

void ClearPlans() {
  PlanCache& cache = GlobalPlanCache();
  const std::lock_guard<std::mutex> lock(cache.mutex);
  cache.loaded.clear();
  ++generation;
}

int64_t Generation() { return generation; }

void SetMaxPlans(size_t max) { GlobalPlanCache().plans.SetCapacity(std::max<size_t>(1, max)); }

}  // namespace jax_convgrad
