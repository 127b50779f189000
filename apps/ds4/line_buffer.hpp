// The text being edited, without any terminal: cursor, insertion, deletion, and its layout on the screen.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ds4::cli {

/// UTF-8 text that may hold line breaks, and a cursor in it. The cursor never stands inside a user-perceived
/// character (a base character with its combining marks).
class LineBuffer {
 public:
  const std::string& text() const { return text_; }
  size_t cursor() const { return cursor_; }  // byte offset
  bool empty() const { return text_.empty(); }

  /// Replaces the text; the cursor goes to its end.
  void set(std::string text);
  /// Replaces the text and puts the cursor at a byte offset of it.
  void set(std::string text, size_t cursor);
  void clear() { set(""); }

  void insert(std::string_view bytes);
  void erase_before();  // Backspace
  void erase_at();      // Delete

  void left();
  void right();
  void line_begin();  // of the current line of the text, not of the screen
  void line_end();
  void word_left();
  void word_right();
  /// False if there is no line above (below).
  bool line_up();
  bool line_down();

  void cut_to_line_end();
  void cut_to_line_begin();
  void cut_word_before();
  void cut_word_at();
  void yank();

  /// Removes the character before the cursor if it is a backslash.
  bool take_trailing_backslash();

 private:
  void cut(size_t begin, size_t end);
  size_t line_begin_of(size_t position) const;
  size_t line_end_of(size_t position) const;
  size_t word_begin_before(size_t position) const;
  size_t word_end_after(size_t position) const;

  std::string text_;
  size_t cursor_ = 0;
  std::string cut_text_;
};

/// Where the character that follows (precedes) a position ends (begins). `position` must be a character
/// boundary.
size_t next_boundary(std::string_view text, size_t position);
size_t previous_boundary(std::string_view text, size_t position);

/// Screen columns of text without line breaks.
size_t display_width(std::string_view text);

/// One row of the screen: bytes [begin, end) of the text, after `indent` columns for the prompt.
struct ScreenRow {
  size_t begin = 0;
  size_t end = 0;
  size_t indent = 0;
};

struct Layout {
  std::vector<ScreenRow> rows;  // at least one
  size_t cursor_row = 0;
  size_t cursor_column = 0;
};

/// Breaks text into rows of `columns`. The first row of each line of the text is indented by `indent`.
Layout lay_out(std::string_view text, size_t cursor, size_t columns, size_t indent);

}  // namespace ds4::cli
