#include "common/interrupt.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace ds4::cli {
namespace {

// A signal handler can reach globals only.
std::atomic<OnInterrupt> current_mode{OnInterrupt::exit};
std::atomic<bool> seen{false};
static_assert(std::atomic<OnInterrupt>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void leave() {
  // Ends a progress line that may be on the screen.
  if (isatty(STDERR_FILENO) && write(STDERR_FILENO, "\n", 1) < 0) _exit(exit_interrupted);
  _exit(exit_interrupted);
}

void on_interrupt(int) {
  const int saved = errno;
  const bool again = seen.exchange(true);
  const OnInterrupt mode = current_mode.load();
  if (mode == OnInterrupt::exit || (mode == OnInterrupt::stop_then_exit && again)) leave();
  errno = saved;
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);  // no SA_RESTART: a blocked read must return
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
}

void set_interrupt_mode(OnInterrupt mode) {
  current_mode = mode;
}
void clear_interrupt() {
  seen = false;
}
bool interrupted() {
  return seen;
}

}  // namespace ds4::cli
