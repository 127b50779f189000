// Turns an allocation that failed into an Error, where calls leave the library.
#pragma once

#include <new>

#include "base/error.hpp"

namespace ds4 {

/// `what` names the request: "a new session".
inline Error out_of_memory(const char* what) {
  try {
    return fail(ErrorCode::out_of_memory, "not enough memory for {}", what);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "out of memory"};  // short enough to need no allocation
  }
}

/// What `call` returns, or out_of_memory if an allocation in it fails.
template <class Call>
auto catch_bad_alloc(const char* what, const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return out_of_memory(what);
  }
}

}  // namespace ds4
