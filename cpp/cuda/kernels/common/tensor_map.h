// Descriptions of channels-last arrays, for devices that copy boxes of them into shared memory by
// themselves (bulk_copy.cuh). The driver makes them. It is asked for the function at run time, so
// that nothing is linked.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_COMMON_TENSOR_MAP_H_
#define JAX_CONVGRAD_CUDA_KERNELS_COMMON_TENSOR_MAP_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace jax_convgrad {

// Channel, x, y, z, image: the innermost first.
constexpr int kTensorAxes = 5;

// A kernel's parameter.
struct alignas(64) TensorMap {
  unsigned char bytes[sizeof(CUtensorMap)];
};

struct TensorShape {
  int64_t element_bytes = 2;  // 2 or 4
  int64_t sizes[kTensorAxes] = {1, 1, 1, 1, 1};
  int64_t box[kTensorAxes] = {1, 1, 1, 1, 1};  // of what is copied at once, 64 bytes of channels
};

// Of an array without gaps, whose pixels are multiples of 16 bytes. Where a box reaches out of it
// there are zeros. In shared memory the box lies in the same order, except that a pixel's four
// pieces of 16 bytes change places: piece p of pixel i lies where p ^ (i / 2 % 4) would.
inline cudaError_t EncodeTensorMap(const void* array, const TensorShape& shape, TensorMap* map) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  struct Found {
    void* function = nullptr;
    cudaError_t status = cudaErrorNotSupported;
  };
  static const Found found = [] {
    Found entry;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    entry.status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry.function,
                                                    12000, cudaEnableDefault, &result);
    if (entry.status != cudaSuccess) (void)cudaGetLastError();
    if (entry.status == cudaSuccess && result != cudaDriverEntryPointSuccess) {
      entry.status = cudaErrorNotSupported;
    }
    return entry;
  }();
  if (found.status != cudaSuccess) return found.status;
  cuuint64_t sizes[kTensorAxes], strides[kTensorAxes - 1];
  cuuint32_t box[kTensorAxes], steps[kTensorAxes];
  cuuint64_t bytes = static_cast<cuuint64_t>(shape.element_bytes);
  for (int axis = 0; axis < kTensorAxes; ++axis) {
    sizes[axis] = static_cast<cuuint64_t>(shape.sizes[axis]);
    box[axis] = static_cast<cuuint32_t>(shape.box[axis]);
    steps[axis] = 1;
    bytes *= sizes[axis];
    if (axis < kTensorAxes - 1) strides[axis] = bytes;
  }
  CUtensorMap made;
  const CUresult status = reinterpret_cast<Encode>(found.function)(
      &made,
      shape.element_bytes == 4 ? CU_TENSOR_MAP_DATA_TYPE_UINT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
      kTensorAxes, const_cast<void*>(array), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) return cudaErrorInvalidValue;
  static_assert(sizeof(made) == sizeof(map->bytes), "as the driver has it");
  __builtin_memcpy(map->bytes, &made, sizeof(made));
  return cudaSuccess;
}

// Whether a kernel that uses them wherever it can (kHasBulkCopies) needs a description.
template <typename Params>
cudaError_t NeedsTensorMap(void (*kernel)(Params), bool* needs) {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
  if (status != cudaSuccess) (void)cudaGetLastError();
  *needs = attributes.ptxVersion >= 90;  // __CUDA_ARCH__ / 10 of the code that runs
  return status;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_TENSOR_MAP_H_
