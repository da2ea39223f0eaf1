#include "cuda/cudnn/engine_config.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace jax_convgrad {
namespace {

// Created descriptors for cuDNN to fill, and their addresses in the form that cuDNN takes.
struct DescriptorArray {
  std::vector<BackendDescriptor> descriptors;
  std::vector<cudnnBackendDescriptor_t> raw;

  static ffi::ErrorOr<DescriptorArray> Create(const DnnBackend& backend, DescriptorType type,
                                              int64_t count) {
    DescriptorArray array;
    for (int64_t i = 0; i < count; ++i) {
      ffi::ErrorOr<BackendDescriptor> descriptor = BackendDescriptor::Create(backend, type);
      if (descriptor.has_error()) return ffi::Unexpected(descriptor.error());
      array.raw.push_back(descriptor->get());
      array.descriptors.push_back(*std::move(descriptor));
    }
    return array;
  }

  // Fills the array from an attribute, and drops descriptors that stay unused.
  ffi::Error Fill(const BackendDescriptor& from, AttributeName attribute) {
    const ffi::ErrorOr<int64_t> count = from.Get(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                                 static_cast<int64_t>(raw.size()), raw.data());
    if (count.has_error()) return count.error();
    if (*count < 0 || *count > static_cast<int64_t>(raw.size())) {
      return ffi::Error(
          ffi::ErrorCode::kInternal,
          Text(attribute.name, " has ", *count, " elements, expected at most ", raw.size()));
    }
    descriptors.erase(descriptors.begin() + static_cast<std::ptrdiff_t>(*count), descriptors.end());
    return ffi::Error::Success();
  }
};

ffi::ErrorOr<std::vector<int>> ReadNotes(const BackendDescriptor& engine, AttributeName attribute,
                                         cudnnBackendAttributeType_t type) {
  std::vector<int> notes(32);
  const auto capacity = static_cast<int64_t>(notes.size());
  const ffi::ErrorOr<int64_t> count = engine.Get(attribute, type, capacity, notes.data());
  if (count.has_error()) return ffi::Unexpected(count.error());
  notes.resize(static_cast<size_t>(std::clamp<int64_t>(*count, 0, capacity)));
  return notes;
}

ffi::ErrorOr<std::string> ReadName(const DnnBackend& backend, const BackendDescriptor& engine,
                                   const BackendDescriptor& config) {
  const ffi::ErrorOr<int64_t> number =
      engine.Get<int64_t>(JAX_CONVGRAD_NAMED(CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
  if (number.has_error()) return ffi::Unexpected(number.error());
  std::string name = Text("eng", *number);
  ffi::ErrorOr<DescriptorArray> settings = DescriptorArray::Create(
      backend, JAX_CONVGRAD_NAMED(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR), CUDNN_KNOB_TYPE_COUNTS);
  if (settings.has_error()) return ffi::Unexpected(settings.error());
  const ffi::Error filled =
      settings->Fill(config, JAX_CONVGRAD_NAMED(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES));
  if (filled.failure()) return ffi::Unexpected(filled);
  for (const BackendDescriptor& setting : settings->descriptors) {
    int type = 0;
    const auto read = setting.Get(JAX_CONVGRAD_NAMED(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE),
                                  CUDNN_TYPE_KNOB_TYPE, /*capacity=*/1, &type);
    if (read.has_error()) return ffi::Unexpected(read.error());
    const auto value = setting.Get<int64_t>(JAX_CONVGRAD_NAMED(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
    if (value.has_error()) return ffi::Unexpected(value.error());
    name += Text("_k", type, "=", *value);
  }
  return name;
}

bool Contains(const std::vector<int>& notes, int note) {
  return std::find(notes.begin(), notes.end(), note) != notes.end();
}

}  // namespace

bool EngineConfig::Has(cudnnBackendNumericalNote_t note) const {
  return Contains(numerical_notes, note);
}

bool EngineConfig::Has(cudnnBackendBehaviorNote_t note) const {
  return Contains(behavior_notes, note);
}

ffi::ErrorOr<EngineConfig> EngineConfig::Read(const DnnBackend& backend,
                                              const BackendDescriptor& config) {
  ffi::ErrorOr<DescriptorArray> engines = DescriptorArray::Create(
      backend, JAX_CONVGRAD_NAMED(CUDNN_BACKEND_ENGINE_DESCRIPTOR), /*count=*/1);
  if (engines.has_error()) return ffi::Unexpected(engines.error());
  const ffi::Error filled = engines->Fill(config, JAX_CONVGRAD_NAMED(CUDNN_ATTR_ENGINECFG_ENGINE));
  if (filled.failure()) return ffi::Unexpected(filled);
  if (engines->descriptors.empty()) {
    return ffi::Unexpected(
        ffi::Error(ffi::ErrorCode::kInternal, "an engine configuration has no engine"));
  }
  const BackendDescriptor& engine = engines->descriptors[0];

  ffi::ErrorOr<std::string> name = ReadName(backend, engine, config);
  if (name.has_error()) return ffi::Unexpected(name.error());
  auto numerical = ReadNotes(engine, JAX_CONVGRAD_NAMED(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE),
                             CUDNN_TYPE_NUMERICAL_NOTE);
  if (numerical.has_error()) return ffi::Unexpected(numerical.error());
  auto behavior = ReadNotes(engine, JAX_CONVGRAD_NAMED(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE),
                            CUDNN_TYPE_BEHAVIOR_NOTE);
  if (behavior.has_error()) return ffi::Unexpected(behavior.error());
  const ffi::ErrorOr<int64_t> bytes =
      config.Get<int64_t>(JAX_CONVGRAD_NAMED(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE));
  return EngineConfig{*std::move(name), *std::move(numerical), *std::move(behavior),
                      bytes.has_value() ? *bytes : -1};
}

ffi::ErrorOr<std::vector<BackendDescriptor>> QueryHeuristics(const DnnBackend& backend,
                                                             const BackendDescriptor& graph,
                                                             cudnnBackendHeurMode_t mode) {
  const ffi::ErrorOr<BackendDescriptor> heuristics =
      DescriptorBuilder(backend, JAX_CONVGRAD_NAMED(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR))
          .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH), graph)
          .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_ENGINEHEUR_MODE), mode)
          .Build();
  if (heuristics.has_error()) return ffi::Unexpected(heuristics.error());
  constexpr auto results = JAX_CONVGRAD_NAMED(CUDNN_ATTR_ENGINEHEUR_RESULTS);
  const ffi::ErrorOr<int64_t> count =
      heuristics->Get(results, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  if (count.has_error()) return ffi::Unexpected(count.error());
  ffi::ErrorOr<DescriptorArray> configs = DescriptorArray::Create(
      backend, JAX_CONVGRAD_NAMED(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR), *count);
  if (configs.has_error()) return ffi::Unexpected(configs.error());
  const ffi::Error filled = configs->Fill(*heuristics, results);
  if (filled.failure()) return ffi::Unexpected(filled);
  return std::move(configs->descriptors);
}

}  // namespace jax_convgrad
