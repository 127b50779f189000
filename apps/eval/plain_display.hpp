// A run as text, line by line.
#pragma once

#include "common/console.hpp"
#include "ds4/tokenizer.hpp"
#include "run_state.hpp"

namespace ds4::eval {

class PlainDisplay : public Display {
 public:
  explicit PlainDisplay(cli::Writer& output) : output_(output) {}
  void begin_case(const RunState& state) override;
  void prefill_progress(const RunState& state) override;
  void token(const RunState& state, std::string_view bytes, bool reasoning) override;
  void end_case(RunState& state) override;
  /// Stops the run when nobody reads any more.
  Request poll(RunState& state) override;

 private:
  void show(std::string_view text);
  cli::Writer& output_;
  Utf8Stream utf8_;
  bool dimmed_ = false;
  bool line_open_ = false;  // the last byte shown was not a line break
};

}  // namespace ds4::eval
