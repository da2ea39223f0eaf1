// Chooses and launches an instance of the kernel in resample_tile.cuh.

#include <cstdint>
#include <limits>

#include "cuda/resample_kernels.h"
#include "cuda/resample_tile.cuh"
#include "cuda/resample_tiling.h"

namespace jax_convgrad {
namespace {

constexpr int kMostThreads = 256;
constexpr int kLongBandThreads = 128;

template <typename T, int kVector, int kParts, int kOutVector, int kPlanes, int kRows>
__global__ void __launch_bounds__(kMostThreads) Tiles(const __grid_constant__ ResampleTask task) {
  extern __shared__ uint4 shared[];
  resample_tile::Kernel<T, kVector, kParts, kOutVector, kPlanes, kRows>(
      task, reinterpret_cast<char*>(shared))
      .Run(blockIdx.x);
}

template <typename T>
__global__ void __launch_bounds__(kLongBandThreads)
    LongBands(const __grid_constant__ ResampleTask task, int64_t elements) {
  extern __shared__ uint4 shared[];
  for (int64_t element = blockIdx.x; element < elements; element += gridDim.x) {
    resample_tile::LongBands<T>::Run(task, element, reinterpret_cast<char*>(shared));
  }
}

cudaError_t Launch(const void* kernel, int64_t blocks, int threads, int shared_bytes, void** args,
                   cudaStream_t stream) {
  if (blocks > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidConfiguration;
  if (shared_bytes > 48 << 10) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (status != cudaSuccess) return status;
  }
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned int>(blocks)),
                          dim3(static_cast<unsigned int>(threads)), args,
                          static_cast<size_t>(shared_bytes), stream);
}

template <typename T, int kVector, int kParts, int kOutVector>
const void* KernelOf(int planes) {
  // Three axes: see ChooseResampleShape.
  constexpr int kFewer = kVector > 4 ? 4 : kVector;
  return planes == 1 ? reinterpret_cast<const void*>(&Tiles<T, kVector, kParts, kOutVector, 1, 8>)
                     : reinterpret_cast<const void*>(&Tiles<T, kFewer, kParts, kOutVector, 4, 4>);
}

template <typename T>
cudaError_t LaunchTyped(ResampleTask task, cudaStream_t stream) {
  const ResampleForm& form = task.form;
  const ResampleShape shape = ChooseResampleShape(form, sizeof(T), task.x, task.y);
  task.tiling = ChooseResampleTiling(form, shape, ResampleLimits());
  if (task.tiling.shared_bytes == 0) {
    task.tiling.threads = kLongBandThreads;
    int64_t elements =
        form.batches() * form.depth.out * form.height.out * form.width.out * form.inner;
    void* args[] = {&task, &elements};
    const int64_t blocks = elements < (int64_t{1} << 30) ? elements : int64_t{1} << 30;
    return Launch(reinterpret_cast<const void*>(&LongBands<T>), blocks, kLongBandThreads,
                  kLongBandThreads * static_cast<int>(sizeof(double)), args, stream);
  }
  constexpr int kVector = 16 / sizeof(T);
  constexpr int kOutVector = sizeof(T) == 8 ? 2 : 4;
  const void* kernel =
      shape.vector > 1 ? shape.out_vector > 1 ? KernelOf<T, kVector, 1, kOutVector>(shape.planes)
                                              : KernelOf<T, kVector, 1, 1>(shape.planes)
      : shape.out_vector > 1 ? KernelOf<T, 1, kResampleScalarParts, kOutVector>(shape.planes)
                             : KernelOf<T, 1, kResampleScalarParts, 1>(shape.planes);
  void* args[] = {&task};
  return Launch(kernel, task.tiling.blocks(), task.tiling.threads, task.tiling.shared_bytes, args,
                stream);
}

}  // namespace

cudaError_t LaunchResample(const ResampleForm& form, ResampleType type, const void* x, void* y,
                           cudaStream_t stream) {
  const ResampleTask task{form, ResampleTiling(), x, y};
  switch (type) {
    case ResampleType::kF16:
      return LaunchTyped<resample_tile::Half>(task, stream);
    case ResampleType::kBF16:
      return LaunchTyped<resample_tile::BFloat16>(task, stream);
    case ResampleType::kF32:
      return LaunchTyped<float>(task, stream);
    case ResampleType::kF64:
      return LaunchTyped<double>(task, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace jax_convgrad
