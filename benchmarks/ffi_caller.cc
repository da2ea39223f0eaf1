// Calls an XLA FFI handler as XLA does, on a stream of the caller's choice. For stress_threads.py,
// which needs several streams in one process, where JAX has one per device, and for
// handler_host_time.py, which measures what a call takes on the host.
//
// The library sees only what the handlers of this package ask their caller for: errors, the stream,
// the device and, on a CPU, futures and a thread pool, which here is the calling thread: whatever a
// future is about is done when the handler returns.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

struct XLA_FFI_Error {
  XLA_FFI_Error_Code code;
  std::string message;
};

struct XLA_FFI_Future {
  XLA_FFI_Error* error = nullptr;
};

namespace {

// What XLA_FFI_ExecutionContext points to here.
struct Context {
  void* stream;
  int32_t device;
};

const Context& Of(const void* context) { return *static_cast<const Context*>(context); }

XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{args->errc, args->message};
}

XLA_FFI_Error* GetStream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = Of(args->ctx).stream;
  return nullptr;
}

XLA_FFI_Error* GetDevice(XLA_FFI_DeviceOrdinal_Get_Args* args) {
  args->device_ordinal = Of(args->ctx).device;
  return nullptr;
}

XLA_FFI_Error* Schedule(XLA_FFI_ThreadPool_Schedule_Args* args) {
  args->task(args->data);
  return nullptr;
}

XLA_FFI_Error* CountThreads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  *args->num_threads = 1;
  return nullptr;
}

XLA_FFI_Error* CreateFuture(XLA_FFI_Future_Create_Args* args) {
  args->future = new XLA_FFI_Future;
  return nullptr;
}

XLA_FFI_Error* SetFutureAvailable(XLA_FFI_Future_SetAvailable_Args*) { return nullptr; }

XLA_FFI_Error* SetFutureError(XLA_FFI_Future_SetError_Args* args) {
  args->future->error = args->error;
  return nullptr;
}

const XLA_FFI_Api& Api() {
  static const XLA_FFI_Api api = [] {
    XLA_FFI_Api a = {};
    a.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    a.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
    a.api_version.major_version = XLA_FFI_API_MAJOR;
    a.api_version.minor_version = XLA_FFI_API_MINOR;
    a.XLA_FFI_Error_Create = CreateError;
    a.XLA_FFI_Future_Create = CreateFuture;
    a.XLA_FFI_Future_SetAvailable = SetFutureAvailable;
    a.XLA_FFI_Future_SetError = SetFutureError;
    a.XLA_FFI_Stream_Get = GetStream;
    a.XLA_FFI_DeviceOrdinal_Get = GetDevice;
    a.XLA_FFI_ThreadPool_Schedule = Schedule;
    a.XLA_FFI_ThreadPool_NumThreads = CountThreads;
    return a;
  }();
  return api;
}

}  // namespace

extern "C" {

// Both as ffi_caller.py declares them.
struct CallerBuffer {
  void* data;
  int32_t dtype;  // XLA_FFI_DataType
  int64_t rank;
  int64_t* dims;
};

struct CallerAttribute {
  const char* name;
  int32_t kind;   // XLA_FFI_AttrType: an array, a scalar or a string
  int32_t dtype;  // of the first two
  int64_t size;
  void* data;
};

}  // extern "C"

