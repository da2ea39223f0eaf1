// Replaces scratch.cc in builds that look for faults: every Scratch is full of NaNs, and has NaNs
// in front of it and behind it. A read of memory that was not written gives NaN, and a write
// outside ends the process, as under a sanitizer. Sanitizers do not see the code that oneDNN
// compiles at run time.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "cpu/runtime/scratch.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kMarginBytes = kPageBytes;
constexpr int kNan = 0xff;  // four of these bytes, or two or eight, are one

void CheckMargin(const char* margin, const char* side, size_t bytes) {
  for (size_t i = 0; i < kMarginBytes; ++i) {
    if (static_cast<unsigned char>(margin[i]) == kNan) continue;
    std::fprintf(stderr, "jax_convgrad: a write %s scratch memory of %zu bytes\n", side, bytes);
    std::abort();
  }
}

}  // namespace

Scratch::Scratch(size_t bytes) {
  if (bytes == 0) return;
  if (bytes > std::numeric_limits<size_t>::max() / 2) throw std::bad_alloc();
  const size_t pages = RoundUp(bytes, kPageBytes);
  const size_t all = kMarginBytes + pages + kMarginBytes;
  void* const memory = std::aligned_alloc(kPageBytes, all);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, kNan, all);
  data_ = static_cast<char*>(memory) + kMarginBytes;
  bytes_ = bytes;
}

Scratch::~Scratch() {
  if (data_ == nullptr) return;
  CheckMargin(data_ - kMarginBytes, "in front of", bytes_);
  CheckMargin(data_ + bytes_, "behind", bytes_);
  std::free(data_ - kMarginBytes);
}

}  // namespace jax_convgrad
