// The Python module jax_convgrad._src.runtime._cpu: hands out the handlers and what the library
// says of itself.

#include <nanobind/nanobind.h>

#include "cpu/handlers.h"
#include "cpu/onednn/conv_plan.h"
#include "cpu/onednn/errata.h"

namespace nb = nanobind;

NB_MODULE(_cpu, module) {
  module.def(
      "handlers",
      [] {
        nb::dict handlers;
        handlers["jax_convgrad_conv_fprop"] = nb::capsule(reinterpret_cast<void*>(ConvFprop));
        handlers["jax_convgrad_conv_dgrad"] = nb::capsule(reinterpret_cast<void*>(ConvDgrad));
        handlers["jax_convgrad_conv_wgrad"] = nb::capsule(reinterpret_cast<void*>(ConvWgrad));
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
  module.def(
      "supported_dtypes",
      [] {
        nb::list dtypes;
        if (jax_convgrad::OnednnSupports(xla::ffi::DataType::F32)) dtypes.append("float32");
        if (jax_convgrad::OnednnSupports(xla::ffi::DataType::BF16)) dtypes.append("bfloat16");
        return dtypes;
      },
      "dtypes that oneDNN has implementations for on this processor.");
}
