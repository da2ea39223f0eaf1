// cuDNN's backend API: its entry points, and its descriptors as objects. Errors are values whose
// text has the call, the descriptor, the attribute, the status and the library's last error string.

#ifndef JAX_CONVGRAD_CUDA_CUDNN_BACKEND_DESCRIPTOR_H_
#define JAX_CONVGRAD_CUDA_CUDNN_BACKEND_DESCRIPTOR_H_

#include <cudnn_graph.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "ffi/error.h"

namespace jax_convgrad {

// One of cuDNN's constants together with its name.
template <typename Constant>
struct Named {
  Constant value;
  const char* name;
};
#define JAX_CONVGRAD_NAMED(constant) \
  ::jax_convgrad::Named<decltype(constant)> { constant, #constant }

using DescriptorType = Named<cudnnBackendDescriptorType_t>;
using AttributeName = Named<cudnnBackendAttributeName_t>;

struct DnnBackend {
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
  decltype(&cudnnGetErrorString) error_string = nullptr;
  decltype(&cudnnGetLastErrorString) last_error_string = nullptr;

  // The entry points of the library that DnnLibrary has opened, or opens now.
  static ffi::ErrorOr<const DnnBackend*> Get();

  // The error of `what`, which was called and returned `status`, not success. Call it before any
  // other call: it takes the library's last error string.
  ffi::Error ErrorOf(const std::string& what, cudnnStatus_t status) const;
};

// The attribute type under which cuDNN takes and gives elements of type T.
template <typename T>
constexpr cudnnBackendAttributeType_t AttributeTypeOf() {
  if constexpr (std::is_same_v<T, int64_t>) return CUDNN_TYPE_INT64;
  if constexpr (std::is_same_v<T, float>) return CUDNN_TYPE_FLOAT;
  if constexpr (std::is_same_v<T, double>) return CUDNN_TYPE_DOUBLE;
  if constexpr (std::is_same_v<T, void*>) return CUDNN_TYPE_VOID_PTR;
  if constexpr (std::is_same_v<T, cudnnHandle_t>) return CUDNN_TYPE_HANDLE;
  if constexpr (std::is_same_v<T, cudnnDataType_t>) return CUDNN_TYPE_DATA_TYPE;
  if constexpr (std::is_same_v<T, cudnnConvolutionMode_t>) return CUDNN_TYPE_CONVOLUTION_MODE;
  if constexpr (std::is_same_v<T, cudnnBackendHeurMode_t>) return CUDNN_TYPE_HEUR_MODE;
}

// One of cuDNN's descriptors, destroyed with the object.
class BackendDescriptor {
 public:
  static ffi::ErrorOr<BackendDescriptor> Create(const DnnBackend& backend, DescriptorType type);

  BackendDescriptor(BackendDescriptor&& other) noexcept;
  BackendDescriptor& operator=(BackendDescriptor&& other) noexcept;
  ~BackendDescriptor();

  cudnnBackendDescriptor_t get() const { return descriptor_; }

  ffi::Error Set(AttributeName attribute, cudnnBackendAttributeType_t type, int64_t count,
                 const void* elements);
  ffi::Error Finalize();

  // Copies up to `capacity` elements of an attribute and returns their total number, which may be
  // larger. Elements that are descriptors must have been created before.
  ffi::ErrorOr<int64_t> Get(AttributeName attribute, cudnnBackendAttributeType_t type,
                            int64_t capacity, void* elements) const;

  // An attribute with a single element.
  template <typename T>
  ffi::ErrorOr<T> Get(AttributeName attribute) const {
    T element{};
    const ffi::ErrorOr<int64_t> count = Get(attribute, AttributeTypeOf<T>(), 1, &element);
    if (count.has_error()) return ffi::Unexpected(count.error());
    return element;
  }

 private:
  BackendDescriptor(const DnnBackend& backend, DescriptorType type,
                    cudnnBackendDescriptor_t descriptor)
      : backend_(&backend), type_(type), descriptor_(descriptor) {}

  const DnnBackend* backend_;
  DescriptorType type_;
  cudnnBackendDescriptor_t descriptor_;
};

// Makes a descriptor: creates it, sets what Set() is called with and finalizes it, up to the first
// error.
class DescriptorBuilder {
 public:
  DescriptorBuilder(const DnnBackend& backend, DescriptorType type)
      : descriptor_(BackendDescriptor::Create(backend, type)) {}

  template <typename T>
  DescriptorBuilder& Set(AttributeName attribute, const T* elements, int64_t count) {
    return Set(attribute, AttributeTypeOf<T>(), count, elements);
  }
  template <typename T>
  DescriptorBuilder& Set(AttributeName attribute, const T& element) {
    return Set(attribute, AttributeTypeOf<T>(), 1, &element);
  }
  DescriptorBuilder& Set(AttributeName attribute, const BackendDescriptor& element) {
    const cudnnBackendDescriptor_t raw = element.get();
    return Set(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
  }

  ffi::ErrorOr<BackendDescriptor> Build() {
    if (descriptor_.has_error()) return std::move(descriptor_);
    if (error_.success()) error_ = descriptor_->Finalize();
    if (error_.failure()) return ffi::Unexpected(error_);
    return std::move(descriptor_);
  }

 private:
  DescriptorBuilder& Set(AttributeName attribute, cudnnBackendAttributeType_t type, int64_t count,
                         const void* elements) {
    if (descriptor_.has_value() && error_.success()) {
      error_ = descriptor_->Set(attribute, type, count, elements);
    }
    return *this;
  }

  ffi::ErrorOr<BackendDescriptor> descriptor_;
  ffi::Error error_ = ffi::Error::Success();
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CUDNN_BACKEND_DESCRIPTOR_H_
