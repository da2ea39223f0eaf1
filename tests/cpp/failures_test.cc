// What happens when something throws: a handler's guard makes an error of it, and a loop that
// cannot be given to more threads is worked off by those that it has.

#include <atomic>
#include <chrono>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/checked.h"
#include "common/guard.h"
#include "cpu/parallel_for.h"

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

}  // namespace

int main() {
  TestGuard();
  TestMultipliedBytes();
  TestPoolWithoutMemory();
  return failures == 0 ? 0 : 1;
}
