#include "ffi/resample.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "ffi/checked.h"
#include "ffi/error.h"

namespace jax_convgrad {
namespace {

using Dims = ffi::Span<const int64_t>;

constexpr char kOp[] = "resample";

bool IsFloat(ffi::DataType type) {
  return type == ffi::DataType::F16 || type == ffi::DataType::BF16 || type == ffi::DataType::F32 ||
         type == ffi::DataType::F64;
}

ffi::Error CheckAxes(const ResampleConfig& config, Dims x) {
  const Dims axes = config.axes;
  if (axes.size() < 1 || axes.size() > kMaxResampledAxes) {
    return InvalidArgument(kOp, ": axes is ", ListText(axes), ", expected 1 to ", kMaxResampledAxes,
                           " entries");
  }
  int64_t min_axis = 0;
  for (int64_t axis : axes) {
    if (axis < min_axis || axis >= static_cast<int64_t>(x.size())) {
      return InvalidArgument(kOp, ": axes is ", ListText(axes),
                             ", expected ascending positions in x, which has shape ", ListText(x));
    }
    min_axis = axis + 1;
  }
  return ffi::Error::Success();
}

ffi::Error CheckResult(const ResampleConfig& config, const ffi::AnyBuffer& x,
                       const ffi::AnyBuffer& y) {
  if (y.element_type() != x.element_type()) {
    return InvalidArgument(kOp, ": y has dtype ", y.element_type(), ", expected ", x.element_type(),
                           " like x");
  }
  const Dims x_dims = x.dimensions(), y_dims = y.dimensions();
  bool same = y_dims.size() == x_dims.size();
  for (size_t i = 0, next = 0; same && i < x_dims.size(); ++i) {
    const bool resampled =
        next < config.axes.size() && config.axes[next] == static_cast<int64_t>(i);
    if (resampled) {
      ++next;
    } else {
      same = y_dims[i] == x_dims[i];
    }
  }
  if (same) return ffi::Error::Success();
  return InvalidArgument(kOp, ": y has shape ", ListText(y_dims), ", expected that of x, ",
                         ListText(x_dims), ", except for the axes ", ListText(config.axes));
}

// Checks the table of one axis.
ffi::ErrorOr<ResampleAxis> MakeAxis(int64_t axis, int64_t in, int64_t out, ffi::DataType x_type,
                                    const ffi::AnyBuffer& start, const ffi::AnyBuffer& weights) {
  if (start.element_type() != ffi::DataType::S32) {
    return ffi::Unexpected(InvalidArgument(kOp, ": start of axis ", axis, " has dtype ",
                                           start.element_type(), ", expected ",
                                           ffi::DataType::S32));
  }
  const ffi::DataType type = x_type == ffi::DataType::F64 ? ffi::DataType::F64 : ffi::DataType::F32;
  if (weights.element_type() != type) {
    return ffi::Unexpected(InvalidArgument(kOp, ": weights of axis ", axis, " have dtype ",
                                           weights.element_type(), ", expected ", type,
                                           " for x of dtype ", x_type));
  }
  const Dims start_dims = start.dimensions(), weights_dims = weights.dimensions();
  if (start_dims.size() != 1 || start_dims[0] != out) {
    return ffi::Unexpected(InvalidArgument(kOp, ": start of axis ", axis, " has shape ",
                                           ListText(start_dims), ", expected (", out,
                                           ",) like that axis of y"));
  }
  if (weights_dims.size() != 2 || weights_dims[0] != out) {
    return ffi::Unexpected(InvalidArgument(kOp, ": weights of axis ", axis, " have shape ",
                                           ListText(weights_dims), ", expected (", out,
                                           ", taps) with that axis of y first"));
  }
  const int64_t taps = weights_dims[1];
  if (taps > in && out > 0) {
    return ffi::Unexpected(InvalidArgument(kOp, ": weights of axis ", axis, " have shape ",
                                           ListText(weights_dims), ": more taps than the ", in,
                                           " elements of that axis of x"));
  }
  if (in > std::numeric_limits<int32_t>::max() || out > std::numeric_limits<int32_t>::max()) {
    return ffi::Unexpected(InvalidArgument(kOp, ": axis ", axis, " goes from ", in, " to ", out,
                                           " elements, more than its int32 table can count"));
  }
  if (ByteSizeOverflows(weights_dims)) {
    return ffi::Unexpected(InvalidArgument(kOp, ": the size of the weights of axis ", axis, " ",
                                           ListText(weights_dims), " overflows"));
  }
  return ResampleAxis{true,
                      in,
                      out,
                      taps,
                      static_cast<const int32_t*>(start.untyped_data()),
                      weights.untyped_data()};
}

int64_t Product(Dims dims, int64_t begin, int64_t end) {
  int64_t product = 1;
  for (int64_t i = begin; i < end; ++i) product *= dims[static_cast<size_t>(i)];
  return product;
}

bool IsEmpty(Dims dims) { return std::find(dims.begin(), dims.end(), 0) != dims.end(); }

}  // namespace

ffi::ErrorOr<ResampleForm> MakeResampleForm(const ResampleConfig& config, const ffi::AnyBuffer& x,
                                            const ffi::RemainingArgs& tables,
                                            const ffi::AnyBuffer& y, int64_t few_inner_bytes) {
  const Dims dims = x.dimensions();
  if (!IsFloat(x.element_type())) {
    return ffi::Unexpected(InvalidArgument(kOp, ": x has dtype ", x.element_type(),
                                           ", expected F16, BF16, F32 or F64"));
  }
  const ffi::Error axes_error = CheckAxes(config, dims);
  if (axes_error.failure()) return ffi::Unexpected(axes_error);
  const ffi::Error result_error = CheckResult(config, x, y);
  if (result_error.failure()) return ffi::Unexpected(result_error);
  if (tables.size() != 2 * config.axes.size()) {
    return ffi::Unexpected(InvalidArgument(
        kOp, ": got ", tables.size(), " tables, expected start and weights for each of the axes ",
        ListText(config.axes)));
  }
  for (const ffi::AnyBuffer* array : {&x, &y}) {
    if (ByteSizeOverflows(array->dimensions())) {
      return ffi::Unexpected(InvalidArgument(kOp, ": the size of ", array == &x ? "x " : "y ",
                                             ListText(array->dimensions()), " overflows"));
    }
  }

  const int count = static_cast<int>(config.axes.size());
  std::array<ResampleAxis, kMaxResampledAxes> axes;
  for (int i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i);
    const int64_t axis = config.axes[at];
    const ffi::ErrorOr<ffi::AnyBuffer> start = tables.get<ffi::AnyBuffer>(2 * at);
    if (start.has_error()) return ffi::Unexpected(start.error());
    const ffi::ErrorOr<ffi::AnyBuffer> weights = tables.get<ffi::AnyBuffer>(2 * at + 1);
    if (weights.has_error()) return ffi::Unexpected(weights.error());
    const size_t position = static_cast<size_t>(axis);
    const ffi::ErrorOr<ResampleAxis> made = MakeAxis(axis, dims[position], y.dimensions()[position],
                                                     x.element_type(), *start, *weights);
    if (made.has_error()) return ffi::Unexpected(made.error());
    axes[at] = *made;
  }

