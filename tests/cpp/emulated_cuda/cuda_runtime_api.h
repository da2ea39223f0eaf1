// As much of the CUDA runtime as the project's kernels need, on the processor: the threads of a
// block run one after the other, each up to the next barrier of its warp or of the block. The warps
// of a block take turns in random order, each as far ahead of the others as barriers let it, so
// that a barrier that is missing shows as a wrong result.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_H_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_H_

#include <sanitizer/asan_interface.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#define __global__
#define __host__
#define __device__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorInvalidConfiguration };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
using cudaStream_t = void*;

struct cudaFuncAttributes {};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned size) : x(size) {}
};

inline dim3 threadIdx{0}, blockIdx{0}, blockDim{0}, gridDim{0};

using std::max;
using std::min;

struct alignas(8) float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }

struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct alignas(8) int2 {
  int x, y;
};
inline int2 make_int2(int x, int y) { return {x, y}; }

struct alignas(16) int4 {
  int x, y, z, w;
};
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

struct alignas(8) uint2 {
  unsigned x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline double __hiloint2double(int high, int low) {
  const uint64_t bits = uint64_t{static_cast<uint32_t>(high)} << 32 | static_cast<uint32_t>(low);
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Through a cache for what the kernel does not write, and past all caches.
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}

inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }

inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
}

// Four bytes of eight, those of `low` first: each digit of `selected` is the number of one.
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selected) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> (selected >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return result;
}

// The low word of both shifted right.
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (shift % 32));
}

namespace jax_convgrad {
constexpr size_t kSharedBytes_ = 227 * 1024;  // kernels that want more than 48 KiB ask for it
alignas(1024) inline unsigned char shared_memory[kSharedBytes_];
}  // namespace jax_convgrad

namespace emulated_cuda {

constexpr size_t kStackBytes = 256 * 1024;

constexpr unsigned kWarpThreads = 32;

// Turns of all other warps, in which nothing happens that others wait for, that a thread may wait
// for something else than a barrier.
constexpr int kMaxPolls = 4;

enum class State { kReady, kPolling, kAtWarpBarrier, kAtBlockBarrier, kDone };

// One thread of a block, on a stack of its own.
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  State state = State::kDone;
};

struct Block {
  std::vector<Fiber> fibers;
  ucontext_t scheduler;
  void (*call)(void* kernel, void* params) = nullptr;
  void* kernel = nullptr;
  void* params = nullptr;
};

inline Block block;
inline std::minstd_rand turns;
inline int polls = 0;

// By a thread that has done what others may wait for.
inline void Progress() { polls = 0; }

// So many blocks have begun, of all launches.
inline uint64_t blocks_begun = 0;

// Of a launch, only so many blocks run, the last ones.
inline unsigned max_blocks = 0xffffffff;

[[noreturn]] inline void Fail(const char* what) {
  std::printf("block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
  std::exit(1);
}

inline void WaitAs(State state) {
  Fiber& fiber = block.fibers[threadIdx.x];
  fiber.state = state;
  swapcontext(&fiber.context, &block.scheduler);
}

inline void Main() {
  block.call(block.kernel, block.params);
  WaitAs(State::kDone);
}

// Whether any of the threads from `first` to before `last` is in a state.
inline bool Any(State state, unsigned first, unsigned last) {
  return std::any_of(&block.fibers[first], &block.fibers[first] + (last - first),
                     [state](const Fiber& fiber) { return fiber.state == state; });
}

inline void Release(State state, unsigned first, unsigned last) {
  for (unsigned i = first; i < last; ++i) {
    if (block.fibers[i].state == state) block.fibers[i].state = State::kReady;
  }
}

// Runs the threads of a warp until each waits for the block or is done.
inline void RunWarp(unsigned first, unsigned last) {
  while (Any(State::kReady, first, last)) {
    for (unsigned i = first; i < last; ++i) {
      if (block.fibers[i].state != State::kReady) continue;
      threadIdx.x = i;
      swapcontext(&block.scheduler, &block.fibers[i].context);
    }
    if (Any(State::kPolling, first, last)) return;
    if (!Any(State::kAtWarpBarrier, first, last)) continue;
    if (Any(State::kAtBlockBarrier, first, last) || Any(State::kDone, first, last)) {
      Fail("threads of its warp wait for others that are elsewhere");
    }
    Release(State::kAtWarpBarrier, first, last);
  }
}

inline void Run(unsigned threads) {
  if (block.fibers.size() < threads) block.fibers.resize(threads);
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = block.fibers[i];
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.get(), 0, kStackBytes};
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, Main, 0);
    fiber.state = State::kReady;
  }
  std::vector<unsigned> warps((threads + kWarpThreads - 1) / kWarpThreads);
  std::iota(warps.begin(), warps.end(), 0u);
  polls = 0;
  while (Any(State::kReady, 0, threads)) {
    std::shuffle(warps.begin(), warps.end(), turns);
    for (const unsigned warp : warps) {
      RunWarp(warp * kWarpThreads, min((warp + 1) * kWarpThreads, threads));
    }
    if (!Any(State::kPolling, 0, threads)) {
      Release(State::kAtBlockBarrier, 0, threads);
      polls = 0;
    } else if (++polls == kMaxPolls) {
      Fail("threads wait for what does not come");
    }
    Release(State::kPolling, 0, threads);
  }
}

}  // namespace emulated_cuda

