#include "line_editor.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/console.hpp"
#include "common/interrupt.hpp"
#include "common/visible_text.hpp"
#include "terminal.hpp"

namespace ds4::cli {
namespace {

constexpr int escape_pause_ms = 50;

bool terminal_can_edit() {
  const char* kind = std::getenv("TERM");
  const bool dumb = kind == nullptr || kind[0] == '\0' || std::strcmp(kind, "dumb") == 0;
  return !dumb && isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1;
}

}  // namespace

LineEditor::LineEditor(std::string prompt, std::string history_path)
    : prompt_(std::move(prompt)), history_(std::move(history_path)) {}

ReadResult LineEditor::read() {
  return terminal_can_edit() ? read_edited() : read_plain();
}

ReadResult LineEditor::read_plain() {
  Writer(STDERR_FILENO).write(prompt_);
  size_t searched = 0;
  while (true) {
    const size_t end = plain_pending_.find('\n', searched);
    if (end != std::string::npos || (input_ended_ && !plain_pending_.empty())) {
      ReadResult result{ReadStatus::line, plain_pending_.substr(0, end)};
      plain_pending_.erase(0, end == std::string::npos ? end : end + 1);
      return result;
    }
    if (input_ended_) return {ReadStatus::end_of_input, {}};
    searched = plain_pending_.size();
    char bytes[65536];
    const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (count > 0) {
      plain_pending_.append(bytes, static_cast<size_t>(count));
    } else if (count < 0 && errno == EINTR) {
      if (!interrupted()) continue;
      clear_interrupt();
      plain_pending_.clear();
      return {ReadStatus::discarded, {}};
    } else {
      input_ended_ = true;
    }
  }
}

ReadResult LineEditor::read_edited() {
  RawMode raw;
  if (!raw.active()) return read_plain();
  buffer_.clear();
  screen_ = {};
  searching_ = false;
  history_position_ = history_.entries().size();
  unsent_.clear();
  refresh(false);
  ReadResult result;
  bool changed = false;
  while (true) {
    auto event = decoder_.next();
    if (!event) {
      // Draw once per burst of input, not once per key.
      if (std::exchange(changed, false)) refresh(false);
      if (!fill(true)) return {ReadStatus::end_of_input, {}};
      if (take_resized()) changed = true;
      event = decoder_.next();
      if (interrupted()) {  // a signal sent by another program
        clear_interrupt();
        event = KeyEvent{Key::interrupt, {}};
      }
      if (!event && decoder_.waiting()) {
        if (!fill(false)) event = decoder_.timeout();
      }
      if (!event) continue;
    }
    if (event->key == Key::suspend) {
      refresh(true);
      raw.suspend();
      screen_ = {};
      changed = true;
      continue;
    }
    if (apply(*event, result)) return result;
    changed = true;
  }
}

bool LineEditor::fill(bool can_wait) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  const int ready = ::poll(&input, 1, can_wait ? -1 : escape_pause_ms);
  if (ready < 0) return errno == EINTR;  // a resize; the caller looks
  if (ready == 0) return false;
  char bytes[65536];
  const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
  if (count > 0) decoder_.feed({bytes, static_cast<size_t>(count)});
  return count > 0 || (count < 0 && errno == EINTR);
}

bool LineEditor::apply(const KeyEvent& event, ReadResult& result) {
  if (searching_) {
    search(event);
    if (searching_ || event.key != Key::enter) return false;
  }
  switch (event.key) {
    case Key::enter:
      if (buffer_.take_trailing_backslash()) {
        buffer_.insert("\n");
        return false;
      }
      result = {ReadStatus::line, buffer_.text()};
      break;
    case Key::interrupt:
      result = {ReadStatus::discarded, {}};
      break;
    case Key::end_of_file:
      if (!buffer_.empty()) {
        buffer_.erase_at();
        return false;
      }
      result = {ReadStatus::end_of_input, {}};
      break;
    case Key::search:
      searching_ = true;
      search_text_.clear();
      search_match_ = history_.entries().size();
      return false;
    case Key::clear_screen:
      Writer(STDERR_FILENO).write("\x1b[H\x1b[2J");
      screen_ = {};
      return false;
    default:
      apply_to_buffer(event);
      return false;
  }
  refresh(true);
  return true;
}

