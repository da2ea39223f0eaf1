// Writes a byte of 10 at an offset in 100 bytes of guarded scratch memory, which is NaN before.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cpu/runtime/scratch.h"

int main(int argc, char** argv) {
  constexpr int kBytes = 100;
  if (argc != 2) return 2;
  jax_convgrad::Scratch scratch(kBytes);
  for (int i = 0; i < kBytes / 4; ++i) {
    float number;
    std::memcpy(&number, scratch.data() + 4 * i, 4);
    if (number == number) {
      std::printf("no NaN at %d\n", 4 * i);
      return 1;
    }
  }
  scratch.data()[std::atoi(argv[1])] = 10;
  return 0;
}
