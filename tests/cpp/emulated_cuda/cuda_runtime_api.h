// As much of the CUDA runtime as the project's kernels need, on the processor: the threads of a
// block run one after the other, each up to the next __syncthreads().

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_H_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_H_

#include <sanitizer/asan_interface.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__

enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
using cudaStream_t = void*;

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned size) : x(size) {}
};

inline dim3 threadIdx{0}, blockIdx{0}, blockDim{0};

using std::min;

inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }

inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
}

namespace jax_convgrad {
constexpr size_t kSharedBytes_ = 227 * 1024;  // kernels that want more than 48 KiB ask for it
alignas(16) inline unsigned char shared_memory[kSharedBytes_];
}  // namespace jax_convgrad

namespace emulated_cuda {

constexpr size_t kStackBytes = 256 * 1024;

// One thread of a block, on a stack of its own.
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  bool running = false;
};

struct Block {
  std::vector<Fiber> fibers;
  ucontext_t scheduler;
  void (*call)(void* kernel, void* params) = nullptr;
  void* kernel = nullptr;
  void* params = nullptr;
};

inline Block block;

inline void Main() {
  block.call(block.kernel, block.params);
  block.fibers[threadIdx.x].running = false;
  swapcontext(&block.fibers[threadIdx.x].context, &block.scheduler);
}

inline void Run(unsigned threads) {
  if (block.fibers.size() < threads) block.fibers.resize(threads);
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = block.fibers[i];
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.get(), 0, kStackBytes};
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, Main, 0);
    fiber.running = true;
  }
  for (bool any = true; any;) {
    any = false;
    for (unsigned i = 0; i < threads; ++i) {
      if (!block.fibers[i].running) continue;
      threadIdx.x = i;
      swapcontext(&block.scheduler, &block.fibers[i].context);
      any = any || block.fibers[i].running;
    }
  }
}

}  // namespace emulated_cuda

// Threads that have returned do not wait, as on a device.
inline void __syncthreads() {
  emulated_cuda::Block& block = emulated_cuda::block;
  swapcontext(&block.fibers[threadIdx.x].context, &block.scheduler);
}

template <typename Params>
cudaError_t cudaLaunchKernel(void (*kernel)(Params), dim3 blocks, dim3 threads, void** arguments,
                             size_t shared_bytes, cudaStream_t) {
  using Kernel = void (*)(Params);
  if (threads.x < 1 || threads.x > 1024 || blocks.x < 1 || blocks.x > 0x7fffffff ||
      shared_bytes > jax_convgrad::kSharedBytes_) {
    return cudaErrorInvalidConfiguration;
  }
  unsigned char* const shared = jax_convgrad::shared_memory;
  emulated_cuda::Block& block = emulated_cuda::block;
  block.kernel = reinterpret_cast<void*>(kernel);
  block.params = arguments[0];
  block.call = [](void* function, void* params) {
    reinterpret_cast<Kernel>(function)(*static_cast<Params*>(params));
  };
  blockDim.x = threads.x;
  for (unsigned i = 0; i < blocks.x; ++i) {
    blockIdx.x = i;
    std::fill(shared, shared + jax_convgrad::kSharedBytes_, 0xff);  // NaN of every type
    ASAN_POISON_MEMORY_REGION(shared + shared_bytes, jax_convgrad::kSharedBytes_ - shared_bytes);
    emulated_cuda::Run(threads.x);
    ASAN_UNPOISON_MEMORY_REGION(shared, jax_convgrad::kSharedBytes_);
  }
  return cudaSuccess;
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }

template <typename Params>
cudaError_t cudaFuncSetAttribute(void (*)(Params), cudaFuncAttribute, int bytes) {
  return bytes <= static_cast<int>(jax_convgrad::kSharedBytes_) ? cudaSuccess
                                                                : cudaErrorInvalidConfiguration;
}

template <typename Params>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*)(Params), int,
                                                          size_t) {
  *blocks = 2;
  return cudaSuccess;
}

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_H_
