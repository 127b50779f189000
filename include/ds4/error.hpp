// How this library reports failure: every call that can fail returns a Result. The library never prints,
// never exits and never throws across its API.
#pragma once

#include <cassert>
#include <string>
#include <utility>
#include <variant>

namespace ds4 {

enum class ErrorCode {
  invalid_argument,  // the caller asked for something that makes no sense
  not_found,         // a file or an entry does not exist
  io,                // the operating system refused a read or a write
  format,            // a file is damaged, or is not what its name promises
  unsupported,       // well-formed, but not something this build can run
  out_of_memory,     // the request does not fit; the message has the numbers
  context_full,      // the prompt or the next token does not fit the context
  cancelled,         // the caller's cancellation callback said stop
  no_state,          // a position that cannot be rewound to
  not_finite,        // a number that must be finite is not: a logit, or a weight to be encoded
  internal,          // a bug in this library
};

/// Why a call failed. `message` is one sentence that names the file, tensor, field or request.
struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;
};

/// A value or an Error: the interface of std::expected<T, Error>, which C++20 does not have.
template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit on purpose
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  /// Precondition for the next four: has_value().
  T& value() & { return assert(has_value()), *std::get_if<0>(&state_); }
  const T& value() const& { return assert(has_value()), *std::get_if<0>(&state_); }
  T&& value() && { return assert(has_value()), std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  /// Precondition: !has_value().
  Error& error() & { return assert(!has_value()), *std::get_if<1>(&state_); }
  const Error& error() const& { return assert(!has_value()), *std::get_if<1>(&state_); }
  Error&& error() && { return assert(!has_value()), std::move(*std::get_if<1>(&state_)); }

  T value_or(T fallback) const& { return has_value() ? value() : std::move(fallback); }

 private:
  std::variant<T, Error> state_;
};

/// Success without a value, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;

  Result() = default;
  Result(Error error) : error_(std::move(error)), failed_(true) {}  // NOLINT: implicit on purpose

  bool has_value() const { return !failed_; }
  explicit operator bool() const { return has_value(); }

  /// Precondition: !has_value().
  Error& error() & { return assert(failed_), error_; }
  const Error& error() const& { return assert(failed_), error_; }
  Error&& error() && { return assert(failed_), std::move(error_); }

 private:
  Error error_;
  bool failed_ = false;
};

}  // namespace ds4
