#ifndef JAX_CONVGRAD_FFI_LRU_CACHE_H_
#define JAX_CONVGRAD_FFI_LRU_CACHE_H_

#include <cstddef>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace jax_convgrad {

// A bounded map of shared, immutable values that drops the entry that has not been used for the
// longest time. Its lock is held only to look up and to insert. A dropped value lives on as long as
// somebody uses it, and is destroyed outside the lock.
template <typename Key, typename Value, typename Hash>
class LruCache {
 public:
  using Values = std::vector<std::shared_ptr<const Value>>;

  explicit LruCache(size_t capacity) : capacity_(capacity) {}

  // The value stored under `key`, or null.
  std::shared_ptr<const Value> Find(const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = index_.find(key);
    if (found == index_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->second;
  }

  // Stores `value` and returns the value under `key` afterwards: the earlier one if another thread
  // was faster. Values that were dropped for it are appended to `dropped`, if that is given.
  std::shared_ptr<const Value> Insert(const Key& key, std::shared_ptr<const Value> value,
                                      Values* dropped = nullptr) {
    std::list<Entry> leaving;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = index_.find(key);
    if (found != index_.end()) return found->second->second;
    std::list<Entry> entering;  // until it is in the index: the insertion may throw
    entering.emplace_front(key, std::move(value));
    index_.emplace(key, entering.begin());
    entries_.splice(entries_.begin(), entering);
    while (entries_.size() > capacity_) {
      index_.erase(entries_.back().first);
      leaving.splice(leaving.begin(), entries_, std::prev(entries_.end()));
      if (dropped != nullptr) dropped->push_back(leaving.front().second);
    }
    return entries_.front().second;
  }

  // Takes effect at the next insertion.
  void SetCapacity(size_t capacity) {
    const std::lock_guard<std::mutex> lock(mutex_);
    capacity_ = capacity;
  }

  // All values, the most recently used first.
  Values List() {
    const std::lock_guard<std::mutex> lock(mutex_);
    Values values;
    for (const Entry& entry : entries_) values.push_back(entry.second);
    return values;
  }

 private:
  using Entry = std::pair<Key, std::shared_ptr<const Value>>;

  std::mutex mutex_;
  size_t capacity_;           // at least 1
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<Key, typename std::list<Entry>::iterator, Hash> index_;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_FFI_LRU_CACHE_H_
