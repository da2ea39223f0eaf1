#include "ffi/conv.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <tuple>

#include "ffi/checked.h"
#include "ffi/error.h"

namespace jax_convgrad {
namespace {

using Dims = ffi::Span<const int64_t>;

ConvNames NamesOf(ConvKind kind) {
  const char* const op = ConvName(kind);
  switch (kind) {
    case ConvKind::kFprop:
      return {op, "x", "w", "y"};
    case ConvKind::kDgrad:
      return {op, "dx", "w", "dy"};
    case ConvKind::kWgrad:
      return {op, "x", "dw", "dy"};
  }
  return {op, "x", "w", "y"};
}

// (kernel - 1) * dilation + 1, or 0 for an empty kernel.
std::optional<int64_t> CheckedWindow(int64_t kernel, int64_t dilation) {
  if (kernel == 0) return 0;
  const std::optional<int64_t> span = CheckedMultiply(kernel - 1, dilation);
  return span ? CheckedAdd(*span, 1) : std::nullopt;
}

// Number of window positions along one axis, none if the padded input is shorter than the window.
std::optional<int64_t> CheckedOutputSize(int64_t in, int64_t low, int64_t high, int64_t window,
                                         int64_t stride) {
  const std::optional<int64_t> padding = CheckedAdd(low, high);
  const std::optional<int64_t> padded = padding ? CheckedAdd(in, *padding) : std::nullopt;
  if (!padded) return std::nullopt;
  if (*padded < window) return 0;
  return CheckedAdd((*padded - window) / stride, 1);
}

ffi::Error CheckRank(const char* op, const char* operand, Dims dims, size_t rank) {
  if (dims.size() == rank) return ffi::Error::Success();
  return InvalidArgument(op, ": ", operand, " has shape ", ListText(dims), ", expected ", rank,
                         " axes like x");
}

ffi::Error CheckLength(const char* op, const char* name, Dims values, size_t expected) {
  if (values.size() == expected) return ffi::Error::Success();
  return InvalidArgument(op, ": ", name, " is ", ListText(values), ", expected ", expected,
                         " entries");
}

ffi::Error CheckAtLeast(const char* op, const char* name, Dims values, int64_t minimum) {
  if (std::all_of(values.begin(), values.end(), [&](int64_t v) { return v >= minimum; })) {
    return ffi::Error::Success();
  }
  return InvalidArgument(op, ": ", name, " is ", ListText(values),
                         ", expected every entry >= ", minimum);
}

ffi::Error CheckPermutation(const char* op, const char* name, Dims spec) {
  for (size_t axis = 0; axis < spec.size(); ++axis) {
    if (std::count(spec.begin(), spec.end(), static_cast<int64_t>(axis)) != 1) {
      return InvalidArgument(op, ": ", name, " is ", ListText(spec),
                             ", expected a permutation of 0 to ", spec.size() - 1);
    }
  }
  return ffi::Error::Success();
}

ffi::Error CheckSize(const char* op, const char* operand, Dims dims, const char* what,
                     int64_t expected, int64_t got) {
  if (expected == got) return ffi::Error::Success();
  return InvalidArgument(op, ": ", operand, " has shape ", ListText(dims), ": expected ", what, " ",
                         expected, ", got ", got);
}

}  // namespace

const char* ConvName(ConvKind kind) {
  switch (kind) {
    case ConvKind::kFprop:
      return "conv_fprop";
    case ConvKind::kDgrad:
      return "conv_dgrad";
    case ConvKind::kWgrad:
      return "conv_wgrad";
  }
  return "conv";
}

CallKey ConvCallKey(ConvKind kind, const ConvConfig& config, const ffi::AnyBuffer& x,
                    const ffi::AnyBuffer& w, const ffi::AnyBuffer& y) {
  CallKey key;
  key.Add(static_cast<int64_t>(kind)).Add(x).Add(w).Add(y);
  for (const Dims& list : {config.strides, config.padding_low, config.padding_high, config.dilation,
                           config.x_spec, config.w_spec, config.y_spec}) {
    key.Add(list);
  }
  return key.Add(config.groups);
}

int64_t ConvGeometry::WindowSize(int axis) const {
  return kernel[axis] == 0 ? 0 : (kernel[axis] - 1) * dilation[axis] + 1;
}

bool ConvGeometry::TapReadsInput(int axis, int64_t tap) const {
  const int64_t offset = tap * dilation[axis] - padding_low[axis];
  // The first window whose tap is not in the low padding.
  const int64_t window = offset >= 0 ? 0 : (-offset - 1) / strides[axis] + 1;
  return window < out[axis] && window * strides[axis] + offset < in[axis];
}

bool ConvGeometry::IsAllZero() const {
  if (batch == 0 || in_channels == 0 || out_channels == 0) return true;
  // Beside a size of zero, other sizes have nothing to do with memory, and may be too large to loop
  // over.
  for (int axis = 0; axis < spatial; ++axis) {
    if (in[axis] == 0 || kernel[axis] == 0 || out[axis] == 0) return true;
  }
  for (int axis = 0; axis < spatial; ++axis) {
    bool reads = false;
    for (int64_t tap = 0; tap < kernel[axis] && !reads; ++tap) reads = TapReadsInput(axis, tap);
    if (!reads) return true;
  }
  return false;
}

bool ConvGeometry::operator==(const ConvGeometry& other) const {
  const auto fields = [](const ConvGeometry& g) {
    return std::tie(g.spatial, g.batch, g.in_channels, g.out_channels, g.groups, g.in, g.kernel,
                    g.out, g.strides, g.padding_low, g.padding_high, g.dilation);
  };
  return fields(*this) == fields(other);
}

std::string ConvGeometry::ToString() const {
  const auto list = [this](const PerAxis& values) {
    return ListText(Dims(values.data(), static_cast<size_t>(spatial)));
  };
  return Text("batch ", batch, ", channels ", in_channels, " to ", out_channels, ", groups ",
              groups, ", x ", list(in), ", kernel ", list(kernel), ", y ", list(out), ", strides ",
              list(strides), ", padding_low ", list(padding_low), ", padding_high ",
              list(padding_high), ", dilation ", list(dilation));
}

ffi::ErrorOr<ConvGeometry> ConvGeometry::Make(ConvKind kind, const ConvConfig& config,
                                              const ffi::AnyBuffer& x, const ffi::AnyBuffer& w,
                                              const ffi::AnyBuffer& y) {
  return Make(NamesOf(kind), config, x, w, y);
}

ffi::ErrorOr<ConvGeometry> ConvGeometry::Make(const ConvNames& names, const ConvConfig& config,
                                              const ffi::AnyBuffer& x, const ffi::AnyBuffer& w,
                                              const ffi::AnyBuffer& y) {
  const char* op = names.op;
  const Dims x_dims = x.dimensions(), w_dims = w.dimensions(), y_dims = y.dimensions();

  const size_t rank = x_dims.size();
  if (rank < 3 || rank > kMaxSpatialAxes + 2) {
    return ffi::Unexpected(InvalidArgument(op, ": ", names.x, " has shape ", ListText(x_dims),
                                           ", expected 3 to ", kMaxSpatialAxes + 2, " axes"));
  }
  const size_t spatial = rank - 2;
  const ffi::Error form_errors[] = {
      CheckRank(op, names.w, w_dims, rank),
      CheckRank(op, names.y, y_dims, rank),
      CheckLength(op, "strides", config.strides, spatial),
      CheckLength(op, "padding_low", config.padding_low, spatial),
      CheckLength(op, "padding_high", config.padding_high, spatial),
      CheckLength(op, "dilation", config.dilation, spatial),
      CheckLength(op, "x_spec", config.x_spec, rank),
      CheckLength(op, "w_spec", config.w_spec, rank),
      CheckLength(op, "y_spec", config.y_spec, rank),
      CheckPermutation(op, "x_spec", config.x_spec),
      CheckPermutation(op, "w_spec", config.w_spec),
      CheckPermutation(op, "y_spec", config.y_spec),
      CheckAtLeast(op, "strides", config.strides, 1),
      CheckAtLeast(op, "padding_low", config.padding_low, 0),
      CheckAtLeast(op, "padding_high", config.padding_high, 0),
      CheckAtLeast(op, "dilation", config.dilation, 1),
  };
  for (const ffi::Error& error : form_errors) {
    if (error.failure()) return ffi::Unexpected(error);
  }
  if (config.groups < 1) {
    return ffi::Unexpected(
        InvalidArgument(op, ": groups is ", config.groups, ", expected at least 1"));
  }
  const std::tuple<const char*, Dims> arrays[] = {
      {names.x, x_dims}, {names.w, w_dims}, {names.y, y_dims}};
  for (const auto& [name, dims] : arrays) {
    if (ByteSizeOverflows(dims)) {
      return ffi::Unexpected(
          InvalidArgument(op, ": the size of ", name, " ", ListText(dims), " overflows"));
    }
  }

  ConvGeometry g;
  g.spatial = static_cast<int>(spatial);
  g.batch = x_dims[config.x_spec[0]];
  g.in_channels = x_dims[config.x_spec[1]];
  g.out_channels = w_dims[config.w_spec[0]];
  g.groups = config.groups;
  if (g.in_channels % g.groups != 0) {
    return ffi::Unexpected(InvalidArgument(op, ": ", names.x, " has shape ", ListText(x_dims), ": ",
                                           g.in_channels, " channels cannot be divided into ",
                                           g.groups, " groups"));
  }
  if (g.out_channels % g.groups != 0) {
    return ffi::Unexpected(
        InvalidArgument(op, ": ", names.w, " has shape ", ListText(w_dims), ": ", g.out_channels,
                        " output channels cannot be divided into ", g.groups, " groups"));
  }
  const ffi::Error channel_errors[] = {
      CheckSize(op, names.w, w_dims, "input channels / groups", g.in_channels / g.groups,
                w_dims[config.w_spec[1]]),
      CheckSize(op, names.y, y_dims, "batch", g.batch, y_dims[config.y_spec[0]]),
      CheckSize(op, names.y, y_dims, "output channels", g.out_channels, y_dims[config.y_spec[1]]),
  };
  for (const ffi::Error& error : channel_errors) {
    if (error.failure()) return ffi::Unexpected(error);
  }

  for (size_t axis = 0; axis < spatial; ++axis) {
    g.in[axis] = x_dims[config.x_spec[axis + 2]];
    g.kernel[axis] = w_dims[config.w_spec[axis + 2]];
    g.out[axis] = y_dims[config.y_spec[axis + 2]];
    g.strides[axis] = config.strides[axis];
    g.padding_low[axis] = config.padding_low[axis];
    g.padding_high[axis] = config.padding_high[axis];
    g.dilation[axis] = config.dilation[axis];
    const std::optional<int64_t> window = CheckedWindow(g.kernel[axis], g.dilation[axis]);
    const std::optional<int64_t> expected =
        window ? CheckedOutputSize(g.in[axis], g.padding_low[axis], g.padding_high[axis], *window,
                                   g.strides[axis])
               : std::nullopt;
    if (!expected) {
      return ffi::Unexpected(InvalidArgument(
          op, ": size arithmetic overflows on spatial axis ", axis, ": input ", g.in[axis],
          ", padding ", g.padding_low[axis], " and ", g.padding_high[axis], ", kernel ",
          g.kernel[axis], ", dilation ", g.dilation[axis]));
    }
    if (*expected != g.out[axis]) {
      return ffi::Unexpected(InvalidArgument(
          op, ": ", names.y, " has shape ", ListText(y_dims), ": expected size ", *expected,
          " on spatial axis ", axis, ", got ", g.out[axis], " (", names.x, " ", ListText(x_dims),
          ", ", names.w, " ", ListText(w_dims), ", strides ", ListText(config.strides),
          ", padding_low ", ListText(config.padding_low), ", padding_high ",
          ListText(config.padding_high), ", dilation ", ListText(config.dilation), ")"));
    }
  }
  return g;
}

ffi::Error CheckConvTypes(ConvKind kind, const ffi::AnyBuffer& x, const ffi::AnyBuffer& w,
                          const ffi::AnyBuffer& y, std::initializer_list<ffi::DataType> supported) {
  struct Named {
    const char* name;
    ffi::DataType type;
  };
  const ConvNames names = NamesOf(kind);
  const Named named_x{names.x, x.element_type()};
  const Named named_w{names.w, w.element_type()};
  const Named named_y{names.y, y.element_type()};
  const char* op = ConvName(kind);
  const Named lhs = kind == ConvKind::kDgrad ? named_y : named_x;
  const Named rhs = kind == ConvKind::kWgrad ? named_y : named_w;
  const Named result = kind == ConvKind::kFprop   ? named_y
                       : kind == ConvKind::kDgrad ? named_x
                                                  : named_w;
  if (std::find(supported.begin(), supported.end(), lhs.type) == supported.end()) {
    std::string list;
    for (ffi::DataType type : supported) list += Text(list.empty() ? "" : " or ", type);
    return InvalidArgument(op, ": ", lhs.name, " has dtype ", lhs.type, ", expected ", list);
  }
  if (rhs.type != lhs.type) {
    return InvalidArgument(op, ": ", rhs.name, " has dtype ", rhs.type, ", expected ", lhs.type,
                           " like ", lhs.name);
  }
  if (result.type != lhs.type && result.type != ffi::DataType::F32) {
    return InvalidArgument(op, ": ", result.name, " has dtype ", result.type, ", expected ",
                           lhs.type, " like ", lhs.name, ", or F32");
  }
  return ffi::Error::Success();
}

}  // namespace jax_convgrad
