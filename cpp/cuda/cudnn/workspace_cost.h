// The cost of a workspace to the rest of a program, beside the time of the engine that uses it.

#ifndef JAX_CONVGRAD_CUDA_CUDNN_WORKSPACE_COST_H_
#define JAX_CONVGRAD_CUDA_CUDNN_WORKSPACE_COST_H_

#include <cstdint>

namespace jax_convgrad {

// NOTE [Workspace cost]. Data that goes through a workspace evicts from the L2 cache data that the
// next operation would have found there and must then fetch from memory: as many bytes again, up to
// the whole cache. A search that runs an engine again and again on its own arrays cannot see that.
// On
// an H100 it is 0.3 us for each megabyte. dcgan4's weight gradient in bfloat16 takes 68 us with
// 16.8 MB of partial sums and 70 with 6.3; the double backward of that layer, which has two of
// them, takes 409 us with the former and 402 with the latter, which XLA chooses too
// (benchmarks/h100/double_backward_repeats.txt).
class WorkspaceCost {
 public:
  // The cost is zero on a device that does not report the figures that it is computed from.
  static WorkspaceCost Of(int device);

  double Microseconds(int64_t workspace_bytes) const;

 private:
  int64_t cache_bytes_ = 0;
  double bytes_per_microsecond_ = 0;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CUDNN_WORKSPACE_COST_H_
