// The Python module jax_convgrad._src.runtime._cpu: hands out the handlers and the library's
// versions and properties.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/handlers.h"
#include "cpu/kernels/thin/conv.h"
#include "cpu/onednn/conv_plan.h"
#include "cpu/onednn/errata.h"

namespace nb = nanobind;

namespace {

using jax_convgrad::ConvKind;

ConvKind KindOf(const std::string& op) {
  for (const ConvKind kind : {ConvKind::kFprop, ConvKind::kDgrad, ConvKind::kWgrad}) {
    if (op == jax_convgrad::ConvName(kind)) return kind;
  }
  throw nb::value_error(("expected conv_fprop, conv_dgrad or conv_wgrad, got " + op).c_str());
}

bool IsThin(const std::string& op, int64_t in_channels, int64_t out_channels,
            const std::vector<int64_t>& kernel, const std::vector<int64_t>& strides) {
  const size_t axes = kernel.size();
  if (axes != strides.size() || axes < 1 || axes > jax_convgrad::kMaxSpatialAxes) {
    throw nb::value_error("kernel and strides must have one entry for each of 1 to 3 axes");
  }
  jax_convgrad::ConvProblem problem{};
  problem.kind = KindOf(op);
  problem.geometry.spatial = static_cast<int>(axes);
  problem.geometry.in_channels = in_channels;
  problem.geometry.out_channels = out_channels;
  std::copy(kernel.begin(), kernel.end(), problem.geometry.kernel.begin());
  std::copy(strides.begin(), strides.end(), problem.geometry.strides.begin());
  return jax_convgrad::IsThinConvAtAnySize(problem);
}

}  // namespace

NB_MODULE(_cpu, module) {
  module.def(
      "handlers",
      [] {
        nb::dict handlers;
        handlers["jax_convgrad_conv_fprop"] = nb::capsule(reinterpret_cast<void*>(ConvFprop));
        handlers["jax_convgrad_conv_dgrad"] = nb::capsule(reinterpret_cast<void*>(ConvDgrad));
        handlers["jax_convgrad_conv_wgrad"] = nb::capsule(reinterpret_cast<void*>(ConvWgrad));
        handlers["jax_convgrad_conv_backward"] = nb::capsule(reinterpret_cast<void*>(ConvBackward));
        handlers["jax_convgrad_resample"] = nb::capsule(reinterpret_cast<void*>(Resample));
        return handlers;
      },
      "FFI target names and their handlers, for jax.ffi.register_ffi_target.");
  module.def(
      "versions",
      [] {
        nb::dict versions;
        versions["onednn"] = nb::cast(jax_convgrad::OnednnVersionText().c_str());
        return versions;
      },
      "Versions of the libraries that were loaded.");
  module.def(
      "validated_versions",
      [] {
        nb::dict versions;
        versions["onednn"] = jax_convgrad::kValidatedOnednn;
        return versions;
      },
      "Versions of the libraries, major.minor, that the errata were validated on.");
  module.def("describes_amx_tiles", &jax_convgrad::DescribesAmxTiles,
             "Whether this processor's AMX, if it has one, is described as oneDNN needs it.");
  module.def(
      "supported_dtypes",
      [] {
        nb::list dtypes;
        if (jax_convgrad::OnednnSupports(xla::ffi::DataType::F32)) dtypes.append("float32");
        if (jax_convgrad::OnednnSupports(xla::ffi::DataType::BF16)) dtypes.append("bfloat16");
        return dtypes;
      },
      "dtypes that oneDNN has implementations for on this processor.");
  module.def("multiplies_bfloat16", &jax_convgrad::OnednnMultipliesBf16,
             "Whether oneDNN multiplies bfloat16 on this processor without widening it first.");
  module.def("is_thin", &IsThin, nb::arg("operator"), nb::arg("in_channels"),
             nb::arg("out_channels"), nb::arg("kernel"), nb::arg("strides"),
             "Whether the thin kernels compute every dense float32 problem of these sizes on this "
             "processor, however small.");
}
