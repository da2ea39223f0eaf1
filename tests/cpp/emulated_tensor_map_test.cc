// The emulated EncodeTensorMap takes what lies at each limit of the driver's
// cuTensorMapEncodeTiled, and refuses what lies behind it.

#include <cstdint>
#include <cstring>

#include "check.h"
#include "cuda/kernels/common/tensor_map.h"

namespace {

using jax_convgrad::TensorMap;
using jax_convgrad::TensorShape;

alignas(128) unsigned char array[256];

// An image of 32 channels of 16 bits, of which boxes of 8 by 8 pixels are copied.
TensorShape Good() {
  TensorShape shape;
  const int64_t sizes[] = {32, 100, 50, 20, 3}, box[] = {32, 8, 8, 1, 1};
  std::memcpy(shape.sizes, sizes, sizeof(sizes));
  std::memcpy(shape.box, box, sizeof(box));
  shape.line_bytes = 64;
  return shape;
}

bool IsTaken(const TensorShape& shape, const void* from = array) {
  static TensorMap map;
  return jax_convgrad::EncodeTensorMap(from, shape, &map) == cudaSuccess;
}

template <typename Change>
bool IsTakenWith(const Change& change) {
  TensorShape shape = Good();
  change(&shape);
  return IsTaken(shape);
}

// Channels of `element_bytes`, `channels` of them, of which boxes have `box` and lines `line`
// bytes.
bool HasLines(int64_t element_bytes, int64_t channels, int64_t box, int64_t line) {
  return IsTakenWith([=](TensorShape* shape) {
    shape->element_bytes = element_bytes;
    shape->sizes[0] = channels;
    shape->box[0] = box;
    shape->line_bytes = line;
  });
}

}  // namespace

int main() {
  CHECK(IsTaken(Good()));
  for (const int64_t bytes : {1, 2, 4, 8}) CHECK(!IsTaken(Good(), array + bytes));
  CHECK(IsTaken(Good(), array + 16));
  static unsigned char room[sizeof(TensorMap) + 64];
  const auto begin = 64 - reinterpret_cast<uintptr_t>(room) % 64;
  for (const size_t off : {16u, 32u}) {
    auto* const map = reinterpret_cast<TensorMap*>(room + (begin + off) % 64);
    CHECK(jax_convgrad::EncodeTensorMap(array, Good(), map) != cudaSuccess);
  }

  for (int axis = 1; axis < jax_convgrad::kTensorAxes; ++axis) {
    const auto with_size = [axis](int64_t size) {
      return IsTakenWith([=](TensorShape* shape) {
        for (int64_t& stride : shape->strides) stride = 64;
        shape->sizes[axis] = size;
      });
    };
    CHECK(!with_size(0) && with_size(1) && with_size(int64_t{1} << 32));
    CHECK(!with_size((int64_t{1} << 32) + 1));
    const auto with_box = [axis](int64_t size) {
      return IsTakenWith([=](TensorShape* shape) { shape->box[axis] = size; });
    };
    CHECK(!with_box(0) && with_box(1) && with_box(256) && !with_box(257));
    const auto with_stride = [axis](int64_t stride) {
      return IsTakenWith([=](TensorShape* shape) { shape->strides[axis - 1] = stride; });
    };
    CHECK(with_stride(16) && with_stride((int64_t{1} << 40) - 16));
    CHECK(!with_stride(-16) && !with_stride(8) && !with_stride(24));
    CHECK(!with_stride(int64_t{1} << 40));
  }

  // The strides of an array without gaps, too.
  CHECK(HasLines(2, 40, 32, 64) && !HasLines(2, 36, 32, 64));
  CHECK(IsTakenWith([](TensorShape* shape) { shape->sizes[1] = int64_t{1} << 23; }));
  CHECK(!IsTakenWith([](TensorShape* shape) {
    shape->sizes[1] = int64_t{1} << 31;
    shape->sizes[2] = 1 << 3;
  }));

  for (const int64_t line : {32, 64, 128}) {
    CHECK(HasLines(2, 64, line / 2, line) && HasLines(4, 64, line / 4, line));
    CHECK(!HasLines(2, 64, line / 2 + 8, line) && !HasLines(2, 64, line / 2 - 8, line));
    CHECK(!HasLines(2, 64, line / 2 + 1, line));
    CHECK(!HasLines(1, 64, line, line) && !HasLines(8, 64, line / 8, line));
  }
  for (const int64_t line : {16, 48, 96, 256}) CHECK(!HasLines(2, 64, line / 2, line));
  return 0;
}
