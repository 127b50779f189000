// Writing to standard output and standard error, and reading whole files.
#pragma once

#include <string>
#include <string_view>

#include "ds4/error.hpp"

namespace ds4::cli {

inline constexpr const char* style_cyan = "36";
inline constexpr const char* style_green = "32";
inline constexpr const char* style_warning = "38;5;208";
inline constexpr const char* style_error = "31";
inline constexpr const char* style_thinking = "90";

/// Unbuffered writes to a file descriptor that remember the first failure.
class Writer {
 public:
  explicit Writer(int descriptor);

  /// False if this or an earlier write failed.
  bool write(std::string_view bytes);
  bool failed() const { return error_ != 0; }
  /// The reader of a pipe went away: a reason to stop, not to complain.
  bool pipe_closed() const;
  /// Why it failed, for the user.
  Error error(std::string_view name) const;
  bool terminal() const { return terminal_; }
  /// `text` in a style if this is a terminal.
  std::string styled(std::string_view style, std::string_view text) const;

 private:
  int descriptor_;
  int error_ = 0;
  bool terminal_;
};

/// What messages begin with; "ds4" at first. Precondition: lives as long as the program.
void set_program_name(const char* name);
/// "NAME: ..." on standard error; failures to write there are ignored.
void say(std::string_view sentence);
void warn(std::string_view sentence);
void say_error(std::string_view sentence);

/// The bytes of a file, or of a descriptor up to its end; at most 256 MiB. Ctrl+C ends a wait for more.
Result<std::string> read_file(const std::string& path);
Result<std::string> read_all(int descriptor, std::string_view name);

}  // namespace ds4::cli
