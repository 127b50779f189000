// Shorthand for making and passing on errors inside the library.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "ds4/error.hpp"

namespace ds4 {

/// Error with a formatted message: `return fail(ErrorCode::format, "{}: bad magic", path);`
template <class... Args>
Error fail(ErrorCode code, fmt::format_string<Args...> text, Args&&... args) {
  return Error{code, fmt::format(text, std::forward<Args>(args)...)};
}

}  // namespace ds4

#define DS4_CONCAT_(a, b) a##b
#define DS4_CONCAT(a, b) DS4_CONCAT_(a, b)

/// Returns the error of `expression` (a Result<void>, or one whose value is not needed) from this function.
#define DS4_TRY(expression)                                                                \
  do {                                                                                     \
    if (auto ds4_result = (expression); !ds4_result) return std::move(ds4_result).error(); \
  } while (false)

/// `DS4_ASSIGN(auto file, MappedFile::open(path));`: declares or assigns the value, or returns the error.
#define DS4_ASSIGN(target, expression) DS4_ASSIGN_(target, expression, DS4_CONCAT(ds4_result_, __LINE__))
#define DS4_ASSIGN_(target, expression, result)  \
  auto result = (expression);                    \
  if (!result) return std::move(result).error(); \
  target = std::move(result).value()
