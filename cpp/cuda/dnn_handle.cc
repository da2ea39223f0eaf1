#include "cuda/dnn_handle.h"

#include <dlfcn.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/status.h"

namespace jax_convgrad {
namespace {

constexpr char kLibraryName[] = "libcudnn.so.9";

struct LibraryState {
  std::mutex mutex;
  std::string path;
  const DnnLibrary* library = nullptr;
};

LibraryState& State() {
  static LibraryState* const state = new LibraryState;  // never destroyed: other threads may use it
  return *state;
}

template <typename Function>
bool Find(void* dlhandle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(dlhandle, name));
  return *function != nullptr;
}

ffi::Error DnnError(const char* op, const char* what, const DnnLibrary& library,
                    cudnnStatus_t status) {
  const ffi::ErrorCode code =
      IsOutOfMemory(status) ? ffi::ErrorCode::kResourceExhausted : ffi::ErrorCode::kInternal;
  return ffi::Error(code, Text(op, ": ", what, ": ", library.error_string(status)));
}

}  // namespace

ffi::ErrorOr<const DnnLibrary*> DnnLibrary::Get() { return Load(/*only_if_loaded=*/false); }

ffi::ErrorOr<const DnnLibrary*> DnnLibrary::GetIfLoaded() { return Load(/*only_if_loaded=*/true); }

void DnnLibrary::SetPath(std::string path) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  State().path = std::move(path);
}

ffi::ErrorOr<const DnnLibrary*> DnnLibrary::Load(bool only_if_loaded) {
  LibraryState& state = State();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.library != nullptr) return state.library;

  void* dlhandle = dlopen(kLibraryName, RTLD_NOW | RTLD_NOLOAD);
  if (dlhandle == nullptr && only_if_loaded) return static_cast<const DnnLibrary*>(nullptr);
  std::string errors;
  for (const char* name : {state.path.c_str(), kLibraryName}) {
    if (dlhandle != nullptr) break;
    if (*name == '\0') continue;
    dlhandle = dlopen(name, RTLD_NOW);
    if (dlhandle == nullptr) {
      const char* words = dlerror();
      errors += Text(errors.empty() ? "" : "; ", words == nullptr ? "unknown error" : words);
    }
  }
  if (dlhandle == nullptr) {
    return ffi::Unexpected(
        ffi::Error(ffi::ErrorCode::kFailedPrecondition, Text("cuDNN cannot be opened: ", errors)));
  }
  ffi::ErrorOr<const DnnLibrary*> library = Open(dlhandle);
  if (library.has_value()) state.library = *library;
  return library;
}

ffi::ErrorOr<const DnnLibrary*> DnnLibrary::Open(void* dlhandle) {
  decltype(&cudnnGetVersion) get_version = nullptr;
  DnnLibrary library;
  library.dlhandle_ = dlhandle;
  if (!Find(dlhandle, "cudnnGetVersion", &get_version) ||
      !Find(dlhandle, "cudnnCreate", &library.create) ||
      !Find(dlhandle, "cudnnSetStream", &library.set_stream) ||
      !Find(dlhandle, "cudnnGetErrorString", &library.error_string)) {
    return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                                      Text(kLibraryName, " is not a cuDNN: ", dlerror())));
  }
  library.version_ = get_version();
  if (library.version_ < kMinimumVersion) {
    return ffi::Unexpected(ffi::Error(
        ffi::ErrorCode::kFailedPrecondition,
        Text("the cuDNN in this process is ", VersionText(library.version_), ", expected ",
             VersionText(kMinimumVersion), " or newer (pip install -U nvidia-cudnn-cu13)")));
  }
  return static_cast<const DnnLibrary*>(new DnnLibrary(library));
}

