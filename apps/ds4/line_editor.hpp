// Reads messages: with editing on a terminal, line by line elsewhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "history.hpp"
#include "key_decoder.hpp"
#include "line_buffer.hpp"

namespace ds4::cli {

enum class ReadStatus {
  line,
  end_of_input,
  discarded,  // Ctrl+C
};

struct ReadResult {
  ReadStatus status = ReadStatus::end_of_input;
  std::string text;
};

/// Shows its prompt on standard error, reads from standard input.
class LineEditor {
 public:
  LineEditor(std::string prompt, std::string history_path);

  ReadResult read();
  void remember(std::string_view message) { history_.add(message); }

 private:
  struct Screen {
    size_t rows = 0;        // shown last time
    size_t cursor_row = 0;  // of those, where the terminal's cursor is
    size_t first_row = 0;   // of the layout, the first one shown
  };

  ReadResult read_plain();
  ReadResult read_edited();
  /// Waits for input; false at its end.
  bool fill(bool can_wait);
  /// Applies a key. True when the message is complete; then `result` is set.
  bool apply(const KeyEvent& event, ReadResult& result);
  void apply_to_buffer(const KeyEvent& event);
  void browse_history(bool back);
  void search(const KeyEvent& event);
  void find_match(size_t before);
  void leave_search(bool keep);
  void refresh(bool final);

  std::string prompt_;
  History history_;
  LineBuffer buffer_;
  KeyDecoder decoder_;
  std::string plain_pending_;  // input read past the line break
  Screen screen_;
  size_t history_position_ = 0;  // history_.entries().size(): the message being written
  std::string unsent_;           // that message, while another one is shown
  bool searching_ = false;
  std::string search_text_;
  size_t search_match_ = 0;  // entries().size(): none
  bool input_ended_ = false;
};

}  // namespace ds4::cli
