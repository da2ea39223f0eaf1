#include "cpu/runtime/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace jax_convgrad {
namespace {

namespace ffi = ::xla::ffi;

// Shared with the scheduled tasks, some of which may start only after ParallelFor has returned.
// These find no task left and never touch `body`, which no longer exists then.
class Loop {
 public:
  Loop(int64_t tasks, const std::function<void(int64_t, int64_t)>* body)
      : tasks_(tasks), body_(body) {}

  void Work(int64_t worker) {
    int64_t finished = 0;
    for (;;) {
      const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks_) break;
      (*body_)(task, worker);
      ++finished;
    }
    if (finished == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    finished_ += finished;
    if (finished_ == tasks_) done_.notify_all();
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return finished_ == tasks_; });
  }

 private:
  const int64_t tasks_;
  const std::function<void(int64_t, int64_t)>* const body_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  std::condition_variable done_;
  int64_t finished_ = 0;  // guarded by mutex_
};

}  // namespace

int64_t NumThreads(const ffi::ThreadPool& pool) { return std::max<int64_t>(1, pool.num_threads()); }

void ParallelFor(ffi::ThreadPool& pool, int64_t workers, int64_t tasks,
                 const std::function<void(int64_t, int64_t)>& body) {
  workers = std::min(workers, tasks);
  if (workers <= 1) {
    for (int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  const auto loop = std::make_shared<Loop>(tasks, &body);
  for (int64_t worker = 1; worker < workers; ++worker) {
    try {
      pool.Schedule([loop, worker] { loop->Work(worker); });
    } catch (...) {
      // No memory for the task. The threads scheduled before are already working on `body`, so this
      // function must not return before them; fewer threads do the work.
      break;
    }
  }
  loop->Work(0);
  loop->Wait();
}

}  // namespace jax_convgrad