std::string DnnLibrary::VersionText(size_t version) {
  return Text(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

struct DnnHandle::Pool {
  std::mutex mutex;
  std::condition_variable given_back;
  std::map<int, std::vector<Pooled>> free;
  std::map<int, int> made;
};

DnnHandle::Pool& DnnHandle::ThePool() {
  static Pool* const pool = new Pool;  // never destroyed: other threads may use it
  return *pool;
}

ffi::ErrorOr<DnnHandle> DnnHandle::Borrow(const char* op, int device, cudaStream_t stream) {
  const ffi::ErrorOr<Pooled> pooled = Take(op, device, &stream);
  if (pooled.has_error()) return ffi::Unexpected(pooled.error());
  return OnStream(op, device, *pooled, stream);
}

ffi::ErrorOr<DnnHandle> DnnHandle::BorrowWithStream(const char* op, int device) {
  const ffi::ErrorOr<Pooled> pooled = Take(op, device, nullptr);
  if (pooled.has_error()) return ffi::Unexpected(pooled.error());
  return OnStream(op, device, *pooled, pooled->own_stream);
}

ffi::ErrorOr<DnnHandle> DnnHandle::OnStream(const char* op, int device, Pooled pooled,
                                            cudaStream_t stream) {
  DnnHandle borrowed(device, pooled, stream);
  const ffi::ErrorOr<const DnnLibrary*> library = DnnLibrary::Get();
  if (library.has_error()) return ffi::Unexpected(library.error());
  const cudnnStatus_t status = (*library)->set_stream(pooled.handle, stream);
  if (status != CUDNN_STATUS_SUCCESS) {
    return ffi::Unexpected(DnnError(op, "cudnnSetStream", **library, status));
  }
  return borrowed;
}

// Out of the pool, or new if there is none. `stream` is the one to work on, null for the own one.
ffi::ErrorOr<DnnHandle::Pooled> DnnHandle::Take(const char* op, int device,
                                                const cudaStream_t* stream) {
  Pool& pool = ThePool();
  {
    std::unique_lock<std::mutex> lock(pool.mutex);
    std::vector<Pooled>& free = pool.free[device];
    if (free.empty() && pool.made[device] > 0 && stream != nullptr) {
      cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
      const cudaError_t status = cudaStreamIsCapturing(*stream, &capture);
      if (status != cudaSuccess) {
        return ffi::Unexpected(CudaError(op, "cudaStreamIsCapturing", status));
      }
      if (capture != cudaStreamCaptureStatusNone) {
        pool.given_back.wait(lock, [&] { return !free.empty() || pool.made[device] == 0; });
      }
    }
    if (!free.empty()) {
      const Pooled pooled = free.back();
      free.pop_back();
      return pooled;
    }
    ++pool.made[device];
  }
  ffi::ErrorOr<Pooled> pooled = Make(op, device);
  if (pooled.has_error()) {
    {
      const std::lock_guard<std::mutex> lock(pool.mutex);
      --pool.made[device];
    }
    pool.given_back.notify_all();
  }
  return pooled;
}

ffi::ErrorOr<DnnHandle::Pooled> DnnHandle::Make(const char* op, int device) {
  const ffi::ErrorOr<const DnnLibrary*> library = DnnLibrary::Get();
  if (library.has_error()) {
    return ffi::Unexpected(ffi::Error(library.error().errc().value_or(ffi::ErrorCode::kInternal),
                                      Text(op, ": ", library.error().message())));
  }
  const RelaxedCaptureMode relaxed;
  const ScopedDevice current(device);
  if (current.status() != cudaSuccess) {
    return ffi::Unexpected(CudaError(op, "cudaSetDevice", current.status()));
  }
  Pooled pooled;
  const cudaError_t made = cudaStreamCreateWithFlags(&pooled.own_stream, cudaStreamNonBlocking);
  if (made != cudaSuccess) return ffi::Unexpected(CudaError(op, "cudaStreamCreate", made));
  const cudnnStatus_t status = (*library)->create(&pooled.handle);
  if (status != CUDNN_STATUS_SUCCESS) {
    (void)cudaStreamDestroy(pooled.own_stream);
    return ffi::Unexpected(DnnError(op, "cudnnCreate", **library, status));
  }
  return pooled;
}

DnnHandle::DnnHandle(DnnHandle&& other) noexcept
    : device_(other.device_),
      pooled_(std::exchange(other.pooled_, Pooled{})),
      stream_(other.stream_) {}

DnnHandle::~DnnHandle() {
  if (pooled_.handle == nullptr) return;
  Pool& pool = ThePool();
  {
    const std::lock_guard<std::mutex> lock(pool.mutex);
    pool.free[device_].push_back(pooled_);
  }
  pool.given_back.notify_one();
}

}  // namespace jax_convgrad
