// Descriptions of channels-last arrays, for devices that copy boxes of them into shared memory by
// themselves (bulk_copy.cuh). The driver makes them. It is asked for the function at run time, so
// that nothing is linked.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_COMMON_TENSOR_MAP_H_
#define JAX_CONVGRAD_CUDA_KERNELS_COMMON_TENSOR_MAP_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/common/tensor_shape.h"

namespace jax_convgrad {

// A kernel's parameter.
struct alignas(64) TensorMap {
  unsigned char bytes[sizeof(CUtensorMap)];
};

// Of an array whose strides are multiples of 16 bytes. Where a box reaches out of it there are
// zeros, also where it has more channels, and nothing is written there. In shared memory the box
// lies in the same order, except that the pieces of 16 bytes of a pixel, which is a line, change
// places. Which one lies where follows from the address: with lines of 32 bytes its bit 4 changes
// by bit 7, with lines of 64 bits 4 and 5 by bits 7 and 8, with lines of 128 bits 4 to 6 by bits 7
// to 9. So piece p of pixel i of a box of 64-byte lines lies where p ^ (i / 2 % 4) would.
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
  const TensorStrides bytes_between(shape);
  for (int axis = 0; axis < kTensorAxes; ++axis) {
    sizes[axis] = static_cast<cuuint64_t>(shape.sizes[axis]);
    box[axis] = static_cast<cuuint32_t>(shape.box[axis]);
    steps[axis] = 1;
    if (axis > 0) strides[axis - 1] = static_cast<cuuint64_t>(bytes_between.bytes[axis]);
  }
  const CUtensorMapSwizzle swizzle = shape.line_bytes == 32   ? CU_TENSOR_MAP_SWIZZLE_32B
                                     : shape.line_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                              : CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMap made;
  const CUresult status = reinterpret_cast<Encode>(found.function)(
      &made,
      shape.element_bytes == 4 ? CU_TENSOR_MAP_DATA_TYPE_UINT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
      kTensorAxes, const_cast<void*>(array), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
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
