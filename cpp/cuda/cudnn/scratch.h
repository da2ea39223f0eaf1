#ifndef JAX_CONVGRAD_CUDA_CUDNN_SCRATCH_H_
#define JAX_CONVGRAD_CUDA_CUDNN_SCRATCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "cuda/conv_plan.h"

namespace jax_convgrad {

// Arrays of a problem's sizes, filled with random numbers, and a workspace. For timing: engines run
// faster on zeros than on data, and XLA's own arrays must not be written early. For one problem;
// all memory is kept until the end, because freeing some waits for the whole device.
class DeviceScratch {
 public:
  DeviceScratch() = default;
  ~DeviceScratch();
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;

  // Bytes that Allocate asks for.
  static int64_t BytesFor(const ConvProblem& problem, int64_t workspace_bytes);

  // Does nothing if there is enough already. Fails with cudaErrorMemoryAllocation if less than a
  // tenth of the free memory would be left.
  cudaError_t Allocate(const ConvProblem& problem, int64_t workspace_bytes, cudaStream_t stream);

  const ConvBuffers& buffers() const { return buffers_; }

 private:
  cudaError_t Take(int64_t bytes, void** memory);
  cudaError_t Fill(const ConvProblem& problem, cudaStream_t stream);

  std::vector<void*> memory_;
  int64_t workspace_bytes_ = -1;  // none yet
  ConvBuffers buffers_;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CUDNN_SCRATCH_H_
