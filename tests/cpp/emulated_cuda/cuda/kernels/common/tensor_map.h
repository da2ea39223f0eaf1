// cuda/kernels/common/tensor_map.h on the processor.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_TENSOR_MAP_H_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_TENSOR_MAP_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#ifndef EMULATED_BULK_COPIES
#define EMULATED_BULK_COPIES 0
#endif

namespace jax_convgrad {

constexpr int kTensorAxes = 5;
constexpr int64_t kTensorMaxBox = 256;

struct TensorShape {
  int64_t element_bytes = 2;
  int64_t sizes[kTensorAxes] = {1, 1, 1, 1, 1};
  int64_t box[kTensorAxes] = {1, 1, 1, 1, 1};
  int64_t line_bytes = 64;
  int64_t strides[kTensorAxes - 1] = {};
};

struct alignas(64) TensorMap {
  void* array;
  TensorShape shape;
};

// Refuses what a device's driver does.
inline cudaError_t EncodeTensorMap(const void* array, const TensorShape& shape, TensorMap* map) {
  const int64_t line = shape.line_bytes;
  bool good =
      shape.sizes[0] * shape.element_bytes % 16 == 0 && (line == 32 || line == 64 || line == 128) &&
      shape.box[0] * shape.element_bytes == line && reinterpret_cast<uintptr_t>(array) % 16 == 0;
  for (const int64_t stride : shape.strides) good = good && stride >= 0 && stride % 16 == 0;
  for (int axis = 0; axis < kTensorAxes; ++axis) {
    good = good && shape.sizes[axis] > 0 && shape.sizes[axis] < int64_t{1} << 32 &&
           shape.box[axis] > 0 && shape.box[axis] <= 256;
  }
  if (!good) return cudaErrorInvalidConfiguration;
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
