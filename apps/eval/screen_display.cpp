#include "screen_display.hpp"

// The macros of ncurses must not meet other headers.
#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <clocale>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>

#include "common/interrupt.hpp"
#include "key_reader.hpp"
#include "prompt.hpp"
#include "screen_text.hpp"

#define NCURSES_NOMACROS 1
#include <curses.h>
#include <langinfo.h>

// <term.h> declares it among macros named `columns` and `lines`.
extern "C" char* tigetstr(const char* name);

namespace ds4::eval {
namespace {

using std::chrono::milliseconds;
constexpr int least_columns = 90, least_rows = 18;
constexpr int first_list_row = 3, first_output_row = 5;
constexpr milliseconds tick(100);

enum Colour : short { cyan = 1, yellow, green, red, blue };

// What a signal handler needs to give the terminal back.
termios original_settings;
std::atomic<bool> screen_is_ours{false};
char leave_sequence[128];
constexpr int terminating[] = {SIGTERM, SIGHUP, SIGQUIT};
struct sigaction previous_actions[std::size(terminating)];

void restore_terminal() {
  if (!screen_is_ours.exchange(false)) return;
  if (::write(STDOUT_FILENO, leave_sequence, std::strlen(leave_sequence)) < 0)
    return;  // the terminal is gone
  tcsetattr(STDIN_FILENO, TCSADRAIN, &original_settings);
}

void on_termination(int number) {
  restore_terminal();
  ::signal(number, SIG_DFL);
  ::raise(number);
}

/// A capability of the terminal as text; padding marks are left out.
std::string capability(const char* name) {
  const char* value = ::tigetstr(name);
  if (value == nullptr || value == reinterpret_cast<const char*>(-1)) return {};
  std::string text = value;
  for (size_t begin = text.find("$<"); begin != std::string::npos; begin = text.find("$<")) {
    text.erase(begin, text.find('>', begin) - begin + 1);
  }
  return text;
}

void remember_how_to_leave() {
  const std::string sequence = capability("sgr0") + capability("cnorm") + capability("rmcup");
  std::strncpy(leave_sequence, sequence.c_str(), sizeof leave_sequence - 1);
}

/// Characters beyond ASCII need a locale that says so; "C.UTF-8" is everywhere.
void use_utf8() {
  if (std::setlocale(LC_CTYPE, "") == nullptr || std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
}

attr_t status_style(Status status) {
  switch (status) {
    case Status::prefill:
      return COLOR_PAIR(cyan);
    case Status::running:
      return COLOR_PAIR(yellow);
    case Status::stopped:
      return COLOR_PAIR(yellow) | A_BOLD;
    case Status::passed:
      return COLOR_PAIR(green) | A_BOLD;
    case Status::failed:
    case Status::incomplete:
    case Status::error:
      return COLOR_PAIR(red) | A_BOLD;
    case Status::pending:
    case Status::skipped:
      break;
  }
  return A_DIM;
}

}  // namespace

struct ScreenDisplay::Impl {
  SCREEN* screen = nullptr;
  std::optional<KeyReader> keys;
  uint64_t pause_ms = 0;
  bool paused = false;
  size_t selected = 0;
  Request request;
  int rows = 0, columns = 0;

  void put(int row, int column, attr_t style, const std::string& text) {
    ::attrset(static_cast<int>(style));
    ::mvaddstr(row, column, text.c_str());
    ::attrset(A_NORMAL);
  }
  void follow_size();
  void draw(const RunState& state);
  void draw_left(const RunState& state, size_t width);
  void draw_right(const RunState& state, int column, size_t width);
  void handle(EvalKey key, RunState& state);
};

void ScreenDisplay::Impl::follow_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0 &&
      (size.ws_row != rows || size.ws_col != columns)) {
    ::resizeterm(size.ws_row, size.ws_col);
    ::clearok(::stdscr, true);
  }
  rows = getmaxy(::stdscr);
  columns = getmaxx(::stdscr);
}

