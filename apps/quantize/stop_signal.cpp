#include "stop_signal.hpp"

#include <signal.h>

#include <atomic>

namespace ds4::quantize {
namespace {

// A signal handler can reach globals only.
std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_stop(int signal) {
  stop_signal = signal;
}

}  // namespace

void install_stop_signals() {
  struct sigaction action{};
  sigemptyset(&action.sa_mask);
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction previous{};
    sigaction(signal, &action, &previous);
    if (previous.sa_handler == SIG_IGN) sigaction(signal, &previous, nullptr);
  }
  action.sa_handler = SIG_IGN;
  action.sa_flags = 0;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
}

bool stop_requested() {
  return stop_signal != 0;
}

int stop_status() {
  return 128 + stop_signal;
}

}  // namespace ds4::quantize
