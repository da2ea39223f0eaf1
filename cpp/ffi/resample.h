// The banded operator as every native handler sees it: the attributes of a call (ResampleConfig)
// and the checked problem (ResampleForm).
//
//   resample(x, start, weights, ...) -> y, a start and weights for each resampled axis, ascending:
//   y[.., i, ..] = sum_t weights[i, t] * x[.., start[i] + t, ..]
//
// A gradient is the same operator with the transposed bands.

#ifndef JAX_CONVGRAD_FFI_RESAMPLE_H_
#define JAX_CONVGRAD_FFI_RESAMPLE_H_

#include <cstdint>
#include <string>

#include "ffi/resample_form.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// `axes`: ascending positions in x, 1 to kMaxResampledAxes.
struct ResampleConfig {
  ::xla::ffi::Span<const int64_t> axes;
};

// The one check of a call: shapes, types and attributes, in arithmetic that cannot overflow. The
// contents of the tables are not checked, because they may be on a device. Nothing may touch the
// buffers' memory before it has passed. `few_inner_bytes` decides between the two forms of a single
// axis: with fewer bytes of x inside it, the axis is the form's width.
::xla::ffi::ErrorOr<ResampleForm> MakeResampleForm(const ResampleConfig& config,
                                                   const ::xla::ffi::AnyBuffer& x,
                                                   const ::xla::ffi::RemainingArgs& tables,
                                                   const ::xla::ffi::AnyBuffer& y,
                                                   int64_t few_inner_bytes);

// One line with the sizes of a call, for messages; the call need not have been checked.
std::string ResampleText(const ResampleConfig& config, const ::xla::ffi::AnyBuffer& x,
                         const ::xla::ffi::AnyBuffer& y);

}  // namespace jax_convgrad

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    ::jax_convgrad::ResampleConfig,
    ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("axes"));

#endif  // JAX_CONVGRAD_FFI_RESAMPLE_H_
