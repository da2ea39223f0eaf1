// Small helpers that turn values into the text of an ffi::Error. Errors are values everywhere in
// this code base: XLA reports an exception that leaves a handler as UNKNOWN and loses its code.

#ifndef JAX_CONVGRAD_FFI_ERROR_H_
#define JAX_CONVGRAD_FFI_ERROR_H_

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

namespace ffi = ::xla::ffi;

template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream stream(std::ios_base::out);  // the constructor that old libraries have
  (stream << ... << parts);
  return stream.str();
}

template <typename... Parts>
ffi::Error InvalidArgument(const Parts&... parts) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, Text(parts...));
}

template <typename... Parts>
ffi::Error Unimplemented(const Parts&... parts) {
  return ffi::Error(ffi::ErrorCode::kUnimplemented, Text(parts...));
}

// `error` with text(), the problem's sizes, appended as Guarded does; a success stays a success.
template <typename ProblemText>
ffi::Error WithSizes(const ffi::Error& error, const ProblemText& text) {
  if (error.success()) return error;
  return ffi::Error(error.errc().value_or(ffi::ErrorCode::kInternal),
                    Text(error.message(), " (", text(), ")"));
}

// "(8, 56, 56, 64)", for shapes and for attributes that are lists of numbers.
template <typename Numbers>
std::string ListText(const Numbers& numbers) {
  std::ostringstream stream(std::ios_base::out);
  stream << '(';
  const char* separator = "";
  for (int64_t number : numbers) {
    stream << separator << number;
    separator = ", ";
  }
  stream << ')';
  return stream.str();
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_FFI_ERROR_H_
