#include "cuda/workspace_cost.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/device_attribute.h"

namespace jax_convgrad {

ffi::ErrorOr<WorkspaceCost> WorkspaceCost::Of(const char* op, int device) {
  const ffi::ErrorOr<int> cache = DeviceAttribute(op, device, cudaDevAttrL2CacheSize);
  if (cache.has_error()) return ffi::Unexpected(cache.error());
  const ffi::ErrorOr<int> kilohertz = DeviceAttribute(op, device, cudaDevAttrMemoryClockRate);
  if (kilohertz.has_error()) return ffi::Unexpected(kilohertz.error());
  const ffi::ErrorOr<int> bits = DeviceAttribute(op, device, cudaDevAttrGlobalMemoryBusWidth);
  if (bits.has_error()) return ffi::Unexpected(bits.error());
  WorkspaceCost cost;
  cost.cache_bytes_ = *cache;
  // Each bit of the bus moves twice in a cycle of the clock.
  cost.bytes_per_microsecond_ = 2.0 * (*kilohertz / 1e3) * (*bits / 8.0);
  return cost;
}

double WorkspaceCost::Microseconds(int64_t workspace_bytes) const {
  if (bytes_per_microsecond_ <= 0) return 0;
  return static_cast<double>(std::min(workspace_bytes, cache_bytes_)) / bytes_per_microsecond_;
}

}  // namespace jax_convgrad
