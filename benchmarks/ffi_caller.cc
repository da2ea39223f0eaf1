// Calls an XLA FFI handler as XLA does, on a stream of the caller's choice. For stress_threads.py,
// which needs several streams in one process, where JAX has one per device.
//
// The library sees only what the handlers of this package ask their caller for: errors, the stream,
// the device and, on a CPU, futures and a thread pool, which here is the calling thread: whatever a
// future is about is done when the handler returns.

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

// Runs one stage of a handler. The first `operands` of the buffers are its operands, the others its
// results; the attributes are sorted by name. Returns 0, or an XLA_FFI_Error_Code and its text.
int32_t CallHandler(XLA_FFI_Handler* handler, int32_t stage, void* stream, int32_t device,
                    int64_t operands, int64_t buffer_count, const CallerBuffer* buffers,
                    int64_t attribute_count, const CallerAttribute* attributes, char* text,
                    size_t text_size) {
  std::vector<XLA_FFI_Buffer> arrays(buffer_count);
  std::vector<void*> pointers(buffer_count);
  for (int64_t i = 0; i < buffer_count; ++i) {
    arrays[i].struct_size = XLA_FFI_Buffer_STRUCT_SIZE;
    arrays[i].dtype = static_cast<XLA_FFI_DataType>(buffers[i].dtype);
    arrays[i].data = buffers[i].data;
    arrays[i].rank = buffers[i].rank;
    arrays[i].dims = buffers[i].dims;
    pointers[i] = &arrays[i];
  }
  std::vector<XLA_FFI_ArgType> argument_types(operands, XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> result_types(buffer_count - operands, XLA_FFI_RetType_BUFFER);

  std::vector<XLA_FFI_ByteSpan> names(attribute_count);
  std::vector<XLA_FFI_ByteSpan*> name_pointers(attribute_count);
  std::vector<XLA_FFI_Scalar> scalars(attribute_count);
  std::vector<XLA_FFI_Array> lists(attribute_count);
  std::vector<XLA_FFI_ByteSpan> texts(attribute_count);
  std::vector<XLA_FFI_AttrType> attribute_types(attribute_count);
  std::vector<void*> values(attribute_count);
  for (int64_t i = 0; i < attribute_count; ++i) {
    const CallerAttribute& a = attributes[i];
    const auto dtype = static_cast<XLA_FFI_DataType>(a.dtype);
    names[i] = {a.name, std::strlen(a.name)};
    name_pointers[i] = &names[i];
    scalars[i] = {dtype, a.data};
    lists[i] = {dtype, static_cast<size_t>(a.size), a.data};
    texts[i] = {static_cast<const char*>(a.data), static_cast<size_t>(a.size)};
    attribute_types[i] = static_cast<XLA_FFI_AttrType>(a.kind);
    values[i] = a.kind == XLA_FFI_AttrType_ARRAY    ? static_cast<void*>(&lists[i])
                : a.kind == XLA_FFI_AttrType_STRING ? static_cast<void*>(&texts[i])
                                                    : static_cast<void*>(&scalars[i]);
  }

  Context context = {stream, device};
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &Api();
  frame.ctx = reinterpret_cast<decltype(frame.ctx)>(&context);
  frame.stage = static_cast<XLA_FFI_ExecutionStage>(stage);
  frame.args.struct_size = XLA_FFI_Args_STRUCT_SIZE;
  frame.args.size = operands;
  frame.args.types = argument_types.data();
  frame.args.args = pointers.data();
  frame.rets.struct_size = XLA_FFI_Rets_STRUCT_SIZE;
  frame.rets.size = buffer_count - operands;
  frame.rets.types = result_types.data();
  frame.rets.rets = pointers.data() + operands;
  frame.attrs.struct_size = XLA_FFI_Attrs_STRUCT_SIZE;
  frame.attrs.size = attribute_count;
  frame.attrs.types = attribute_types.data();
  frame.attrs.names = name_pointers.data();
  frame.attrs.attrs = values.data();

  XLA_FFI_Error* error = handler(&frame);
  if (frame.future != nullptr) {
    error = frame.future->error;
    delete frame.future;
  }
  if (error == nullptr) return XLA_FFI_Error_Code_OK;
  const int32_t code = error->code;
  std::snprintf(text, text_size, "%s", error->message.c_str());
  delete error;
  return code;
}

}  // extern "C"
