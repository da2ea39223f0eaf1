#ifndef JAX_CONVGRAD_CPU_RUNTIME_FIRST_EXCEPTION_H_
#define JAX_CONVGRAD_CPU_RUNTIME_FIRST_EXCEPTION_H_

#include <atomic>
#include <exception>
#include <mutex>

namespace jax_convgrad {

// Carries the first exception of several threads to the thread that waits for them: no exception
// may reach XLA's threads.
class FirstException {
 public:
  // Runs `body`, unless a body has failed already.
  template <typename Body>
  void Guard(const Body& body) noexcept {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      body();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!exception_) exception_ = std::current_exception();
      failed_.store(true, std::memory_order_relaxed);
    }
  }

  // Call it when no thread is working any more.
  void Rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr exception_;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_RUNTIME_FIRST_EXCEPTION_H_
