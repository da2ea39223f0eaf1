// The transposition of matrices on the processor: every element in its place, inside both arrays,
// whatever the sizes, the type and the number of blocks that share the tiles.
//
//   transpose_fuzz SEED COUNT

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "cuda/kernels/transpose/launch.cu"
#include "fuzz.h"

namespace {

using fuzz::Array;
using fuzz::Between;
using fuzz::Random;

constexpr int64_t kMaxElements = 20000;

// Often at the edges of tiles, of 32 by 32.
int64_t RandomSize(Random* random) {
  if (Between(random, 0, 1)) return Between(random, 1, 140);
  return std::max<int64_t>(1, 32 * Between(random, 0, 20) + Between(random, -1, 1));
}

template <typename T>
bool Check(Random* random) {
  int64_t rows = RandomSize(random), columns = RandomSize(random);
  while (rows * columns > kMaxElements) columns = RandomSize(random), rows = RandomSize(random);
  std::vector<T> numbers(static_cast<size_t>(rows * columns));
  for (T& number : numbers) number = static_cast<T>((*random)());
  // Weights lie wherever their elements may.
  const auto offset = [&] { return static_cast<int64_t>(sizeof(T)) * Between(random, 0, 3); };
  const Array<T> from(numbers, offset());
  const Array<T> to(std::vector<T>(numbers.size()), offset());
  const int64_t max_blocks = Between(random, 0, 1) ? Between(random, 1, 5) : int64_t{1} << 16;
  const auto fail = [&](const char* what) {
    std::printf("%s: %ld by %ld of %zu bytes, at most %ld blocks\n", what, long{rows},
                long{columns}, sizeof(T), long{max_blocks});
    return false;
  };
  for (const T fill : {T{0}, static_cast<T>(~T{0})}) {  // an element left alone shows
    std::fill_n(to.data(), numbers.size(), fill);
    if (jax_convgrad::LaunchTiles(from.data(), to.data(), rows, columns, sizeof(T), max_blocks,
                                  nullptr) != cudaSuccess) {
      return fail("not launched");
    }
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        if (to.data()[column * rows + row] != numbers[static_cast<size_t>(row * columns + column)])
          return fail("wrong");
      }
    }
  }
  return true;
}

// What no element has is refused, and what is launched by default covers all tiles.
bool CheckLaunches() {
  const uint16_t from[6] = {1, 2, 3, 4, 5, 6};
  uint16_t to[6] = {};
  for (const int64_t bytes : {0, 1, 3, 16}) {
    if (jax_convgrad::LaunchTranspose(from, to, 2, 3, bytes, nullptr) == cudaSuccess) return false;
  }
  if (jax_convgrad::LaunchTranspose(from, to, 2, 3, 2, nullptr) != cudaSuccess) return false;
  const uint16_t expected[6] = {1, 4, 2, 5, 3, 6};
  return std::equal(to, to + 6, expected);
}

}  // namespace

int main(int argc, char** argv) {
  if (!CheckLaunches()) {
    std::printf("wrong launches\n");
    return 1;
  }
  return fuzz::Main(argc, argv, "transpose_fuzz", [](Random* random) {
    switch (Between(random, 0, 2)) {
      case 0:
        return Check<uint16_t>(random);
      case 1:
        return Check<uint32_t>(random);
      default:
        return Check<uint64_t>(random);
    }
  });
}