void ScreenDisplay::Impl::draw(const RunState& state) {
  follow_size();
  ::erase();
  const int left = left_pane_columns(columns);
  draw_left(state, static_cast<size_t>(std::min(left, columns - 1)));
  for (int row = 0; row < rows; ++row) put(row, left, A_DIM, "|");
  // The last column stays empty: some terminals wrap when it is written.
  const int right = left + 2;
  if (columns - 1 > right) draw_right(state, right, static_cast<size_t>(columns - 1 - right));
  ::refresh();
}

void ScreenDisplay::Impl::draw_left(const RunState& state, size_t width) {
  ::move(0, 0);
  put(0, 0, A_BOLD, "ds4-eval");
  ::addstr("  (");
  put(0, getcurx(::stdscr), A_BOLD, "p");
  ::addstr(")ause (");
  put(0, getcurx(::stdscr), A_BOLD, "q");
  ::addstr(")uit  ");
  ::addstr(clock_text(state.clock.seconds()).c_str());
  if (paused) put(0, getcurx(::stdscr) + 1, COLOR_PAIR(red) | A_BOLD, "PAUSED");
  const Score score = score_of(state.rows());
  put(1, 0, COLOR_PAIR(green), fmt::format("score {}/{}", score.passed, state.cases.size()));
  put(1, getcurx(::stdscr) + 2, COLOR_PAIR(red), fmt::format("failed {}", score.failed));

  const size_t count = state.cases.size();
  const auto visible = static_cast<size_t>(std::max(0, rows - first_list_row));
  const size_t begin = list_begin(selected, count, visible);
  for (size_t i = begin; i < std::min(count, begin + visible); ++i) {
    const CaseState& c = state.cases[i];
    const int row = first_list_row + static_cast<int>(i - begin);
    const attr_t weight = i == state.active ? A_BOLD : A_NORMAL;
    const std::string line = case_line(c, i + 1, i == selected, width);
    put(row, 0, weight, line);
    const int status_column = static_cast<int>(line.find(short_status(c.status)));
    put(row, status_column, status_style(c.status), std::string(short_status(c.status)));
  }
}

void ScreenDisplay::Impl::draw_right(const RunState& state, int column, size_t width) {
  if (state.cases.empty()) return;
  const CaseState& c = state.cases[state.active];
  put(0, column, A_NORMAL, fit(progress_line(state), width));
  int row = 1;
  for (const std::string& line : preview(c.item.question, width, 3))
    put(row++, column, COLOR_PAIR(blue), line);
  const auto visible = static_cast<size_t>(std::max(0, rows - first_output_row));
  row = first_output_row;
  const bool thinking = state.thinking || c.close.kind != CloseKind::none;
  for (const OutputLine& line :
       output_tail(c.output, thinking || c.output.find("</think>") != std::string::npos, width, visible)) {
    put(row++, column, line.reasoning ? A_DIM : A_NORMAL, line.text);
  }
}

void ScreenDisplay::Impl::handle(EvalKey key, RunState& state) {
  switch (key) {
    case EvalKey::pause:
      paused = !paused;
      break;
    case EvalKey::quit:
      request = {Request::Kind::stop, 0};
      break;
    case EvalKey::up:
      if (selected > 0) --selected;
      break;
    case EvalKey::down:
      if (selected + 1 < state.cases.size()) ++selected;
      break;
    case EvalKey::enter: {
      const Status status = state.cases[state.active].status;
      const bool runs = status == Status::prefill || status == Status::running;
      if (selected != state.active || !runs) request = {Request::Kind::run, selected};
      break;
    }
  }
}

