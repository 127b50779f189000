// Raw mode of the controlling terminal.
#pragma once

#include <cstddef>

namespace ds4::cli {

/// Switches standard input to byte-wise input without echo, and bracketed paste on, until destroyed; a
/// terminating signal in between restores the terminal too.
class RawMode {
 public:
  RawMode();
  ~RawMode();
  RawMode(const RawMode&) = delete;
  RawMode& operator=(const RawMode&) = delete;
  bool active() const { return active_; }

  /// Stops the process as Ctrl+Z does, with the terminal as it was; returns when it is continued.
  void suspend();

 private:
  void enter();
  void leave();
  bool active_ = false;
};

struct ScreenSize {
  size_t rows = 24;
  size_t columns = 80;
};
ScreenSize screen_size();

/// True once after each change of the window's size.
bool take_resized();

}  // namespace ds4::cli
