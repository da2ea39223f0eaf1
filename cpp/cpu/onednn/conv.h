// One convolution as a oneDNN primitive.

#ifndef JAX_CONVGRAD_CPU_ONEDNN_CONV_H_
#define JAX_CONVGRAD_CPU_ONEDNN_CONV_H_

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "ffi/conv.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// oneDNN uses one OpenMP thread while this lives. The setting belongs to the calling thread, whose
// own value comes back afterwards.
class SingleThreaded {
 public:
  SingleThreaded();
  ~SingleThreaded();
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  const int threads_;
};

const dnnl::engine& CpuEngine();

// Version of the oneDNN library that was loaded: 10000 * major + 100 * minor + patch.
int OnednnVersion();

// Whether oneDNN uses AVX-512.
bool OnednnHasAvx512();

dnnl::memory::data_type OnednnType(::xla::ffi::DataType type);

// oneDNN's own scratchpad is shared between threads and not safe: every primitive gets one with its
// call.
dnnl::primitive_attr UserScratchpad();

// The user's w or dw, or those of some channels. `strides` in elements: output channel, input
// channel, spatial axes; and from group to group, if there are several.
dnnl::memory::desc UserWeightsDesc(const ConvGeometry& geometry, dnnl::memory::data_type type,
                                   const std::array<int64_t, kMaxSpatialAxes + 2>& strides,
                                   int64_t group_stride);

struct OnednnConv {
  dnnl::primitive primitive;
  dnnl::memory::desc x, w, y, scratchpad;
  // How far the implementation is from code made for the problem: 0 is that, 1 is code for a
  // smaller instruction set, 2 lowers to matrix products, 3 is oneDNN's reference.
  int slowness = 0;
};

inline constexpr int kReferenceSlowness = 3;

// Makes the primitive. `w` fixes the format of the weights; without it oneDNN chooses. A weight
// gradient is float32 whatever the result's type, because parts of it are added. Throws
// dnnl::error.
OnednnConv MakeOnednnConv(ConvKind kind, const ConvGeometry& geometry,
                          ::xla::ffi::DataType operand_type, ::xla::ffi::DataType result_type,
                          const std::optional<dnnl::memory::desc>& w);

void Execute(const dnnl::primitive& primitive, dnnl::stream& stream,
             const std::unordered_map<int, dnnl::memory>& arguments);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_ONEDNN_CONV_H_