  ResampleForm form;
  if (IsEmpty(y.dimensions())) return form;
  for (const ResampleAxis& axis : axes) {
    if (axis.resampled && axis.taps == 0) {
      form.work = ResampleForm::Work::kZeros;
      return form;
    }
  }
  // From here on no array is empty, so no product of sizes overflows.
  form.work = ResampleForm::Work::kBands;
  // Elements before the first resampled axis and between two of them.
  std::array<int64_t, kMaxResampledAxes> between{1, 1, 1};
  int64_t previous = 0;
  for (size_t i = 0; i < config.axes.size(); ++i) {
    between[i] = Product(dims, previous, config.axes[i]);
    previous = config.axes[i] + 1;
  }
  const int64_t inner = Product(dims, previous, static_cast<int64_t>(dims.size()));

  form.inner = inner;
  if (count == 1) {
    const int64_t inner_bytes = inner * static_cast<int64_t>(ffi::ByteWidth(x.element_type()));
    if (inner_bytes < few_inner_bytes) {
      form.height.in = form.height.out = between[0];
      form.width = axes[0];
    } else {
      form.batch[0] = between[0];
      form.height = axes[0];
    }
  } else {
    std::copy_n(between.begin(), count, form.batch);
    if (count == 3) form.depth = axes[0];
    form.height = axes[static_cast<size_t>(count - 2)];
    form.width = axes[static_cast<size_t>(count - 1)];
  }

  // From the innermost place outwards; batch[1] lies outside the last axis but one.
  const auto set_strides = [&](const auto& size, int64_t& plane, int64_t& row,
                               int64_t (&batch)[3]) {
    int64_t stride = size(form.width) * inner;
    if (count == 3) {
      batch[2] = stride;
      stride *= form.batch[2];
      row = stride;
      stride *= size(form.height);
      batch[1] = stride;
      stride *= form.batch[1];
      plane = stride;
      stride *= size(form.depth);
    } else {
      batch[1] = stride;
      stride *= form.batch[1];
      row = stride;
      stride *= size(form.height);
    }
    batch[0] = stride;
  };
  set_strides([](const ResampleAxis& a) { return a.in; }, form.x_plane, form.x_row, form.x_batch);
  set_strides([](const ResampleAxis& a) { return a.out; }, form.y_plane, form.y_row, form.y_batch);
  return form;
}

std::string ResampleText(const ResampleConfig& config, const ffi::AnyBuffer& x,
                         const ffi::AnyBuffer& y) {
  return Text("x ", ListText(x.dimensions()), " to y ", ListText(y.dimensions()), ", axes ",
              ListText(config.axes), ", ", x.element_type());
}

}  // namespace jax_convgrad
