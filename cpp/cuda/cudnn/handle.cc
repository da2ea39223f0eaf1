#include "cuda/cudnn/handle.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/status.h"

namespace jax_convgrad {
namespace {

constexpr char kLibraryName[] = "libcudnn.so.9";
// CUDA numbers captures from 1.
constexpr unsigned long long kNoCapture = 0, kUnknownCapture = ~0ull;
// How long a capture waits for a handle before one is made, and how often it polls.
constexpr std::chrono::seconds kCaptureWaitTimeout{5};
constexpr std::chrono::milliseconds kPollInterval{1};

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
      !Find(dlhandle, "cudnnDestroy", &library.destroy) ||
      !Find(dlhandle, "cudnnSetStream", &library.set_stream) ||
      !Find(dlhandle, "cudnnGetErrorString", &library.error_string)) {
    return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                                      Text(kLibraryName, " is not a cuDNN library: ", dlerror())));
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
  std::map<int, std::vector<Pooled>> free;
  std::map<int, int> made;
};

DnnHandle::Pool& DnnHandle::GlobalPool() {
  static Pool* const pool = new Pool;  // never destroyed: other threads may use it
  return *pool;
}

ffi::ErrorOr<DnnHandle> DnnHandle::Borrow(const char* op, int device, cudaStream_t stream) {
  const CaptureId capture = CaptureOf(stream);
  const ffi::ErrorOr<Pooled> pooled = Take(op, device, capture);
  if (pooled.has_error()) return ffi::Unexpected(pooled.error());
  DnnHandle borrowed(device, *pooled);
  ffi::Error error = ffi::Error::Success();
  if (capture == kNoCapture) {
    error = borrowed.SetStream(op, stream);
  } else {
    borrowed.stream_ = pooled->own_stream;
    borrowed.forked_ = stream;
    error = borrowed.Follow(op, stream, pooled->own_stream);
  }
  if (error.failure()) return ffi::Unexpected(error);
  return borrowed;
}

ffi::ErrorOr<DnnHandle> DnnHandle::BorrowWithStream(const char* op, int device) {
  const ffi::ErrorOr<Pooled> pooled = Take(op, device, kNoCapture);
  if (pooled.has_error()) return ffi::Unexpected(pooled.error());
  DnnHandle borrowed(device, *pooled);
  borrowed.stream_ = pooled->own_stream;
  return borrowed;
}

ffi::Error DnnHandle::SetStream(const char* op, cudaStream_t stream) {
  const ffi::ErrorOr<const DnnLibrary*> library = DnnLibrary::Get();
  if (library.has_error()) return library.error();
  const cudnnStatus_t status = (*library)->set_stream(pooled_.handle, stream);
  if (status != CUDNN_STATUS_SUCCESS) return DnnError(op, "cudnnSetStream", **library, status);
  stream_ = stream;
  return ffi::Error::Success();
}

// Makes work that is put on `second` afterwards wait for the work on `first`.
ffi::Error DnnHandle::Follow(const char* op, cudaStream_t first, cudaStream_t second) const {
  cudaError_t status = cudaEventRecord(pooled_.event, first);
  if (status == cudaSuccess) status = cudaStreamWaitEvent(second, pooled_.event, /*flags=*/0);
  return CudaError(op, "cudaStreamWaitEvent (fork or join)", status);
}

ffi::Error DnnHandle::Finish(const char* op) {
  if (forked_ != nullptr) return Follow(op, pooled_.own_stream, std::exchange(forked_, nullptr));
  return stream_ == pooled_.own_stream ? ffi::Error::Success() : SetStream(op, pooled_.own_stream);
}

// The capture that a stream is part of. A capture that has failed but has not been ended has a
// number too.
DnnHandle::CaptureId DnnHandle::CaptureOf(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CaptureId id = kNoCapture;
  if (cudaStreamGetCaptureInfo(stream, &status, &id) != cudaSuccess) {
    (void)cudaGetLastError();
    return kUnknownCapture;
  }
  if (status == cudaStreamCaptureStatusNone) return kNoCapture;
  return status == cudaStreamCaptureStatusActive ? id : kUnknownCapture;
}

// From the pool, or new if the pool has no handle that is free of other captures.
ffi::ErrorOr<DnnHandle::Pooled> DnnHandle::Take(const char* op, int device, CaptureId capture) {
  Pool& pool = GlobalPool();
  {
    std::unique_lock<std::mutex> lock(pool.mutex);
    std::vector<Pooled>& free = pool.free[device];
    const auto suitable = [&] {
      return std::find_if(free.begin(), free.end(), [&](const Pooled& pooled) {
        const CaptureId own = CaptureOf(pooled.own_stream);
        return own == kNoCapture || own == capture;
      });
    };
    auto found = suitable();
    if (capture != kNoCapture) {
      // Making a handle allocates memory, which is bad during a capture. There is no signal when
      // another capture ends, so the pool is polled.
      const auto deadline = std::chrono::steady_clock::now() + kCaptureWaitTimeout;
      while (found == free.end() && pool.made[device] > 0 &&
             std::chrono::steady_clock::now() < deadline) {
        lock.unlock();
        std::this_thread::sleep_for(kPollInterval);
        lock.lock();
        found = suitable();
      }
    }
    if (found != free.end()) {
      const Pooled pooled = *found;
      free.erase(found);
      return pooled;
    }
    int& made = pool.made[device];
    free.reserve(static_cast<size_t>(made) + 1);  // so that nothing throws when it is given back
    ++made;
  }
  ffi::ErrorOr<Pooled> pooled = Make(op, device);
  if (pooled.has_error()) {
    const std::lock_guard<std::mutex> lock(pool.mutex);
    --pool.made[device];
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
  cudaError_t made = cudaStreamCreateWithFlags(&pooled.own_stream, cudaStreamNonBlocking);
  if (made != cudaSuccess) return ffi::Unexpected(CudaError(op, "cudaStreamCreate", made));
  made = cudaEventCreateWithFlags(&pooled.event, cudaEventDisableTiming);
  if (made != cudaSuccess) {
    (void)cudaStreamDestroy(pooled.own_stream);
    return ffi::Unexpected(CudaError(op, "cudaEventCreate", made));
  }
  cudnnStatus_t status = (*library)->create(&pooled.handle);
  const char* what = "cudnnCreate";
  if (status == CUDNN_STATUS_SUCCESS) {
    status = (*library)->set_stream(pooled.handle, pooled.own_stream);
    what = "cudnnSetStream";
  }
  if (status != CUDNN_STATUS_SUCCESS) {
    if (pooled.handle != nullptr) (void)(*library)->destroy(pooled.handle);
    (void)cudaEventDestroy(pooled.event);
    (void)cudaStreamDestroy(pooled.own_stream);
    return ffi::Unexpected(DnnError(op, what, **library, status));
  }
  return pooled;
}

DnnHandle::DnnHandle(DnnHandle&& other) noexcept
    : device_(other.device_),
      pooled_(std::exchange(other.pooled_, Pooled{})),
      stream_(other.stream_),
      forked_(std::exchange(other.forked_, nullptr)) {}

DnnHandle::~DnnHandle() {
  if (pooled_.handle == nullptr) return;
  // A handle that cannot return to its own stream is never used again.
  bool sound = false;
  try {
    sound = Finish("").success();
  } catch (...) {  // no memory even for the failure's message
  }
  Pool& pool = GlobalPool();
  {
    const std::lock_guard<std::mutex> lock(pool.mutex);
    if (sound) {
      pool.free[device_].push_back(pooled_);
    } else {
      --pool.made[device_];
    }
  }
}

}  // namespace jax_convgrad
