// What happens when something throws: a handler's guard makes an error of it, and so does a job
// whose tasks several threads share; a loop or a job that cannot be given to more threads is worked
// off by those that it has; and what is given back needs no memory.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cpu/runtime/job.h"
#include "cpu/runtime/parallel_for.h"
#include "cpu/runtime/scratch.h"
#include "ffi/checked.h"
#include "ffi/error.h"
#include "ffi/guard.h"
#include "ffi/lru_cache.h"

namespace {

thread_local bool out_of_memory = false;

}  // namespace

// Not inlined, where g++ takes what they do for new and free of one block.
__attribute__((noinline)) void* operator new(size_t bytes) {
  void* const data = out_of_memory ? nullptr : std::malloc(bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
__attribute__((noinline)) void operator delete(void* data) noexcept { std::free(data); }
__attribute__((noinline)) void operator delete(void* data, size_t) noexcept { std::free(data); }

namespace {

namespace ffi = ::xla::ffi;
using jax_convgrad::Guarded;

int failures = 0;

void Expect(bool good, const char* what) {
  if (good) return;
  std::printf("not so: %s\n", what);
  ++failures;
}

void ExpectError(const ffi::Error& error, ffi::ErrorCode code, const std::string& text) {
  Expect(error.errc() == code, text.c_str());
  Expect(error.message() == text, error.message().c_str());
}

void TestGuard() {
  const auto sizes = [] { return std::string("x (1, 2)"); };
  ExpectError(Guarded(
                  "op", []() -> ffi::Error { throw std::bad_alloc(); }, sizes),
              ffi::ErrorCode::kResourceExhausted, "op: no host memory (x (1, 2))");
  ExpectError(Guarded(
                  "op", []() -> ffi::Error { throw std::runtime_error("why"); }, sizes),
              ffi::ErrorCode::kInternal, "op: why (x (1, 2))");
  ExpectError(Guarded("op", []() -> ffi::Error { throw 1; }), ffi::ErrorCode::kInternal,
              "op: an unknown exception");
  ExpectError(
      Guarded(
          "op", []() -> ffi::Error { throw 1; }, []() -> std::string { throw std::bad_alloc(); }),
      ffi::ErrorCode::kInternal, "");
  Expect(Guarded("op", [] { return ffi::Error::Success(); }).success(), "a success stays one");
}

void TestSizes() {
  const auto sizes = [] { return std::string("x (1, 2)"); };
  const ffi::Error error(ffi::ErrorCode::kInternal, "op: why");
  ExpectError(jax_convgrad::WithSizes(error, sizes), ffi::ErrorCode::kInternal,
              "op: why (x (1, 2))");
  Expect(jax_convgrad::WithSizes(ffi::Error::Success(), sizes).success(), "a success stays one");
}

// What is kept is too little for the next, and is dropped when that is given back.
void TestScratchWithoutMemory() {
  {
    const jax_convgrad::Scratch small(size_t{1} << 20);
  }
  const jax_convgrad::Scratch held(size_t{1} << 20);
  auto large = std::make_unique<jax_convgrad::Scratch>(size_t{60} << 20);
  large->data()[0] = 1;
  out_of_memory = true;
  large.reset();
  out_of_memory = false;
}

// Cannot be copied once there is no memory.
struct Name {
  explicit Name(std::string name) : text(std::move(name)) {}
  Name(const Name& other) : text(other.text) {
    if (copies-- <= 0) throw std::bad_alloc();
  }
  bool operator==(const Name& other) const { return text == other.text; }

  std::string text;
  static int copies;
};
int Name::copies = 100;
struct HashOfName {
  size_t operator()(const Name& name) const { return std::hash<std::string>()(name.text); }
};

void TestCacheWithoutMemory() {
  for (const int copies : {0, 1}) {
    jax_convgrad::LruCache<Name, int, HashOfName> cache(2);
    const Name first("first"), second("second"), third("third");
    Name::copies = copies;
    bool thrown = false;
    try {
      cache.Insert(first, std::make_shared<const int>(1));
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    Name::copies = 100;
    Expect(thrown && cache.List().empty(), "an entry is there with its index, or not at all");
    cache.Insert(first, std::make_shared<const int>(10));
    cache.Insert(second, std::make_shared<const int>(2));
    Expect(*cache.Find(first) == 10, "what was stored the second time");
    cache.Insert(third, std::make_shared<const int>(3));
    Expect(cache.Find(first) != nullptr && cache.Find(second) == nullptr, "the oldest has left");
  }
}

void TestMultipliedBytes() {
  using jax_convgrad::MultipliedBytes;
  Expect(MultipliedBytes(3, 5) == 15, "3 times 5 bytes");
  for (const size_t bytes : {size_t{1} << 62, size_t{1} << 63, ~size_t{0}}) {
    bool thrown = false;
    try {
      MultipliedBytes(2, bytes);
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    Expect(thrown, "twice more bytes than can be counted");
  }
}

std::vector<std::thread> threads;
int room;  // tasks that the pool takes
// What it was given beyond, which a real one throws before it has made. Never destroyed: a leak
// else.
std::vector<void*>& lost = *new std::vector<void*>;

XLA_FFI_Error* Schedule(XLA_FFI_ThreadPool_Schedule_Args* args) {
  if (room-- <= 0) {
    lost.push_back(args->data);
    throw std::bad_alloc();
  }
  threads.emplace_back([task = args->task, data = args->data] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    task(data);
  });
  return nullptr;
}

void TestPoolWithoutMemory() {
  XLA_FFI_Api api{};
  api.XLA_FFI_ThreadPool_Schedule = Schedule;
  ffi::DiagnosticEngine diagnostic;
  ffi::ThreadPool pool = *ffi::CtxDecoding<ffi::ThreadPool>::Decode(&api, nullptr, diagnostic);
  for (room = 0; room < 3;) {
    const int scheduled = room;
    std::vector<std::atomic<int>> done(40);
    bool thrown = false;
    try {
      jax_convgrad::ParallelFor(pool, 4, 40, [&done](int64_t task, int64_t) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ++done[static_cast<size_t>(task)];
      });
    } catch (...) {
      thrown = true;
    }
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    Expect(!thrown, "a loop throws nothing of its own");
    for (const std::atomic<int>& times : done) Expect(times == 1, "every task is done once");
    room = scheduled + 1;
  }
}

// 40 tasks, of which those from `first` to `last` throw.
struct SomeThrow {
  int64_t first, last;
  std::shared_ptr<std::atomic<int>>
      done;  // while the work is there, the test is not its only owner
  int64_t task_count() const { return 40; }
  void RunTask(int64_t task) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (task >= first && task < last) throw std::bad_alloc();
    ++*done;
  }
  void Finish() const {
    if (first == last && first < 0) throw std::runtime_error("no end");
  }
};

// With a pool that takes so many tasks. Says what the promise was completed with, how often tasks
// were done, and whether the work was gone by then.
void TestJob(int taken, int64_t first, int64_t last, const std::string& text) {
  XLA_FFI_Api api{};
  api.XLA_FFI_ThreadPool_Schedule = Schedule;
  ffi::DiagnosticEngine diagnostic;
  ffi::ThreadPool pool = *ffi::CtxDecoding<ffi::ThreadPool>::Decode(&api, nullptr, diagnostic);
  const auto done = std::make_shared<std::atomic<int>>(0);
  const ffi::Promise promise;
  ffi::Future future(promise);
  std::atomic<int> completed{0};
  future.OnReady([&](const std::optional<ffi::Error>& error) {
    ++completed;
    Expect((error ? error->message() : "") == text, text.empty() ? "a success" : text.c_str());
    Expect(done.use_count() == 1, "the work's memory is given back before XLA goes on");
  });
  room = taken;
  {
    using Job = jax_convgrad::Job<SomeThrow>;
    const auto job = std::make_shared<Job>(
        "op", [] { return std::string("40 tasks"); }, promise, SomeThrow{first, last, done});
    Expect(jax_convgrad::ScheduleJob(pool, job, 2) == std::min(taken, 2), "how many it took");
    job->Run();
  }
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  Expect(completed == 1, "a promise is completed once");
  if (text.empty()) Expect(*done == 40, "every task is done once");
}

void TestJobs() {
  for (const int taken : {0, 1, 2, 3}) {
    TestJob(taken, 0, 0, "");
    TestJob(taken, 7, 9, "op: no host memory (40 tasks)");
    TestJob(taken, 0, 40, "op: no host memory (40 tasks)");
    TestJob(taken, -1, -1, "op: no end (40 tasks)");
  }
}

}  // namespace

int main() {
  TestGuard();
  TestSizes();
  TestScratchWithoutMemory();
  TestCacheWithoutMemory();
  TestMultipliedBytes();
  TestPoolWithoutMemory();
  TestJobs();
  return failures == 0 ? 0 : 1;
}
