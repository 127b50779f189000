// Where in a Markdown text one is: at the start of a line, inside code.
#pragma once

#include <cstddef>
#include <string_view>

namespace ds4::text {

class LineTracker {
 public:
  void feed(std::string_view text) {
    for (const char c : text) feed(c);
  }

  /// Nothing but white space stands before on this line.
  bool at_line_start() const { return blank_; }
  /// Inside a fenced block, or behind an odd number of backticks on this line.
  bool in_code() const { return fenced_ || odd_backticks_; }

 private:
  static constexpr size_t kFenceBackticks = 3;

  void feed(char c) {
    if (c == '\n') {
      blank_ = true;
      leading_backticks_ = 0;
      odd_backticks_ = false;
    } else if (c == '`') {
      if (blank_ || leading_backticks_ > 0) ++leading_backticks_;
      blank_ = false;
      odd_backticks_ = !odd_backticks_;
      if (leading_backticks_ != kFenceBackticks) return;
      fenced_ = !fenced_;
      odd_backticks_ = false;
      leading_backticks_ = 0;
    } else {
      leading_backticks_ = 0;
      if (c != ' ' && c != '\t' && c != '\r') blank_ = false;
    }
  }

  bool blank_ = true;
  bool fenced_ = false;
  bool odd_backticks_ = false;
  size_t leading_backticks_ = 0;
};

}  // namespace ds4::text
