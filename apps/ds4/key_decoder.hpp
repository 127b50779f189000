// Bytes from a terminal to keys.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ds4::cli {

enum class Key {
  text,   // one or more characters
  paste,  // text pasted as a block
  enter,
  newline,  // Alt+Enter: a line break inside the message
  backspace,
  del,
  left,
  right,
  up,
  down,
  home,
  end,
  word_left,
  word_right,
  cut_word_before,
  cut_word_at,
  cut_line_end,
  cut_line_begin,
  yank,
  tab,
  clear_screen,
  search,
  interrupt,
  end_of_file,
  suspend,
  previous,
  next,
  escape,
  unknown,
};

struct KeyEvent {
  Key key = Key::unknown;
  std::string text;  // Key::text and Key::paste
};

/// Recognises keys in a stream that may be cut at any byte. Runs of ordinary characters come as one event, so
/// that input faster than the screen stays cheap.
class KeyDecoder {
 public:
  void feed(std::string_view bytes) { pending_ += bytes; }
  /// The next complete key, if there is one.
  std::optional<KeyEvent> next();
  /// True if only the begin of a sequence has arrived; after a pause a lone Escape was the Escape key.
  bool waiting() const { return !pending_.empty() && !pasting_; }
  /// Gives up waiting for the rest of a sequence.
  std::optional<KeyEvent> timeout();

 private:
  std::optional<KeyEvent> take(size_t bytes, Key key);
  std::optional<KeyEvent> text_run();
  std::optional<KeyEvent> escape_sequence();
  std::optional<KeyEvent> paste_end();

  std::string pending_;
  std::string pasted_;
  bool pasting_ = false;
};

}  // namespace ds4::cli