namespace {

// A call, to be made again and again. The first `operands` of the buffers are its operands, the
// others its results; the attributes are sorted by name.
class Call {
 public:
  Call(int32_t stage, void* stream, int32_t device, int64_t operands, int64_t buffer_count,
       const CallerBuffer* buffers, int64_t attribute_count, const CallerAttribute* attributes)
      : context_{stream, device},
        arrays_(buffer_count),
        pointers_(buffer_count),
        argument_types_(operands, XLA_FFI_ArgType_BUFFER),
        result_types_(buffer_count - operands, XLA_FFI_RetType_BUFFER),
        names_(attribute_count),
        name_pointers_(attribute_count),
        scalars_(attribute_count),
        lists_(attribute_count),
        texts_(attribute_count),
        attribute_types_(attribute_count),
        values_(attribute_count) {
    for (int64_t i = 0; i < buffer_count; ++i) {
      arrays_[i].struct_size = XLA_FFI_Buffer_STRUCT_SIZE;
      arrays_[i].dtype = static_cast<XLA_FFI_DataType>(buffers[i].dtype);
      arrays_[i].data = buffers[i].data;
      arrays_[i].rank = buffers[i].rank;
      arrays_[i].dims = buffers[i].dims;
      pointers_[i] = &arrays_[i];
    }
    for (int64_t i = 0; i < attribute_count; ++i) {
      const CallerAttribute& a = attributes[i];
      const auto dtype = static_cast<XLA_FFI_DataType>(a.dtype);
      names_[i] = {a.name, std::strlen(a.name)};
      name_pointers_[i] = &names_[i];
      scalars_[i] = {dtype, a.data};
      lists_[i] = {dtype, static_cast<size_t>(a.size), a.data};
      texts_[i] = {static_cast<const char*>(a.data), static_cast<size_t>(a.size)};
      attribute_types_[i] = static_cast<XLA_FFI_AttrType>(a.kind);
      values_[i] = a.kind == XLA_FFI_AttrType_ARRAY    ? static_cast<void*>(&lists_[i])
                   : a.kind == XLA_FFI_AttrType_STRING ? static_cast<void*>(&texts_[i])
                                                       : static_cast<void*>(&scalars_[i]);
    }
    frame_.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame_.api = &Api();
    frame_.ctx = reinterpret_cast<decltype(frame_.ctx)>(&context_);
    frame_.stage = static_cast<XLA_FFI_ExecutionStage>(stage);
    frame_.args.struct_size = XLA_FFI_Args_STRUCT_SIZE;
    frame_.args.size = operands;
    frame_.args.types = argument_types_.data();
    frame_.args.args = pointers_.data();
    frame_.rets.struct_size = XLA_FFI_Rets_STRUCT_SIZE;
    frame_.rets.size = buffer_count - operands;
    frame_.rets.types = result_types_.data();
    frame_.rets.rets = pointers_.data() + operands;
    frame_.attrs.struct_size = XLA_FFI_Attrs_STRUCT_SIZE;
    frame_.attrs.size = attribute_count;
    frame_.attrs.types = attribute_types_.data();
    frame_.attrs.names = name_pointers_.data();
    frame_.attrs.attrs = values_.data();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  XLA_FFI_Error* Run(XLA_FFI_Handler* handler) {
    frame_.future = nullptr;
    XLA_FFI_Error* error = handler(&frame_);
    if (frame_.future != nullptr) {
      error = frame_.future->error;
      delete frame_.future;
    }
    return error;
  }

 private:
  Context context_;
  std::vector<XLA_FFI_Buffer> arrays_;
  std::vector<void*> pointers_;
  std::vector<XLA_FFI_ArgType> argument_types_;
  std::vector<XLA_FFI_RetType> result_types_;
  std::vector<XLA_FFI_ByteSpan> names_;
  std::vector<XLA_FFI_ByteSpan*> name_pointers_;
  std::vector<XLA_FFI_Scalar> scalars_;
  std::vector<XLA_FFI_Array> lists_;
  std::vector<XLA_FFI_ByteSpan> texts_;
  std::vector<XLA_FFI_AttrType> attribute_types_;
  std::vector<void*> values_;
  XLA_FFI_CallFrame frame_ = {};
};

// 0, or the error's code and its text.
int32_t Outcome(XLA_FFI_Error* error, char* text, size_t text_size) {
  if (error == nullptr) return XLA_FFI_Error_Code_OK;
  const int32_t code = error->code;
  std::snprintf(text, text_size, "%s", error->message.c_str());
  delete error;
  return code;
}

}  // namespace

extern "C" {

// Runs one stage of a handler. Returns 0, or an XLA_FFI_Error_Code and its text.
int32_t CallHandler(XLA_FFI_Handler* handler, int32_t stage, void* stream, int32_t device,
                    int64_t operands, int64_t buffer_count, const CallerBuffer* buffers,
                    int64_t attribute_count, const CallerAttribute* attributes, char* text,
                    size_t text_size) {
  Call call(stage, stream, device, operands, buffer_count, buffers, attribute_count, attributes);
  return Outcome(call.Run(handler), text, text_size);
}

XLA_FFI_Error* EmptyHandler(XLA_FFI_CallFrame*) { return nullptr; }

// The same `runs` times, up to the first error, and the seconds that all of them took. What has
// been put on the stream is not waited for.
int32_t TimeHandler(XLA_FFI_Handler* handler, int32_t stage, void* stream, int32_t device,
                    int64_t operands, int64_t buffer_count, const CallerBuffer* buffers,
                    int64_t attribute_count, const CallerAttribute* attributes, char* text,
                    size_t text_size, int64_t runs, double* seconds) {
  Call call(stage, stream, device, operands, buffer_count, buffers, attribute_count, attributes);
  XLA_FFI_Error* error = nullptr;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t run = 0; run < runs && error == nullptr; ++run) error = call.Run(handler);
  const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - start;
  *seconds = duration.count();
  return Outcome(error, text, text_size);
}

}  // extern "C"
