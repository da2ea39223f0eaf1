#include "cuda/cudnn/backend_descriptor.h"

#include <dlfcn.h>

#include <array>

#include "cuda/cudnn/handle.h"

namespace jax_convgrad {
namespace {

ffi::ErrorCode CodeOf(cudnnStatus_t status) {
  if (IsOutOfMemory(status)) return ffi::ErrorCode::kResourceExhausted;
  // The categories of cuDNN 9: 2xxx bad parameter, 3xxx not supported.
  switch (static_cast<int>(status) / 1000) {
    case 2:
      return ffi::ErrorCode::kInvalidArgument;
    case 3:
      return ffi::ErrorCode::kUnimplemented;
    default:
      return ffi::ErrorCode::kInternal;
  }
}

struct Resolved {
  DnnBackend backend;
  const char* missing = nullptr;  // the first function that the library lacks
};

Resolved Resolve(void* dlhandle) {
  Resolved resolved;
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(dlhandle, name));
    if (*function == nullptr && resolved.missing == nullptr) resolved.missing = name;
  };
  DnnBackend& backend = resolved.backend;
  find("cudnnBackendCreateDescriptor", &backend.create_descriptor);
  find("cudnnBackendDestroyDescriptor", &backend.destroy_descriptor);
  find("cudnnBackendSetAttribute", &backend.set_attribute);
  find("cudnnBackendGetAttribute", &backend.get_attribute);
  find("cudnnBackendFinalize", &backend.finalize);
  find("cudnnBackendExecute", &backend.execute);
  find("cudnnGetErrorString", &backend.error_string);
  find("cudnnGetLastErrorString", &backend.last_error_string);
  return resolved;
}

}  // namespace

ffi::ErrorOr<const DnnBackend*> DnnBackend::Get() {
  const ffi::ErrorOr<const DnnLibrary*> library = DnnLibrary::Get();
  if (library.has_error()) return ffi::Unexpected(library.error());
  // A process has one cuDNN from here on.
  static const Resolved resolved = Resolve((*library)->dlhandle());
  if (resolved.missing == nullptr) return &resolved.backend;
  return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                                    Text("cuDNN ", DnnLibrary::VersionText((*library)->version()),
                                         " has no ", resolved.missing)));
}

ffi::Error DnnBackend::ErrorOf(const std::string& what, cudnnStatus_t status) const {
  std::array<char, 16384> words{};
  last_error_string(words.data(), words.size() - 1);
  return ffi::Error(CodeOf(status), Text(what, ": ", error_string(status),
                                         words[0] == '\0' ? "" : ": ", words.data()));
}

ffi::ErrorOr<BackendDescriptor> BackendDescriptor::Create(const DnnBackend& backend,
                                                          DescriptorType type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  const cudnnStatus_t status = backend.create_descriptor(type.value, &descriptor);
  if (status == CUDNN_STATUS_SUCCESS) return BackendDescriptor(backend, type, descriptor);
  return ffi::Unexpected(
      backend.ErrorOf(Text("cudnnBackendCreateDescriptor(", type.name, ")"), status));
}

BackendDescriptor::BackendDescriptor(BackendDescriptor&& other) noexcept
    : backend_(other.backend_),
      type_(other.type_),
      descriptor_(std::exchange(other.descriptor_, nullptr)) {}

BackendDescriptor& BackendDescriptor::operator=(BackendDescriptor&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(type_, other.type_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

BackendDescriptor::~BackendDescriptor() {
  if (descriptor_ != nullptr) (void)backend_->destroy_descriptor(descriptor_);
}

ffi::Error BackendDescriptor::Set(AttributeName attribute, cudnnBackendAttributeType_t type,
                                  int64_t count, const void* elements) {
  const cudnnStatus_t status =
      backend_->set_attribute(descriptor_, attribute.value, type, count, elements);
  if (status == CUDNN_STATUS_SUCCESS) return ffi::Error::Success();
  return backend_->ErrorOf(Text("cudnnBackendSetAttribute(", type_.name, ", ", attribute.name, ")"),
                           status);
}

ffi::Error BackendDescriptor::Finalize() {
  const cudnnStatus_t status = backend_->finalize(descriptor_);
  if (status == CUDNN_STATUS_SUCCESS) return ffi::Error::Success();
  return backend_->ErrorOf(Text("cudnnBackendFinalize(", type_.name, ")"), status);
}

ffi::ErrorOr<int64_t> BackendDescriptor::Get(AttributeName attribute,
                                             cudnnBackendAttributeType_t type, int64_t capacity,
                                             void* elements) const {
  int64_t count = 0;
  const cudnnStatus_t status =
      backend_->get_attribute(descriptor_, attribute.value, type, capacity, &count, elements);
  if (status == CUDNN_STATUS_SUCCESS) return count;
  return ffi::Unexpected(backend_->ErrorOf(
      Text("cudnnBackendGetAttribute(", type_.name, ", ", attribute.name, ")"), status));
}

}  // namespace jax_convgrad
