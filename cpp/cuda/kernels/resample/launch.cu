// Chooses and launches an instance of the kernels of resample.

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>

#include "cuda/kernels/resample/instances.cuh"
#include "cuda/kernels/resample/launch.h"
#include "cuda/kernels/resample/tiling.h"

namespace jax_convgrad {
namespace {

constexpr int kLongBandThreads = 128;

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kMaxThreads, Kernel::kBlocks)
    Walks(const __grid_constant__ ResampleTask task) {
  extern __shared__ uint4 shared[];
  Kernel(task, reinterpret_cast<char*>(shared)).Run(blockIdx.x);
}

template <typename T>
__global__ void __launch_bounds__(kLongBandThreads)
    LongBands(const __grid_constant__ ResampleTask task, int64_t elements) {
  extern __shared__ uint4 shared[];
  for (int64_t element = blockIdx.x; element < elements; element += gridDim.x) {
    resample_kernels::LongBands<T>::Run(task, element, reinterpret_cast<char*>(shared));
  }
}

cudaError_t Launch(const void* kernel, int64_t blocks, int threads, int shared_bytes, void** args,
                   cudaStream_t stream) {
  if (blocks > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidConfiguration;
  if (shared_bytes > 48 << 10) {
    // Always the same value: a kernel has only one such limit. Other threads set it too between
    // this call and the launch, and it holds for launches that have been captured but not yet
    // instantiated.
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
    if (status != cudaSuccess) return status;
  }
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned int>(blocks)),
                          dim3(static_cast<unsigned int>(threads)), args,
                          static_cast<size_t>(shared_bytes), stream);
}

template <typename T>
cudaError_t LaunchLongBands(ResampleTask task, cudaStream_t stream) {
  const ResampleForm& form = task.form;
  task.tiling.threads = kLongBandThreads;
  int64_t elements =
      form.batches() * form.depth.out * form.height.out * form.width.out * form.inner;
  void* args[] = {&task, &elements};
  const int64_t blocks = elements < (int64_t{1} << 30) ? elements : int64_t{1} << 30;
  return Launch(reinterpret_cast<const void*>(&LongBands<T>), blocks, kLongBandThreads,
                kLongBandThreads * static_cast<int>(sizeof(double)), args, stream);
}

// Of the current device; queried once for each device.
cudaError_t CountMultiprocessors(int* count) {
  static std::array<std::atomic<int>, 64> counts{};  // 0: unknown so far
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  const size_t index = static_cast<size_t>(device);
  if (index < counts.size()) {
    *count = counts[index].load(std::memory_order_relaxed);
    if (*count != 0) return cudaSuccess;
  }
  const cudaError_t asked = cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
  if (asked == cudaSuccess && index < counts.size()) {
    counts[index].store(*count, std::memory_order_relaxed);
  }
  return asked;
}

template <typename T>
cudaError_t LaunchTyped(ResampleTask task, cudaStream_t stream) {
  int multiprocessors = 0;
  const cudaError_t counted = CountMultiprocessors(&multiprocessors);
  if (counted != cudaSuccess) return counted;
  cudaError_t status = cudaErrorInvalidValue;
  resample_kernels::VisitInstance<T>(
      GetResampleNeeds(task, sizeof(T)), [&](auto instance, const ResampleNeeds& needs) {
        using Kernel = typename decltype(instance)::Kernel;
        task.tiling = ChooseResampleTiling(
            task, needs, instance.kValues, sizeof(T),
            GetResampleLimits(needs, instance.kValues, sizeof(T), multiprocessors));
        if (task.tiling.blocks == 0) {
          status = LaunchLongBands<T>(task, stream);
          return;
        }
        void* args[] = {&task};
        status = Launch(reinterpret_cast<const void*>(&Walks<Kernel>), task.tiling.blocks,
                        task.tiling.threads, task.tiling.shared_bytes, args, stream);
      });
  return status;
}

int ElementBytes(ResampleType type) {
  return type == ResampleType::kF64 ? 8 : type == ResampleType::kF32 ? 4 : 2;
}

}  // namespace

cudaError_t LaunchResample(const ResampleForm& form, ResampleType type, const void* x, void* y,
                           cudaStream_t stream) {
  const ResampleTask task = MakeResampleTask(form, ElementBytes(type), x, y);
  switch (type) {
    case ResampleType::kF16:
      return LaunchTyped<resample_kernels::Half>(task, stream);
    case ResampleType::kBF16:
      return LaunchTyped<resample_kernels::BFloat16>(task, stream);
    case ResampleType::kF32:
      return LaunchTyped<float>(task, stream);
    case ResampleType::kF64:
      return LaunchTyped<double>(task, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace jax_convgrad