// Threads that have returned do not wait, as on a device.
inline void __syncthreads() { emulated_cuda::WaitAs(emulated_cuda::State::kAtBlockBarrier); }

// Of all threads of the warp.
inline void __syncwarp() { emulated_cuda::WaitAs(emulated_cuda::State::kAtWarpBarrier); }

// The value of the thread `delta` in front of this one in its warp, or the thread's own. By all
// threads of the warp.
inline uint32_t __shfl_up_sync(unsigned, uint32_t value, unsigned delta) {
  static uint32_t values[1024];
  values[threadIdx.x] = value;
  __syncwarp();
  const bool there = threadIdx.x % emulated_cuda::kWarpThreads >= delta;
  const uint32_t result = there ? values[threadIdx.x - delta] : value;
  __syncwarp();
  return result;
}

namespace emulated_cuda {

// A kernel has one limit, whatever it was last set to: more than 48 KiB must be asked for.
inline size_t& SharedLimit(void* kernel) {
  static std::map<void*, size_t> limits;
  return limits.try_emplace(kernel, size_t{48} << 10).first->second;
}

// Kernels that are loaded, and how many launches had to load theirs.
inline std::set<void*> loaded;
inline int late_loads = 0;

// Forgets what is loaded, as a new process.
inline void UnloadAll() {
  loaded.clear();
  late_loads = 0;
}

}  // namespace emulated_cuda

template <typename Params>
cudaError_t cudaLaunchKernel(void (*kernel)(Params), dim3 blocks, dim3 threads, void** arguments,
                             size_t shared_bytes, cudaStream_t) {
  using Kernel = void (*)(Params);
  if (threads.x < 1 || threads.x > 1024 || blocks.x < 1 || blocks.x > 0x7fffffff ||
      shared_bytes > emulated_cuda::SharedLimit(reinterpret_cast<void*>(kernel))) {
    return cudaErrorInvalidConfiguration;
  }
  emulated_cuda::late_loads += emulated_cuda::loaded.insert(reinterpret_cast<void*>(kernel)).second;
  unsigned char* const shared = jax_convgrad::shared_memory;
  emulated_cuda::Block& block = emulated_cuda::block;
  block.kernel = reinterpret_cast<void*>(kernel);
  block.params = arguments[0];
  block.call = [](void* function, void* params) {
    reinterpret_cast<Kernel>(function)(*static_cast<Params*>(params));
  };
  blockDim.x = threads.x;
  gridDim.x = blocks.x;
  for (unsigned i = blocks.x - min(blocks.x, emulated_cuda::max_blocks); i < blocks.x; ++i) {
    blockIdx.x = i;
    ++emulated_cuda::blocks_begun;
    std::fill(shared, shared + jax_convgrad::kSharedBytes_, 0xff);  // NaN of every type
    ASAN_POISON_MEMORY_REGION(shared + shared_bytes, jax_convgrad::kSharedBytes_ - shared_bytes);
    emulated_cuda::Run(threads.x);
    ASAN_UNPOISON_MEMORY_REGION(shared, jax_convgrad::kSharedBytes_);
  }
  return cudaSuccess;
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }

enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

// Of an H100.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 132;
  return cudaSuccess;
}

template <typename Params>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, void (*kernel)(Params)) {
  emulated_cuda::loaded.insert(reinterpret_cast<void*>(kernel));
  return cudaSuccess;
}

template <typename Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params), cudaFuncAttribute, int bytes) {
  if (bytes > static_cast<int>(jax_convgrad::kSharedBytes_)) return cudaErrorInvalidConfiguration;
  emulated_cuda::SharedLimit(reinterpret_cast<void*>(kernel)) = static_cast<size_t>(bytes);
  emulated_cuda::loaded.insert(reinterpret_cast<void*>(kernel));
  return cudaSuccess;
}

template <typename Params>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*)(Params), int,
                                                          size_t) {
  *blocks = 2;
  return cudaSuccess;
}

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_H_
