// Ctrl+C: what it does depends on what the program is doing.
#pragma once

namespace ds4::cli {

enum class OnInterrupt {
  exit,            // leave at once with status 130 (loading, reading)
  stop_then_exit,  // ask the work to stop; a second one leaves at once
  stop,            // ask the work to stop, never leave
};

/// Takes over SIGINT, and ignores SIGPIPE and SIGXFSZ so that a closed pipe and a limit on file sizes show as
/// failed writes.
void install_signal_handlers();
void set_interrupt_mode(OnInterrupt mode);
/// Forgets interrupts that were seen.
void clear_interrupt();
bool interrupted();

inline constexpr int exit_success = 0;
inline constexpr int exit_failure = 1;
inline constexpr int exit_usage = 2;
inline constexpr int exit_interrupted = 130;

}  // namespace ds4::cli
