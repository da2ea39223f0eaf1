// The cuDNN library of this process, and a pool of its handles.

#ifndef JAX_CONVGRAD_CUDA_DNN_HANDLE_H_
#define JAX_CONVGRAD_CUDA_DNN_HANDLE_H_

#include <cuda_runtime_api.h>
#include <cudnn_graph.h>

#include <cstddef>
#include <string>

#include "common/error.h"

namespace jax_convgrad {

// Whether cuDNN found too little memory, of the host or of the device.
inline bool IsOutOfMemory(cudnnStatus_t status) {
  return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
         status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

// cuDNN is opened at run time, when the first problem needs it, so that nothing links against it
// and the copy that JAX has loaded is the one used: a second cuDNN beside it in a system folder
// would bring its own kernels and its own bugs.
class DnnLibrary {
 public:
  // The earliest cuDNN accepted; before it one plan could run wrongly on several devices.
  static constexpr size_t kMinimumVersion = 91001;

  // Opens the library at the first call: the copy in the process if there is one, else the file
  // named by SetPath, else what the system finds. Errors carry the loader's words.
  static ffi::ErrorOr<const DnnLibrary*> Get();

  // The same, but only if a copy is in the process already; null if there is none.
  static ffi::ErrorOr<const DnnLibrary*> GetIfLoaded();

  // Where a copy lies that JAX would load.
  static void SetPath(std::string path);

  void* dlhandle() const { return dlhandle_; }
  size_t version() const { return version_; }

  // "9.19.1"
  static std::string VersionText(size_t version);

  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnGetErrorString) error_string = nullptr;

 private:
  static ffi::ErrorOr<const DnnLibrary*> Load(bool only_if_loaded);
  static ffi::ErrorOr<const DnnLibrary*> Open(void* dlhandle);

  void* dlhandle_ = nullptr;
  size_t version_ = 0;
};

// A handle that belongs to one thread until it is destroyed, which gives it back to the pool.
// Handles are kept for the life of the process, because making one allocates device memory.
class DnnHandle {
 public:
  // A handle of `device` that works on `stream`. Makes one if none is free, except while `stream`
  // is being captured: then it waits for another thread to give one back.
  static ffi::ErrorOr<DnnHandle> Borrow(const char* op, int device, cudaStream_t stream);

  // A handle of `device` on a stream of its own, on which nobody else works. Not during a capture.
  static ffi::ErrorOr<DnnHandle> BorrowWithStream(const char* op, int device);

  DnnHandle(DnnHandle&& other) noexcept;
  DnnHandle& operator=(DnnHandle&&) = delete;
  ~DnnHandle();

  cudnnHandle_t get() const { return pooled_.handle; }
  cudaStream_t stream() const { return stream_; }

 private:
  // Both are kept for the life of the process.
  struct Pooled {
    cudnnHandle_t handle = nullptr;
    cudaStream_t own_stream = nullptr;
  };
  struct Pool;

  static Pool& ThePool();
  static ffi::ErrorOr<Pooled> Take(const char* op, int device, const cudaStream_t* stream);
  static ffi::ErrorOr<Pooled> Make(const char* op, int device);
  static ffi::ErrorOr<DnnHandle> OnStream(const char* op, int device, Pooled pooled,
                                          cudaStream_t stream);

  DnnHandle(int device, Pooled pooled, cudaStream_t stream)
      : device_(device), pooled_(pooled), stream_(stream) {}

  int device_;
  Pooled pooled_;
  cudaStream_t stream_;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_DNN_HANDLE_H_
