// Work that several threads share without waiting for each other.

#ifndef JAX_CONVGRAD_CPU_RUNTIME_JOB_H_
#define JAX_CONVGRAD_CPU_RUNTIME_JOB_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cpu/runtime/first_exception.h"
#include "ffi/guard.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// The thread that ends the last task completes the promise, and XLA continues in it. `Work` has
//
//   int64_t task_count() const;        one or more
//   void RunTask(int64_t task) const;  by any thread, in any order; may throw
//   void Finish() const;               after all tasks; may throw
template <typename Work>
class Job {
 public:
  // `op` starts the text of an error and problem() ends it, as in Guarded. The rest makes the work.
  template <typename... Arguments>
  Job(const char* op, std::function<std::string()> problem, ::xla::ffi::Promise promise,
      Arguments&&... arguments)
      : op_(op),
        problem_(std::move(problem)),
        promise_(std::move(promise)),
        work_(std::in_place, std::forward<Arguments>(arguments)...),
        tasks_(work_->task_count()),
        unfinished_(tasks_) {}

  // Runs tasks until every task has been started.
  void Run() noexcept {
    for (;;) {
      const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks_) return;
      exception_.Guard([&] { work_->RunTask(task); });
      if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) return End();
    }
  }

 private:
  void End() noexcept {
    const auto finish = [&] {
      exception_.Rethrow();
      work_->Finish();
      return ::xla::ffi::Error::Success();
    };
    ::xla::ffi::Error error = Guarded(op_, finish, problem_);
    work_.reset();  // frees its memory: XLA may continue for long before SetAvailable returns
    if (error.failure()) {
      promise_.SetError(std::move(error));
    } else {
      promise_.SetAvailable();
    }
  }

  const char* const op_;
  const std::function<std::string()> problem_;
  ::xla::ffi::Promise promise_;
  std::optional<Work> work_;
  const int64_t tasks_;
  std::atomic<int64_t> next_{0}, unfinished_;
  FirstException exception_;
};

// Lets threads of the pool run the job: `count` of them, or fewer if there is no memory for so many
// tasks. Returns their number.
template <typename Work>
int64_t ScheduleJob(::xla::ffi::ThreadPool& pool, const std::shared_ptr<Job<Work>>& job,
                    int64_t count) noexcept {
  int64_t scheduled = 0;
  try {
    for (; scheduled < count; ++scheduled) pool.Schedule([job] { job->Run(); });
  } catch (...) {
  }
  return scheduled;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_RUNTIME_JOB_H_
