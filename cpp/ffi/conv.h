// The convolution family as every native handler sees it: the attributes of a call (ConvConfig)
// and the checked sizes (ConvGeometry). The three operators share one geometry, always that of the
// convolution x -> y:
//
//   conv_fprop(x, w) -> y      conv_dgrad(dy, w) -> dx      conv_wgrad(x, dy) -> dw
//
// where dx, dw and dy have the shapes of x, w and y.

#ifndef JAX_CONVGRAD_FFI_CONV_H_
#define JAX_CONVGRAD_FFI_CONV_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "ffi/checked_calls.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

inline constexpr int kMaxSpatialAxes = 3;

enum class ConvKind { kFprop, kDgrad, kWgrad };

// The operator's name: the Python function, the stem of the FFI target and the start of each error.
const char* ConvName(ConvKind kind);

// An operator's name, and its names for the arrays that have the shapes of x, w and y.
struct ConvNames {
  const char* op;
  const char* x;
  const char* w;
  const char* y;
};

// Attributes of a call. Lists of one number per spatial axis; groups; and the position of each axis
// in the logical shapes: (batch, channel, spatial...) of x and y, (output channel, input channel,
// spatial...) of w. These are lhs_spec, out_spec and rhs_spec of jax.lax.ConvDimensionNumbers.
struct ConvConfig {
  ::xla::ffi::Span<const int64_t> strides;
  ::xla::ffi::Span<const int64_t> padding_low;
  ::xla::ffi::Span<const int64_t> padding_high;
  ::xla::ffi::Span<const int64_t> dilation;
  int64_t groups = 1;
  ::xla::ffi::Span<const int64_t> x_spec;
  ::xla::ffi::Span<const int64_t> w_spec;
  ::xla::ffi::Span<const int64_t> y_spec;
};

// The key of a call, except what only one platform has: the operator, every attribute, and the
// type and all sizes of every array.
CallKey ConvCallKey(ConvKind kind, const ConvConfig& config, const ::xla::ffi::AnyBuffer& x,
                    const ::xla::ffi::AnyBuffer& w, const ::xla::ffi::AnyBuffer& y);

// Sizes in canonical order. Entries of axes that are not there hold the neutral value (size and
// stride 1, padding 0), so that two geometries are the same exactly if all their fields are.
struct ConvGeometry {
  using PerAxis = std::array<int64_t, kMaxSpatialAxes>;

  int spatial = 0;
  int64_t batch = 0;
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t groups = 1;
  PerAxis in{1, 1, 1};
  PerAxis kernel{1, 1, 1};
  PerAxis out{1, 1, 1};
  PerAxis strides{1, 1, 1};
  PerAxis padding_low{};
  PerAxis padding_high{};
  PerAxis dilation{1, 1, 1};

  // The one check of a call's sizes: shapes against attributes, in arithmetic that cannot overflow.
  // Nothing may touch the buffers' memory before it has passed. x, w and y may be operands or
  // results; only their shapes are read.
  static ::xla::ffi::ErrorOr<ConvGeometry> Make(const ConvNames& names, const ConvConfig& config,
                                                const ::xla::ffi::AnyBuffer& x,
                                                const ::xla::ffi::AnyBuffer& w,
                                                const ::xla::ffi::AnyBuffer& y);
  static ::xla::ffi::ErrorOr<ConvGeometry> Make(ConvKind kind, const ConvConfig& config,
                                                const ::xla::ffi::AnyBuffer& x,
                                                const ::xla::ffi::AnyBuffer& w,
                                                const ::xla::ffi::AnyBuffer& y);

  // Rows that one window spans along an axis: (kernel - 1) * dilation + 1, or 0 for an empty
  // kernel.
  int64_t WindowSize(int axis) const;

  // Whether a tap of the kernel lies on an element of x in some window, along one axis. A tap that
  // does not has a weight gradient of zero.
  bool TapReadsInput(int axis, int64_t tap) const;

  // Whether no tap of any window lies on an element of x, or an array has no elements: every result
  // is zero then. Libraries are not built for that: oneDNN 3.2 has been seen to crash.
  bool IsAllZero() const;

  bool operator==(const ConvGeometry& other) const;

  // One line with every field, for messages.
  std::string ToString() const;
};

// Both operands must have one of the supported types, and the result the same type or float32.
::xla::ffi::Error CheckConvTypes(ConvKind kind, const ::xla::ffi::AnyBuffer& x,
                                 const ::xla::ffi::AnyBuffer& w, const ::xla::ffi::AnyBuffer& y,
                                 std::initializer_list<::xla::ffi::DataType> supported);

}  // namespace jax_convgrad

// The members of ConvConfig as attributes, in their order. This is the only list of them. A
// platform whose calls have more attributes appends its own.
#define JAX_CONVGRAD_CONV_ATTRIBUTES                                             \
  ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("strides"),          \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("padding_low"),  \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("padding_high"), \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("dilation"),     \
      ::xla::ffi::StructMember<int64_t>("groups"),                               \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("x_spec"),       \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("w_spec"),       \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("y_spec")

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(::jax_convgrad::ConvConfig, JAX_CONVGRAD_CONV_ATTRIBUTES);

#endif  // JAX_CONVGRAD_FFI_CONV_H_
