// A convolution problem as the CUDA module sees it, and an engine (of cuDNN's or of this project's
// own) made ready to run it.

#ifndef JAX_CONVGRAD_CUDA_CONV_PLAN_H_
#define JAX_CONVGRAD_CUDA_CONV_PLAN_H_

#include <cuda_runtime_api.h>
#include <cudnn_graph.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ffi/conv.h"
#include "ffi/error.h"

namespace jax_convgrad {

// How weights lie in memory, the outermost axis first. Both have the taps (X) and the input
// channels (I) of an output channel (O) in the same order.
enum class WeightsOrder {
  kOXI,  // as cuDNN reads them
  kXIO,
};

// The order with the name that calls have for it, "OXI" or "XIO".
std::optional<WeightsOrder> WeightsOrderNamed(std::string_view name);

// Every field that decides which engine may run, and which is best.
struct ConvProblem {
  ConvKind kind = ConvKind::kFprop;
  ConvGeometry geometry;  // with at least two spatial axes, see Widened
  ffi::DataType operand_type = ffi::DataType::F32;
  ffi::DataType result_type = ffi::DataType::F32;
  WeightsOrder weights = WeightsOrder::kOXI;
  bool allow_tf32 = true;
  bool deterministic = false;
  int64_t workspace_limit = 0;  // bytes
  int64_t alignment = 16;       // bytes, of every array
  int device = 0;

  bool operator==(const ConvProblem& other) const;

  // One line with every field but the device's number, for messages and as a key in files. Weights
  // in kOXI are not mentioned: files that know no other order stay valid.
  std::string ToString() const;
};

struct ConvProblemHash {
  size_t operator()(const ConvProblem& problem) const;
};

// The same convolution with its one spatial axis as the second of two, because cuDNN has no engines
// for one axis. The data stays as it is: an axis of size 1 in front does not change the memory
// layout.
ConvGeometry Widened(const ConvGeometry& geometry);

// The arrays of a call in the roles they have in the convolution x -> y; one of them is the result.
struct ConvBuffers {
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
  void* workspace = nullptr;
};

// One engine, built for one problem. Several threads may use it at once, each with its own handle.
class ConvPlan {
 public:
  virtual ~ConvPlan() = default;
  virtual const std::string& engine() const = 0;
  virtual int64_t workspace_bytes() const = 0;
  // Whether the kernels were compiled for this plan and are freed with it. A captured graph may
  // hold them, so such a plan must never be destroyed.
  virtual bool owns_kernels() const = 0;
  // Whether Run takes a handle; the project's own kernels need none.
  virtual bool needs_handle() const = 0;
  // Enqueues the engine's work on `stream`, which is that of `handle` if there is one.
  virtual ffi::Error Run(cudnnHandle_t handle, cudaStream_t stream,
                         const ConvBuffers& buffers) const = 0;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CONV_PLAN_H_
