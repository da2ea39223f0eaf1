// The properties that a device reports.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_COMMON_DEVICE_ATTRIBUTE_H_
#define JAX_CONVGRAD_CUDA_KERNELS_COMMON_DEVICE_ATTRIBUTE_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

#include "cuda/status.h"
#include "ffi/error.h"

namespace jax_convgrad {

// `op` is the operator's name, the start of the error's text.
inline ffi::ErrorOr<int> DeviceAttribute(const char* op, int device, cudaDeviceAttr attribute) {
  int value = 0;
  const cudaError_t status = cudaDeviceGetAttribute(&value, attribute, device);
  if (status == cudaSuccess) return value;
  return ffi::Unexpected(CudaError(op, "cudaDeviceGetAttribute", status));
}

template <size_t kCount>
ffi::ErrorOr<std::array<int, kCount>> DeviceAttributes(
    const char* op, int device, const std::array<cudaDeviceAttr, kCount>& attributes) {
  std::array<int, kCount> values{};
  for (size_t i = 0; i < kCount; ++i) {
    const ffi::ErrorOr<int> value = DeviceAttribute(op, device, attributes[i]);
    if (value.has_error()) return ffi::Unexpected(value.error());
    values[i] = *value;
  }
  return values;
}

// 10 * major + minor.
inline ffi::ErrorOr<int> ComputeCapability(const char* op, int device) {
  const ffi::ErrorOr<int> major = DeviceAttribute(op, device, cudaDevAttrComputeCapabilityMajor);
  if (major.has_error()) return major;
  const ffi::ErrorOr<int> minor = DeviceAttribute(op, device, cudaDevAttrComputeCapabilityMinor);
  if (minor.has_error()) return minor;
  return 10 * *major + *minor;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_DEVICE_ATTRIBUTE_H_
