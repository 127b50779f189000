// Lines on standard error: for people, or one JSON object each.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ds4::server {

enum class LogLevel { debug, info, warning, error };

/// Thread-safe.
class Log {
 public:
  /// `level`: "debug", "info", "warning" or "error".
  Log(std::string_view level, bool json);
  ~Log();

  /// Values are JSON text: numbers as they are, strings quoted by field().
  using Fields = std::vector<std::pair<std::string, std::string>>;
  void write(LogLevel level, std::string_view sentence, const Fields& fields = {});
  bool enabled(LogLevel level) const { return level >= least_; }

 private:
  struct Sink;
  std::unique_ptr<Sink> sink_;
  LogLevel least_;
  bool json_;
};

/// A string as a JSON value.
std::string quoted(std::string_view text);

}  // namespace ds4::server
