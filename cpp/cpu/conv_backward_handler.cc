// The handler of a whole backward pass. See handlers.h.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "cpu/conv_problem.h"
#include "cpu/handlers.h"
#include "cpu/kernels/depthwise/backward.h"
#include "cpu/kernels/depthwise/sizes.h"
#include "ffi/conv.h"
#include "ffi/error.h"
#include "ffi/guard.h"

namespace jax_convgrad {

// The attributes of a call: which gradients are wanted besides those of every convolution.
struct BackwardConfig {
  ConvConfig conv;
  int64_t wanted = 0;
};

namespace {

constexpr const char* kName = "conv_backward";
constexpr const char* kGradients[] = {"dx", "dw", "db"};

ffi::Error CheckResult(const char* name, const ffi::AnyBuffer& result,
                       ffi::Span<const int64_t> expected, ffi::DataType type) {
  const ffi::Span<const int64_t> dims = result.dimensions();
  if (!std::equal(dims.begin(), dims.end(), expected.begin(), expected.end())) {
    return InvalidArgument(kName, ": ", name, " has shape ", ListText(dims), ", expected ",
                           ListText(expected));
  }
  if (result.element_type() != type) {
    return InvalidArgument(kName, ": ", name, " has type ", result.element_type(), ", expected ",
                           type, " like dy");
  }
  return ffi::Error::Success();
}

ffi::Error Run(ffi::ThreadPool& pool, const ConvConfig& config, int64_t wanted,
               const ffi::AnyBuffer& x, const ffi::AnyBuffer& w, const ffi::AnyBuffer& dy,
               ffi::RemainingRets& rets, ConvGeometry* checked) {
  const ffi::ErrorOr<ConvGeometry> made =
      ConvGeometry::Make({kName, "x", "w", "dy"}, config, x, w, dy);
  if (made.has_error()) return made.error();
  *checked = *made;
  const ConvGeometry& geometry = *made;
  const ffi::DataType type = dy.element_type();
  if ((type != ffi::DataType::F32 && type != ffi::DataType::BF16) || x.element_type() != type ||
      w.element_type() != type) {
    return InvalidArgument(kName, ": x, w and dy have types ", x.element_type(), ", ",
                           w.element_type(), " and ", type,
                           ", expected float32 or bfloat16, all the same");
  }
  if (wanted < 1 || wanted > 7) {
    return InvalidArgument(kName, ": wanted is ", wanted,
                           ", expected a sum of 1 (dx), 2 (dw) and 4 (db)");
  }
  void* addresses[3] = {};
  size_t sizes[3] = {};
  size_t next = 0;
  const int64_t channels[] = {geometry.out_channels};
  const ffi::Span<const int64_t> shapes[] = {x.dimensions(), w.dimensions(), {channels, 1}};
  for (int i = 0; i < 3; ++i) {
    if ((wanted >> i & 1) == 0) continue;
    auto result = rets.get<ffi::AnyBuffer>(next++);
    if (result.has_error()) {
      return InvalidArgument(kName, ": there are ", rets.size(),
                             " results, too few for wanted = ", wanted);
    }
    const ffi::Error error = CheckResult(kGradients[i], **result, shapes[i], type);
    if (error.failure()) return error;
    addresses[i] = (*result)->untyped_data();
    sizes[i] = (*result)->size_bytes();
  }
  if (rets.size() != next) {
    return InvalidArgument(kName, ": there are ", rets.size(),
                           " results, too many for wanted = ", wanted);
  }
  if (geometry.IsAllZero()) {
    for (int i = 0; i < 2; ++i) {
      if (addresses[i] != nullptr && sizes[i] > 0) std::memset(addresses[i], 0, sizes[i]);
    }
    if (addresses[2] != nullptr && sizes[2] > 0) {
      const auto elements = static_cast<int64_t>(dy.element_count());
      SumOverRows(type, dy.untyped_data(), elements / geometry.out_channels, geometry.out_channels,
                  addresses[2]);
    }
    return ffi::Error::Success();
  }
  if (!IsDepthwise(geometry)) {
    return Unimplemented(kName, ": expected one filter for each of several channels, got ",
                         geometry.in_channels, " channels to ", geometry.out_channels, " in ",
                         geometry.groups, " groups");
  }
  DepthwiseBackward(pool,
                    {geometry, type, WeightsStrides(w, config), x.untyped_data(), w.untyped_data(),
                     dy.untyped_data(), addresses[0], addresses[1], addresses[2]});
  return ffi::Error::Success();
}

ffi::Error BackwardImpl(ffi::ThreadPool pool, BackwardConfig config, ffi::AnyBuffer x,
                        ffi::AnyBuffer w, ffi::AnyBuffer dy, ffi::RemainingRets results) {
  ConvGeometry geometry;  // without axes unless the check got that far
  return Guarded(
      kName, [&] { return Run(pool, config.conv, config.wanted, x, w, dy, results, &geometry); },
      [&] { return geometry.spatial > 0 ? geometry.ToString() : std::string(); });
}

}  // namespace
}  // namespace jax_convgrad

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(::jax_convgrad::BackwardConfig, JAX_CONVGRAD_CONV_ATTRIBUTES,
                                      ::xla::ffi::StructMember<int64_t>("wanted"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvBackward, jax_convgrad::BackwardImpl,
                              ::xla::ffi::Ffi::Bind()
                                  .Ctx<::xla::ffi::ThreadPool>()
                                  .Attrs<::jax_convgrad::BackwardConfig>()
                                  .Arg<::xla::ffi::AnyBuffer>()  // x
                                  .Arg<::xla::ffi::AnyBuffer>()  // w
                                  .Arg<::xla::ffi::AnyBuffer>()  // dy
                                  .RemainingRets());             // of dx, dw, db
