#ifndef JAX_CONVGRAD_FFI_GUARD_H_
#define JAX_CONVGRAD_FFI_GUARD_H_

#include <exception>
#include <new>
#include <string>

#include "ffi/error.h"

namespace jax_convgrad {

// Runs `body`, which returns an ffi::Error, and turns exceptions into one: every handler's last
// line of defence. `op` starts the text; problem(), a string, ends it unless it is empty.
template <typename Body, typename Problem>
ffi::Error Guarded(const char* op, const Body& body, const Problem& problem) noexcept {
  const auto error = [&](ffi::ErrorCode code, const char* what) {
    try {
      const std::string text = problem();
      return text.empty() ? ffi::Error(code, Text(op, ": ", what))
                          : ffi::Error(code, Text(op, ": ", what, " (", text, ")"));
    } catch (...) {  // no memory even for the message
      return ffi::Error(code, std::string());
    }
  };
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return error(ffi::ErrorCode::kResourceExhausted, "no host memory");
  } catch (const std::exception& exception) {
    return error(ffi::ErrorCode::kInternal, exception.what());
  } catch (...) {
    return error(ffi::ErrorCode::kInternal, "an unknown exception");
  }
}

template <typename Body>
ffi::Error Guarded(const char* op, const Body& body) noexcept {
  return Guarded(op, body, [] { return std::string(); });
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_FFI_GUARD_H_
