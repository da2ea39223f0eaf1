// The cuDNN library of this process, and a pool of its handles.

#ifndef JAX_CONVGRAD_CUDA_CUDNN_HANDLE_H_
#define JAX_CONVGRAD_CUDA_CUDNN_HANDLE_H_

#include <cuda_runtime_api.h>
#include <cudnn_graph.h>

#include <cstddef>
#include <string>

#include "ffi/error.h"

namespace jax_convgrad {

// Whether cuDNN found too little memory, of the host or of the device.
inline bool IsOutOfMemory(cudnnStatus_t status) {
  return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
         status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

// cuDNN is opened at run time, when the first problem needs it, so that nothing links against it
// and the copy that JAX has loaded is the one used: a second cuDNN from a system folder would bring
// its own kernels and its own bugs.
class DnnLibrary {
 public:
  // The oldest accepted cuDNN; before it one plan could run wrongly on several devices.
  static constexpr size_t kMinimumVersion = 91001;

  // Opens the library at the first call: the copy in the process if there is one, else the file
  // named by SetPath, else what the system finds. Errors carry the loader's words.
  static ffi::ErrorOr<const DnnLibrary*> Get();

  // The same, but only if a copy is in the process already; null if there is none.
  static ffi::ErrorOr<const DnnLibrary*> GetIfLoaded();

  // The path of the copy that JAX would load.
  static void SetPath(std::string path);

  void* dlhandle() const { return dlhandle_; }
  size_t version() const { return version_; }

  // "9.19.1"
  static std::string VersionText(size_t version);

  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
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
//
// NOTE [Streams that end]. cudnnSetStream makes the new stream wait for the old one, which must
// exist for that: cuDNN 9.19 crashes where it does not. The streams on which XLA captures a program
// end with the capture, so none of them is ever made a handle's. A handle has a stream of its own,
// to which it returns before it goes back to the pool; in a capture it stays there, and that stream
// is forked from the captured one and joined to it again, which leaves nothing in the graph but
// edges. It belongs to that capture until the capture ends, and so does the handle.
class DnnHandle {
 public:
  // A handle of `device` that works after the work on `stream`, until Finish is called. Makes one
  // if none is free; while `stream` is being captured it first waits for a while for another thread
  // to give one back.
  static ffi::ErrorOr<DnnHandle> Borrow(const char* op, int device, cudaStream_t stream);

  // A handle of `device` on a stream of its own, which nobody else uses. Not during a capture.
  static ffi::ErrorOr<DnnHandle> BorrowWithStream(const char* op, int device);

  DnnHandle(DnnHandle&& other) noexcept;
  DnnHandle& operator=(DnnHandle&&) = delete;
  ~DnnHandle();

  cudnnHandle_t get() const { return pooled_.handle; }
  cudaStream_t stream() const { return stream_; }

  // Orders later work on the borrower's stream after the handle's work. Call it after the last use.
  ffi::Error Finish(const char* op);

 private:
  // Kept for the life of the process.
  struct Pooled {
    cudnnHandle_t handle = nullptr;
    cudaStream_t own_stream = nullptr;
    cudaEvent_t event = nullptr;  // for forks and joins
  };
  struct Pool;
  using CaptureId = unsigned long long;  // CUDA's own type for it; 0: not captured

  static Pool& GlobalPool();
  static CaptureId CaptureOf(cudaStream_t stream);
  static ffi::ErrorOr<Pooled> Take(const char* op, int device, CaptureId capture);
  static ffi::ErrorOr<Pooled> Make(const char* op, int device);

  DnnHandle(int device, Pooled pooled) : device_(device), pooled_(pooled) {}
  ffi::Error SetStream(const char* op, cudaStream_t stream);
  ffi::Error Follow(const char* op, cudaStream_t first, cudaStream_t second) const;

  int device_;
  Pooled pooled_;
  cudaStream_t stream_ = nullptr;  // that the handle works on: the borrower's, or its own
  cudaStream_t forked_ = nullptr;  // the captured stream that the own one follows and has to rejoin
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CUDNN_HANDLE_H_