ScreenDisplay::ScreenDisplay(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::unique_ptr<ScreenDisplay> ScreenDisplay::open(uint64_t pause_ms) {
  winsize size{};
  if (isatty(STDOUT_FILENO) != 1 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 ||
      size.ws_col < least_columns || size.ws_row < least_rows) {
    return nullptr;
  }
  const bool has_keys = isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &original_settings) == 0;
  use_utf8();
  auto impl = std::make_unique<Impl>();
  impl->pause_ms = pause_ms;
  impl->screen = ::newterm(nullptr, stdout, stdin);
  if (impl->screen == nullptr) return nullptr;  // a terminal that nothing is known of
  ::set_term(impl->screen);
  if (capability("cup").empty()) {
    ::endwin();
    ::delscreen(impl->screen);
    return nullptr;
  }
  ::curs_set(0);
  if (::has_colors()) {
    ::start_color();
    ::use_default_colors();
    ::init_pair(cyan, COLOR_CYAN, -1);
    ::init_pair(yellow, COLOR_YELLOW, -1);
    ::init_pair(green, COLOR_GREEN, -1);
    ::init_pair(red, COLOR_RED, -1);
    ::init_pair(blue, COLOR_BLUE, -1);
  }
  remember_how_to_leave();
  struct sigaction action{};
  action.sa_handler = on_termination;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(terminating); ++i) {
    sigaction(terminating[i], &action, &previous_actions[i]);
    if (previous_actions[i].sa_handler == SIG_IGN) sigaction(terminating[i], &previous_actions[i], nullptr);
  }
  cli::set_interrupt_mode(cli::OnInterrupt::stop);
  if (has_keys) {
    termios settings = original_settings;
    settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // ISIG stays: Ctrl+C is a signal
    settings.c_cc[VMIN] = 0;
    settings.c_cc[VTIME] = 1;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &settings);
    impl->keys.emplace(STDIN_FILENO);
  }
  screen_is_ours = true;
  return std::unique_ptr<ScreenDisplay>(new ScreenDisplay(std::move(impl)));
}

ScreenDisplay::~ScreenDisplay() {
  impl_->keys.reset();
  ::endwin();
  ::delscreen(impl_->screen);
  restore_terminal();
  for (size_t i = 0; i < std::size(terminating); ++i)
    sigaction(terminating[i], &previous_actions[i], nullptr);
  cli::set_interrupt_mode(cli::OnInterrupt::stop_then_exit);
}

void ScreenDisplay::begin_case(const RunState& state) {
  impl_->selected = state.active;
  impl_->draw(state);
}

void ScreenDisplay::prefill_progress(const RunState& state) {
  impl_->draw(state);
}

void ScreenDisplay::token(const RunState& state, std::string_view, bool) {
  impl_->draw(state);
}

void ScreenDisplay::end_case(RunState& state) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + milliseconds(impl_->pause_ms);
  for (;;) {
    impl_->draw(state);
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    if (impl_->request.kind != Request::Kind::none || cli::interrupted() || left <= milliseconds(0)) return;
    if (!impl_->keys) {
      std::this_thread::sleep_for(std::min(left, tick));
    } else if (const auto key = impl_->keys->take(std::min(left, tick))) {
      impl_->handle(*key, state);
    }
  }
}

Request ScreenDisplay::poll(RunState& state) {
  bool stopped_clock = false;
  if (impl_->keys) {
    while (const auto key = impl_->keys->take()) impl_->handle(*key, state);
    while (impl_->paused && impl_->request.kind == Request::Kind::none && !cli::interrupted()) {
      const Status status = state.cases[state.active].status;
      if (!stopped_clock && (status == Status::prefill || status == Status::running)) {
        state.clock.stop();
        stopped_clock = true;
      }
      impl_->draw(state);
      if (const auto key = impl_->keys->take(tick)) impl_->handle(*key, state);
    }
  }
  if (stopped_clock) state.clock.start();
  if (impl_->request.kind != Request::Kind::none) impl_->paused = false;
  return std::exchange(impl_->request, {});
}

}  // namespace ds4::eval
