// Progress lines on a terminal; silence elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/console.hpp"

namespace ds4::cli {

/// One line on standard error that is redrawn in place. It appears only for work that takes a while.
class ProgressLine {
 public:
  ProgressLine();
  /// Ends the line if one was shown.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Shows `text`; `last` draws whatever the time since the previous drawing.
  void show(const std::string& text, bool last);

 private:
  using Clock = std::chrono::steady_clock;
  Writer writer_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point drawn_ = begin_;
  bool visible_ = false;
};

/// "processing 1000 input tokens: 250/1000 (25.0%)"
std::string prefill_text(uint64_t done, uint64_t total);
/// "loading weights: 1.50 GiB of 6.00 GiB (25.0%), 3.2 GB/s"
std::string load_text(uint64_t done_bytes, uint64_t total_bytes, std::chrono::duration<double> elapsed);
/// "1.50 GiB"
std::string human_bytes(uint64_t bytes);

}  // namespace ds4::cli
