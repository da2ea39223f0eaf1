#include "cpu/onednn/conv.h"

#include <omp.h>

#include <string>
#include <thread>

#include "cpu/kernels/depthwise/sizes.h"
#include "cpu/onednn/errata.h"
#include "cpu/runtime/first_exception.h"

namespace jax_convgrad {
namespace {

using dnnl::memory;

memory::dims Leading(const ConvGeometry& g, const ConvGeometry::PerAxis& values) {
  return memory::dims(values.begin(), values.begin() + g.spatial);
}

memory::dims Joined(memory::dims first, const memory::dims& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// x or y: channels-last in memory.
memory::desc ActivationDesc(const ConvGeometry& g, const ConvGeometry::PerAxis& size,
                            int64_t channels, memory::data_type type) {
  constexpr memory::format_tag kTags[] = {memory::format_tag::nwc, memory::format_tag::nhwc,
                                          memory::format_tag::ndhwc};
  return {Joined({g.batch, channels}, Leading(g, size)), type, kTags[g.spatial - 1]};
}

memory::dims WeightsDims(const ConvGeometry& g) {
  const int64_t out = g.out_channels / g.groups, in = g.in_channels / g.groups;
  const memory::dims channels =
      g.groups > 1 ? memory::dims{g.groups, out, in} : memory::dims{out, in};
  return Joined(channels, Leading(g, g.kernel));
}

int Slowness(const ConvGeometry& g, const std::string& name) {
  if (name.find("ref") != std::string::npos) return kReferenceSlowness;
  if (name.find("gemm") != std::string::npos) return 2;
  if (IsDepthwise(g) && name.find("dw") == std::string::npos) return 1;
  return OnednnHasAvx512() && name.find("avx512") == std::string::npos ? 1 : 0;
}

// To the first implementation without an erratum for the problem.
template <typename PrimitiveDesc>
void PassOverErrata(ConvKind kind, const ConvGeometry& g, ::xla::ffi::DataType operand_type,
                    PrimitiveDesc& desc) {
  const int version = OnednnVersion();
  while (FindErratum(kind, g, operand_type, desc.impl_info_str(), version) != nullptr) {
    if (!desc.next_impl()) {
      throw dnnl::error(dnnl_unimplemented, "oneDNN has no right implementation of the problem");
    }
  }
}

// NOTE [An error that stays]. The assembler of oneDNN 3.2 keeps the first error of each thread,
// such as code that is too large, and takes it for the result of everything that the thread makes
// later. So each primitive is made by a thread of its own: it takes 20 us, and a primitive some
// hundred.
template <typename Primitive, typename PrimitiveDesc>
Primitive MakeOnThread(const PrimitiveDesc& desc) {
  Primitive primitive;
  FirstException exception;
  std::thread([&] {
    exception.Guard([&] {
      const SingleThreaded single;
      primitive = Primitive(desc);
    });
  }).join();
  exception.Rethrow();
  return primitive;
}

template <typename Primitive, typename PrimitiveDesc>
OnednnConv Finish(const ConvGeometry& g, const PrimitiveDesc& desc, const memory::desc& x,
                  const memory::desc& w, const memory::desc& y) {
  return {MakeOnThread<Primitive>(desc),    x, w, y, desc.scratchpad_desc(),
          Slowness(g, desc.impl_info_str())};
}

}  // namespace

SingleThreaded::SingleThreaded() : threads_(omp_get_max_threads()) { omp_set_num_threads(1); }

SingleThreaded::~SingleThreaded() { omp_set_num_threads(threads_); }

bool OnednnHasAvx512() {
  constexpr unsigned kAvx512 = dnnl_cpu_isa_avx512_core;  // a set of bits
  static const bool has =
      (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kAvx512) == kAvx512;
  return has;
}

int OnednnVersion() {
  const dnnl_version_t* version = dnnl_version();
  return 10000 * version->major + 100 * version->minor + version->patch;
}

const dnnl::engine& CpuEngine() {
  // Never destroyed: pool threads may still run handlers while the process ends.
  static const dnnl::engine* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

memory::data_type OnednnType(::xla::ffi::DataType type) {
  return type == ::xla::ffi::DataType::BF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

dnnl::primitive_attr UserScratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

memory::desc UserWeightsDesc(const ConvGeometry& g, memory::data_type type,
                             const std::array<int64_t, kMaxSpatialAxes + 2>& strides,
                             int64_t group_stride) {
  memory::dims own(strides.begin(), strides.begin() + g.spatial + 2);
  if (g.groups > 1) own.insert(own.begin(), group_stride);
  return {WeightsDims(g), type, own};
}

OnednnConv MakeOnednnConv(ConvKind kind, const ConvGeometry& g, ::xla::ffi::DataType operand_type,
                          ::xla::ffi::DataType result_type, const std::optional<memory::desc>& w) {
  const memory::data_type type = OnednnType(operand_type), result = OnednnType(result_type);
  const bool fprop = kind == ConvKind::kFprop, dgrad = kind == ConvKind::kDgrad;
  const memory::desc x = ActivationDesc(g, g.in, g.in_channels, dgrad ? result : type);
  const memory::desc y = ActivationDesc(g, g.out, g.out_channels, fprop ? result : type);
  const memory::data_type w_type = fprop || dgrad ? type : memory::data_type::f32;
  const memory::desc weights =
      w ? *w : memory::desc(WeightsDims(g), w_type, memory::format_tag::any);
  const memory::dims strides = Leading(g, g.strides);
  const memory::dims low = Leading(g, g.padding_low), high = Leading(g, g.padding_high);
  ConvGeometry::PerAxis zeros_between{};  // oneDNN counts the zeros between the taps
  for (size_t axis = 0; axis < zeros_between.size(); ++axis) {
    zeros_between[axis] = g.kernel[axis] > 1 ? g.dilation[axis] - 1 : 0;
  }
  const memory::dims dilation = Leading(g, zeros_between);
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const dnnl::primitive_attr attr = UserScratchpad();

  using Forward = dnnl::convolution_forward;
  const auto forward = [&](const memory::desc& src, const memory::desc& wei,
                           const memory::desc& dst) {
    return Forward::primitive_desc(CpuEngine(), dnnl::prop_kind::forward_training, algorithm, src,
                                   wei, dst, strides, dilation, low, high, attr);
  };
  if (fprop) {
    Forward::primitive_desc desc = forward(x, weights, y);
    PassOverErrata(kind, g, operand_type, desc);
    return Finish<Forward>(g, desc, x, desc.weights_desc(), y);
  }
  // The hint that a gradient needs is a forward convolution of the operands' type.
  const Forward::primitive_desc hint =
      forward(ActivationDesc(g, g.in, g.in_channels, type),
              memory::desc(WeightsDims(g), type, memory::format_tag::any),
              ActivationDesc(g, g.out, g.out_channels, type));
  if (dgrad) {
    using Backward = dnnl::convolution_backward_data;
    Backward::primitive_desc desc(CpuEngine(), algorithm, x, weights, y, strides, dilation, low,
                                  high, hint, attr);
    PassOverErrata(kind, g, operand_type, desc);
    return Finish<Backward>(g, desc, x, desc.weights_desc(), y);
  }
  using Backward = dnnl::convolution_backward_weights;
  Backward::primitive_desc desc(CpuEngine(), algorithm, x, weights, y, strides, dilation, low, high,
                                hint, attr);
  PassOverErrata(kind, g, operand_type, desc);
  return Finish<Backward>(g, desc, x, desc.diff_weights_desc(), y);
}

void Execute(const dnnl::primitive& primitive, dnnl::stream& stream,
             const std::unordered_map<int, memory>& arguments) {
  primitive.execute(stream, arguments);
  stream.wait();
}

}  // namespace jax_convgrad
