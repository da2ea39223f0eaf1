#include "cuda/cudnn/workspace_cost.h"

#include <cuda_runtime_api.h>

#include <algorithm>

namespace jax_convgrad {

WorkspaceCost WorkspaceCost::Of(int device) {
  const auto number = [device](cudaDeviceAttr attribute) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess) return value;
    (void)cudaGetLastError();
    return 0;
  };
  WorkspaceCost cost;
  cost.cache_bytes_ = number(cudaDevAttrL2CacheSize);
  // Each bit of the bus moves twice in a cycle of the clock.
  cost.bytes_per_microsecond_ = 2.0 * (number(cudaDevAttrMemoryClockRate) / 1e3) *
                                (number(cudaDevAttrGlobalMemoryBusWidth) / 8.0);
  return cost;
}

double WorkspaceCost::Microseconds(int64_t workspace_bytes) const {
  if (bytes_per_microsecond_ <= 0) return 0;
  return static_cast<double>(std::min(workspace_bytes, cache_bytes_)) / bytes_per_microsecond_;
}

}  // namespace jax_convgrad
