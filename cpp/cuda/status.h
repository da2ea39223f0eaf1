// CUDA's and cuDNN's statuses as ffi::Error, with the library's own words.

#ifndef JAX_CONVGRAD_CUDA_STATUS_H_
#define JAX_CONVGRAD_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string>

#include "ffi/error.h"

namespace jax_convgrad {

// `op` is the operator's name, the start of every error text; `what` names the call that failed.
[[nodiscard]] inline ffi::Error CudaError(const char* op, const std::string& what,
                                          cudaError_t status) {
  if (status == cudaSuccess) return ffi::Error::Success();
  const ffi::ErrorCode code = status == cudaErrorMemoryAllocation
                                  ? ffi::ErrorCode::kResourceExhausted
                                  : ffi::ErrorCode::kInternal;
  return ffi::Error(
      code, Text(op, ": ", what, ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status)));
}

// Makes a device current for as long as the object lives.
class ScopedDevice {
 public:
  explicit ScopedDevice(int device) : status_(cudaGetDevice(&previous_)) {
    if (status_ != cudaSuccess || previous_ == device) return;
    status_ = cudaSetDevice(device);
    changed_ = status_ == cudaSuccess;
  }
  ~ScopedDevice() {
    if (changed_) (void)cudaSetDevice(previous_);
  }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

  cudaError_t status() const { return status_; }

 private:
  int previous_ = 0;
  cudaError_t status_;
  bool changed_ = false;
};

// Lets this thread allocate and load kernels while another thread captures a stream. Work done
// under it must not belong to a capture of this thread's own.
class RelaxedCaptureMode {
 public:
  RelaxedCaptureMode() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCaptureMode() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_STATUS_H_
