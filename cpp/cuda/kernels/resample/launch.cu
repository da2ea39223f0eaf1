// Chooses and launches an instance of the kernels of resample.

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <utility>

#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/resample/direct.cuh"
#include "cuda/kernels/resample/instances.h"
#include "cuda/kernels/resample/kernels.cuh"
#include "cuda/kernels/resample/launch.h"
#include "cuda/kernels/resample/tiling.h"

namespace jax_convgrad {
namespace {

constexpr int kLongBandThreads = 128;

template <typename T, int kRow>
__global__ void __launch_bounds__(resample_kernels::Kernel<T, kRow>::kMaxThreads,
                                  resample_kernels::Kernel<T, kRow>::kBlocks)
    Resample(const __grid_constant__ ResampleTask task) {
  using Kernel = typename resample_kernels::Kernel<T, kRow>::Type;
  Kernel(task, SharedMemory<char>()).Run(blockIdx.x, static_cast<int>(threadIdx.x));
}

struct LongBandsParams {
  ResampleTask task;
  int64_t elements;  // of y
};

template <typename T>
__global__ void __launch_bounds__(kLongBandThreads)
    ResampleLongBands(const __grid_constant__ LongBandsParams params) {
  for (int64_t element = blockIdx.x; element < params.elements; element += gridDim.x) {
    resample_kernels::LongBands<T>::Run(params.task, element, static_cast<int>(threadIdx.x),
                                        SharedMemory<char>());
  }
}

template <typename Params>
cudaError_t Launch(void (*kernel)(Params), Params params, const ResampleTiling& tiling,
                   cudaStream_t stream) {
  if (tiling.blocks > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidConfiguration;
  if (tiling.shared_bytes > 48 << 10) {
    // Always the same value: a kernel has only one such limit. Other threads set it too between
    // this call and the launch, and it holds for launches that have been captured but not yet
    // instantiated.
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
    if (status != cudaSuccess) return status;
  }
  void* args[] = {&params};
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned int>(tiling.blocks)),
                          dim3(static_cast<unsigned int>(tiling.threads)), args,
                          static_cast<size_t>(tiling.shared_bytes), stream);
}

template <typename T>
cudaError_t LaunchLongBands(const ResampleTask& task, cudaStream_t stream) {
  const ResampleForm& form = task.form;
  LongBandsParams params{
      task, form.batches() * form.depth.out * form.height.out * form.width.out * form.inner};
  ResampleTiling& tiling = params.task.tiling;
  tiling.threads = kLongBandThreads;
  tiling.shared_bytes = kLongBandThreads * static_cast<int>(sizeof(double));
  tiling.blocks = params.elements < (int64_t{1} << 30) ? params.elements : int64_t{1} << 30;
  return Launch(&ResampleLongBands<T>, params, tiling, stream);
}

// The instances of a type, by row; none is compiled for rows without it.
template <typename T>
struct Instances {
  ResampleInstance values[kResampleRowCount] = {};
  void (*kernels[kResampleRowCount])(ResampleTask) = {};

  Instances() { Fill(std::make_integer_sequence<int, kResampleRowCount>()); }

 private:
  template <int... kRows>
  void Fill(std::integer_sequence<int, kRows...>) {
    (Set<kRows>(), ...);
  }
  template <int kRow>
  void Set() {
    if constexpr (resample_kernels::kIsCompiled<T, kRow>) {
      values[kRow] = resample_kernels::Kernel<T, kRow>::kValues;
      kernels[kRow] = &Resample<T, kRow>;
    }
  }
};

template <typename T>
const Instances<T>& InstancesOf() {
  static const Instances<T> instances;
  return instances;
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
  const Instances<T>& instances = InstancesOf<T>();
  const ResampleChoice choice =
      ChooseResampleInstance(GetResampleNeeds(task, sizeof(T)), instances.values);
  if (choice.row < 0) return cudaErrorInvalidValue;
  const ResampleInstance& instance = instances.values[choice.row];
  task.tiling =
      ChooseResampleTiling(task, choice.needs, instance, sizeof(T),
                           GetResampleLimits(choice.needs, instance, sizeof(T), multiprocessors));
  if (task.tiling.blocks == 0) return LaunchLongBands<T>(task, stream);
  return Launch(instances.kernels[choice.row], task, task.tiling, stream);
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
