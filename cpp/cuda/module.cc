// The Python module jax_convgrad._src.runtime._cuda: hands out the handlers, and the plans.

#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "cuda/cudnn/cache.h"
#include "cuda/cudnn/errata.h"
#include "cuda/cudnn/handle.h"
#include "cuda/handlers.h"

namespace nb = nanobind;

namespace {

nb::dict Stages(XLA_FFI_Error* (*initialize)(XLA_FFI_CallFrame*),
                XLA_FFI_Error* (*execute)(XLA_FFI_CallFrame*)) {
  nb::dict stages;
  stages["initialize"] = nb::capsule(reinterpret_cast<void*>(initialize));
  stages["execute"] = nb::capsule(reinterpret_cast<void*>(execute));
  return stages;
}

nb::dict Handlers() {
  // Nothing to prepare.
  nb::dict resample;
  resample["execute"] = nb::capsule(reinterpret_cast<void*>(Resample));
  nb::dict handlers;
  handlers["jax_convgrad_conv_fprop"] = Stages(ConvFpropInitialize, ConvFprop);
  handlers["jax_convgrad_conv_dgrad"] = Stages(ConvDgradInitialize, ConvDgrad);
  handlers["jax_convgrad_conv_wgrad"] = Stages(ConvWgradInitialize, ConvWgrad);
  handlers["jax_convgrad_resample"] = resample;
  return handlers;
}

// Reads what is loaded and loads nothing, so that the question does not decide which cuDNN is used.
nb::dict Versions() {
  using jax_convgrad::DnnLibrary;
  nb::dict versions;
  const auto library = DnnLibrary::GetIfLoaded();
  if (library.has_error()) throw nb::import_error(library.error().message().c_str());
  const std::string dnn =
      *library == nullptr ? "not loaded yet" : DnnLibrary::VersionText((*library)->version());
  versions["cudnn"] = nb::cast(dnn);
  versions["cuda runtime"] = nb::cast(std::to_string(CUDART_VERSION / 1000) + "." +
                                      std::to_string(CUDART_VERSION % 1000 / 10));
  return versions;
}

// The capabilities of every device that this process may use; none if there is no driver.
std::vector<std::pair<int, int>> Capabilities() {
  std::vector<std::pair<int, int>> capabilities;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  for (int device = 0; device < devices; ++device) {
    int major = 0, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess) {
      capabilities.emplace_back(major, minor);
    }
  }
  (void)cudaGetLastError();
  return capabilities;
}

nb::list Plans() {
  nb::list list;
  for (const auto& [text, chosen] : jax_convgrad::ListPlans()) {
    nb::dict plan;
    plan["problem"] = nb::cast(text);
    plan["engine"] = nb::cast(chosen->plan->engine());
    plan["workspace_bytes"] = chosen->plan->workspace_bytes();
    plan["chosen_by"] = nb::cast(chosen->chosen_by);
    plan["microseconds"] = chosen->microseconds < 0 ? nb::object(nb::none())
                                                    : nb::object(nb::float_(chosen->microseconds));
    plan["note"] = nb::cast(chosen->note);
    nb::list tried;
    for (const jax_convgrad::TriedEngine& engine : chosen->tried) {
      nb::dict entry;
      entry["engine"] = nb::cast(engine.engine);
      entry["workspace_bytes"] = engine.workspace_bytes < 0
                                     ? nb::object(nb::none())
                                     : nb::object(nb::int_(engine.workspace_bytes));
      entry["microseconds"] = engine.microseconds < 0 ? nb::object(nb::none())
                                                      : nb::object(nb::float_(engine.microseconds));
      entry["failure"] = nb::cast(engine.failure);
      tried.append(entry);
    }
    plan["tried"] = tried;
    list.append(plan);
  }
  return list;
}

}  // namespace

NB_MODULE(_cuda, module) {
  module.def("handlers", Handlers,
             "FFI target names and the stages of their handlers, for jax.ffi.register_ffi_target.");
  module.def("versions", Versions, "Versions of the libraries that were loaded.");
  module.def(
      "validated_versions",
      [] {
        nb::dict versions;
        versions["cudnn"] = jax_convgrad::kValidatedCudnn;
        return versions;
      },
      "Versions of the libraries, major.minor, that the errata were validated on.");
  module.def(
      "supported_dtypes",
      [] { return std::vector<std::string>{"float16", "bfloat16", "float32", "float64"}; },
      "dtypes that the handlers take.");
  module.def("capabilities", Capabilities,
             "Compute capability (major, minor) of every device, none where there is no driver.");
  module.attr("min_capability") =
      std::pair(JAX_CONVGRAD_MIN_CAPABILITY / 10, JAX_CONVGRAD_MIN_CAPABILITY % 10);
  module.attr("workspace_alignment") = jax_convgrad::kWorkspaceAlignment;
  module.def("set_cudnn_path", &jax_convgrad::DnnLibrary::SetPath, nb::arg("path"),
             "The cuDNN to open where none is in the process yet.");

  module.def("plans", Plans, "Every plan since they were cleared, the most recently used first.");
  module.def("load_choices", &jax_convgrad::LoadChoices, nb::arg("choices"),
             "Pairs of a problem, as plans() shows it, and the engine to take for it.");
  module.def("loaded_choices", &jax_convgrad::LoadedChoices,
             "The pairs that load_choices was given, less those cleared since.");
  module.def("clear_plans", &jax_convgrad::ClearPlans,
             "Forgets loaded choices, and plans except those of programs lowered before.");
  module.def("set_max_plans", &jax_convgrad::SetMaxPlans, nb::arg("count"),
             "How many plans are kept; those that leave are made again with the same engine.");
  module.def("generation", &jax_convgrad::Generation,
             "How often plans were cleared; every call on CUDA carries this number.");
}
