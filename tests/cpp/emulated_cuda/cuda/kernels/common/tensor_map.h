// cuda/kernels/common/tensor_map.h on the processor.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_TENSOR_MAP_H_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_TENSOR_MAP_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "cuda/kernels/common/tensor_shape.h"

#ifndef EMULATED_BULK_COPIES
#define EMULATED_BULK_COPIES 0
#endif

namespace jax_convgrad {

struct alignas(64) TensorMap {
  void* array;
  TensorShape shape;
};

// What a device's driver, cuTensorMapEncodeTiled, refuses of elements that are neither interleaved
// nor skipped; null if there is nothing. And that a line is one pixel's part of a box, without gaps
// behind it: where pieces lie in shared memory follows from that.
inline const char* TensorMapFault(const void* array, const TensorShape& shape,
                                  const TensorMap* map) {
  constexpr int64_t kAligned = 16;
  if (shape.element_bytes != 2 && shape.element_bytes != 4) return "no type has such elements";
  if (reinterpret_cast<uintptr_t>(array) % kAligned != 0) return "the array is not aligned to 16";
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0) return "the description is not aligned to 64";
  for (int axis = 0; axis < kTensorAxes; ++axis) {
    if (shape.sizes[axis] < 1 || shape.sizes[axis] > int64_t{1} << 32)
      return "a size is not 1 to 2^32";
    if (shape.box[axis] < 1 || shape.box[axis] > 256) return "a side of the box is not 1 to 256";
  }
  for (const int64_t stride : shape.strides) {
    if (stride < 0) return "a stride is negative";
  }
  const TensorStrides strides(shape);
  for (int axis = 1; axis < kTensorAxes; ++axis) {
    if (strides.bytes[axis] % kAligned != 0) return "a stride is no multiple of 16";
    if (strides.bytes[axis] >= int64_t{1} << 40) return "a stride is not below 2^40";
  }
  const int64_t line = shape.line_bytes, inner = shape.box[0] * shape.element_bytes;
  if (line != 32 && line != 64 && line != 128) return "no swizzle has such lines";
  if (inner % kAligned != 0) return "the box's channels are no multiple of 16 bytes";
  if (inner > line) return "the box's channels are wider than the swizzle";
  if (inner < line) return "the box's channels do not fill a line";
  return nullptr;
}

inline cudaError_t EncodeTensorMap(const void* array, const TensorShape& shape, TensorMap* map) {
  if (const char* const fault = TensorMapFault(array, shape, map)) {
    std::printf("a tensor map is refused: %s\n", fault);
    return cudaErrorInvalidConfiguration;
  }
  *map = {const_cast<void*>(array), shape};
  return cudaSuccess;
}

template <typename Params>
cudaError_t NeedsTensorMap(void (*)(Params), bool* needs) {
  *needs = EMULATED_BULK_COPIES;
  return cudaSuccess;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_TENSOR_MAP_H_
