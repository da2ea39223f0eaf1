// What a description of a channels-last array says (tensor_map.h), and which ones the driver makes.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_COMMON_TENSOR_SHAPE_H_
#define JAX_CONVGRAD_CUDA_KERNELS_COMMON_TENSOR_SHAPE_H_

#include <cstddef>
#include <cstdint>

namespace jax_convgrad {

// Channel, x, y, z, image: the innermost first.
constexpr int kTensorAxes = 5;
// Of a box, along each axis.
constexpr int64_t kTensorMaxBox = 256;
// Of an array along each axis, and bytes from one place to the next along it (the limits that the
// driver's API documents for cuTensorMapEncodeTiled).
constexpr int64_t kTensorMaxSize = int64_t{1} << 32;
constexpr int64_t kTensorStrideLimit = int64_t{1} << 40;

struct TensorShape {
  int64_t element_bytes = 2;  // 2 or 4
  int64_t sizes[kTensorAxes] = {1, 1, 1, 1, 1};
  int64_t box[kTensorAxes] = {1, 1, 1, 1, 1};  // of what is copied at once
  int64_t line_bytes = 64;                     // of the box's channels: 32, 64 or 128
  // Bytes from one place to the next along all axes but the first; 0 for an array without gaps.
  int64_t strides[kTensorAxes - 1] = {};
};

// Bytes from one place to the next along each axis.
struct TensorStrides {
  int64_t bytes[kTensorAxes];

  explicit TensorStrides(const TensorShape& shape) {
    bytes[0] = shape.element_bytes;
    int64_t dense = bytes[0];
    for (int axis = 1; axis < kTensorAxes; ++axis) {
      dense *= shape.sizes[axis - 1];
      bytes[axis] = shape.strides[axis - 1] > 0 ? shape.strides[axis - 1] : dense;
    }
  }
};

// Whether an array, whose bytes are below 2^63, is small enough for a description.
inline bool HasTensorMap(const TensorShape& shape) {
  const TensorStrides strides(shape);
  for (int axis = 0; axis < kTensorAxes; ++axis) {
    if (shape.sizes[axis] > kTensorMaxSize || strides.bytes[axis] >= kTensorStrideLimit) {
      return false;
    }
  }
  return true;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_TENSOR_SHAPE_H_
