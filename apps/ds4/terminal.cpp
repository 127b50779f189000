#include "terminal.hpp"

#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <iterator>

namespace ds4::cli {
namespace {

constexpr char paste_on[] = "\x1b[?2004h";
constexpr char paste_off[] = "\x1b[?2004l";

// A signal handler can reach globals only.
termios original_settings;
std::atomic<bool> raw{false};
std::atomic<bool> resized{false};
constexpr int terminating[] = {SIGTERM, SIGHUP, SIGQUIT};
struct sigaction previous_actions[std::size(terminating)];

void write_sequence(const char* text, size_t size) {
  if (::write(STDERR_FILENO, text, size) < 0) return;  // nothing to be done about a lost terminal
}

void restore_settings() {
  if (!raw.exchange(false)) return;
  tcsetattr(STDIN_FILENO, TCSADRAIN, &original_settings);
  write_sequence(paste_off, sizeof paste_off - 1);
}

void on_termination(int signal) {
  restore_settings();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void catch_termination() {
  struct sigaction action{};
  action.sa_handler = on_termination;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(terminating); ++i) {
    sigaction(terminating[i], &action, &previous_actions[i]);
    // A signal that was ignored (nohup) stays so.
    if (previous_actions[i].sa_handler == SIG_IGN) sigaction(terminating[i], &previous_actions[i], nullptr);
  }
}

void release_termination() {
  for (size_t i = 0; i < std::size(terminating); ++i)
    sigaction(terminating[i], &previous_actions[i], nullptr);
}

void on_resize(int) {
  resized = true;
}

}  // namespace

RawMode::RawMode() {
  if (tcgetattr(STDIN_FILENO, &original_settings) != 0) return;
  active_ = true;
  struct sigaction action{};
  action.sa_handler = on_resize;
  sigemptyset(&action.sa_mask);
  sigaction(SIGWINCH, &action, nullptr);
  enter();
}

RawMode::~RawMode() {
  leave();
}

void RawMode::enter() {
  if (!active_) return;
  termios settings = original_settings;
  settings.c_iflag &= ~static_cast<tcflag_t>(BRKINT | ICRNL | INPCK | ISTRIP | IXON);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | IEXTEN | ISIG);
  settings.c_cflag |= CS8;
  settings.c_cc[VMIN] = 1;
  settings.c_cc[VTIME] = 0;
  catch_termination();
  tcsetattr(STDIN_FILENO, TCSADRAIN, &settings);
  raw = true;
  write_sequence(paste_on, sizeof paste_on - 1);
}

void RawMode::leave() {
  if (!active_) return;
  restore_settings();
  release_termination();
}

void RawMode::suspend() {
  leave();
  ::raise(SIGTSTP);
  enter();
}

ScreenSize screen_size() {
  winsize size{};
  ScreenSize result;
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 || ioctl(STDIN_FILENO, TIOCGWINSZ, &size) == 0) {
    if (size.ws_col > 0) result.columns = size.ws_col;
    if (size.ws_row > 0) result.rows = size.ws_row;
  }
  return result;
}

bool take_resized() {
  return resized.exchange(false);
}

}  // namespace ds4::cli