void LineEditor::apply_to_buffer(const KeyEvent& event) {
  switch (event.key) {
    case Key::text:
    case Key::paste:
      buffer_.insert(event.text);
      break;
    case Key::newline:
      buffer_.insert("\n");
      break;
    case Key::tab:
      buffer_.insert("    ");
      break;
    case Key::backspace:
      buffer_.erase_before();
      break;
    case Key::del:
      buffer_.erase_at();
      break;
    case Key::left:
      buffer_.left();
      break;
    case Key::right:
      buffer_.right();
      break;
    case Key::home:
      buffer_.line_begin();
      break;
    case Key::end:
      buffer_.line_end();
      break;
    case Key::word_left:
      buffer_.word_left();
      break;
    case Key::word_right:
      buffer_.word_right();
      break;
    case Key::cut_word_before:
      buffer_.cut_word_before();
      break;
    case Key::cut_word_at:
      buffer_.cut_word_at();
      break;
    case Key::cut_line_end:
      buffer_.cut_to_line_end();
      break;
    case Key::cut_line_begin:
      buffer_.cut_to_line_begin();
      break;
    case Key::yank:
      buffer_.yank();
      break;
    case Key::up:
      if (!buffer_.line_up()) browse_history(true);
      break;
    case Key::down:
      if (!buffer_.line_down()) browse_history(false);
      break;
    case Key::previous:
      browse_history(true);
      break;
    case Key::next:
      browse_history(false);
      break;
    default:
      break;
  }
}

void LineEditor::browse_history(bool back) {
  const size_t count = history_.entries().size();
  if (back ? history_position_ == 0 : history_position_ == count) return;
  if (history_position_ == count) unsent_ = buffer_.text();
  history_position_ += back ? -1 : 1;
  buffer_.set(history_position_ == count ? unsent_ : history_.entries()[history_position_]);
}

void LineEditor::search(const KeyEvent& event) {
  const size_t count = history_.entries().size();
  switch (event.key) {
    case Key::text:
      search_text_ += event.text;
      find_match(search_match_ == count ? count : search_match_ + 1);
      return;
    case Key::backspace:
      search_text_.erase(previous_boundary(search_text_, search_text_.size()));
      find_match(count);
      return;
    case Key::search:
      if (search_match_ > 0) find_match(search_match_);
      return;
    case Key::escape:
    case Key::interrupt:
      leave_search(false);
      return;
    case Key::enter:
      leave_search(true);
      return;
    default:
      leave_search(true);
      apply_to_buffer(event);
  }
}

/// Finds the last entry before `before` that holds the search text; an earlier match stays if there is none.
void LineEditor::find_match(size_t before) {
  const auto& entries = history_.entries();
  for (size_t i = std::min(before, entries.size()); i-- > 0;) {
    if (entries[i].find(search_text_) != std::string::npos) {
      search_match_ = i;
      return;
    }
  }
}

void LineEditor::leave_search(bool keep) {
  searching_ = false;
  if (!keep || search_match_ >= history_.entries().size()) return;
  if (history_position_ == history_.entries().size()) unsent_ = buffer_.text();
  history_position_ = search_match_;
  buffer_.set(history_.entries()[search_match_]);
}

/// Draws the rows around the cursor that fit the screen. `final`: all is said, leave the cursor below.
void LineEditor::refresh(bool final) {
  const ScreenSize size = screen_size();
  std::string prompt = prompt_;
  std::string_view text = buffer_.text();
  size_t cursor = buffer_.cursor();
  if (searching_) {
    const bool found = search_match_ < history_.entries().size();
    prompt = fmt::format("(search \"{}\") ", visible(search_text_));
    text = found ? std::string_view(history_.entries()[search_match_]) : std::string_view();
    cursor = std::min(text.find(search_text_), text.size());
  }
  const size_t indent = display_width(prompt) + 2 > size.columns ? 0 : display_width(prompt);
  const Layout layout = lay_out(text, final ? text.size() : cursor, size.columns, indent);

  const size_t shown = std::min(layout.rows.size(), size.rows);
  size_t first = std::min(screen_.first_row, layout.rows.size() - shown);
  first = std::min(first, layout.cursor_row);
  if (layout.cursor_row >= first + shown) first = layout.cursor_row - shown + 1;

  std::string out = "\r";
  if (screen_.cursor_row > 0) out += fmt::format("\x1b[{}A", std::min(screen_.cursor_row, size.rows - 1));
  out += "\x1b[J";  // before drawing: after a full row it would erase that row's last character
  for (size_t i = first; i < first + shown; ++i) {
    const ScreenRow& row = layout.rows[i];
    if (i > first) out += "\r\n";
    out += i == 0 && indent > 0 ? prompt : std::string(row.indent, ' ');
    out += visible(text.substr(row.begin, row.end - row.begin));
  }
  const size_t last = first + shown - 1;
  if (final) {
    out += "\r\n";
  } else {
    if (last > layout.cursor_row) out += fmt::format("\x1b[{}A", last - layout.cursor_row);
    out += '\r';
    if (layout.cursor_column > 0)
      out += fmt::format("\x1b[{}C", std::min(layout.cursor_column, size.columns - 1));
  }
  Writer(STDERR_FILENO).write(out);
  screen_ = {shown, layout.cursor_row - first, first};
}

}  // namespace ds4::cli
