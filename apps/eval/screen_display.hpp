// A run on a split screen: the questions on the left, the one that runs on the right (docs/eval.md §6).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "run_state.hpp"

namespace ds4::eval {

class ScreenDisplay : public Display {
 public:
  /// Takes over the terminal of standard output; nothing if that cannot hold the screen. Keys come from
  /// standard input if that is a terminal.
  static std::unique_ptr<ScreenDisplay> open(uint64_t pause_ms);
  /// Gives the terminal back.
  ~ScreenDisplay() override;

  void begin_case(const RunState& state) override;
  void prefill_progress(const RunState& state) override;
  void token(const RunState& state, std::string_view bytes, bool reasoning) override;
  void end_case(RunState& state) override;
  Request poll(RunState& state) override;

 private:
  struct Impl;
  explicit ScreenDisplay(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ds4::eval
