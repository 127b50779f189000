#include "line_buffer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "common/visible_text.hpp"

namespace ds4::cli {
namespace {

size_t width_of(const Decoded& c) {
  if (c.value >= 0x20 && c.value < 0x7f) return 1;
  if (c.value < 0) return 1;
  if (is_control(c.value)) return 2;
  return static_cast<size_t>(std::max(0, utf8proc_charwidth(c.value)));
}

bool is_plain_ascii(std::string_view text, size_t position) {
  return static_cast<unsigned char>(text[position]) < 0x80;
}

bool is_word(std::string_view text, size_t position) {
  const auto byte = static_cast<unsigned char>(text[position]);
  return byte >= 0x80 || std::isalnum(byte) != 0 || byte == '_';
}

/// A little before `position`, at a place where a character certainly begins.
size_t safe_start(std::string_view text, size_t position) {
  constexpr size_t farthest = 256;  // bytes; longer stacks of combining marks may be split
  const size_t limit = position > farthest ? position - farthest : 0;
  size_t start = position;
  while (start > limit) {
    --start;
    if (is_plain_ascii(text, start)) return start;
  }
  while (start < position && (static_cast<unsigned char>(text[start]) & 0xc0) == 0x80) ++start;
  return start;
}

}  // namespace

size_t next_boundary(std::string_view text, size_t position) {
  if (position >= text.size()) return text.size();
  Decoded current = decode_at(text, position);
  position += current.bytes;
  utf8proc_int32_t state = 0;
  while (position < text.size() && !is_plain_ascii(text, position)) {
    const Decoded next = decode_at(text, position);
    if (current.value < 0 || next.value < 0 ||
        utf8proc_grapheme_break_stateful(current.value, next.value, &state)) {
      break;
    }
    position += next.bytes;
    current = next;
  }
  return position;
}

size_t previous_boundary(std::string_view text, size_t position) {
  if (position == 0) return 0;
  size_t start = safe_start(text, position);
  while (true) {
    const size_t next = next_boundary(text, start);
    if (next >= position) return start;
    start = next;
  }
}

void LineBuffer::set(std::string text) {
  text_ = std::move(text);
  cursor_ = text_.size();
}

void LineBuffer::set(std::string text, size_t cursor) {
  text_ = std::move(text);
  cursor_ = std::min(cursor, text_.size());
}

void LineBuffer::insert(std::string_view bytes) {
  text_.insert(cursor_, bytes);
  cursor_ += bytes.size();
}

void LineBuffer::erase_before() {
  const size_t begin = previous_boundary(text_, cursor_);
  text_.erase(begin, cursor_ - begin);
  cursor_ = begin;
}

void LineBuffer::erase_at() {
  text_.erase(cursor_, next_boundary(text_, cursor_) - cursor_);
}

void LineBuffer::left() {
  cursor_ = previous_boundary(text_, cursor_);
}
void LineBuffer::right() {
  cursor_ = next_boundary(text_, cursor_);
}

size_t LineBuffer::line_begin_of(size_t position) const {
  if (position == 0) return 0;
  const size_t found = text_.rfind('\n', position - 1);
  return found == std::string::npos ? 0 : found + 1;
}

size_t LineBuffer::line_end_of(size_t position) const {
  return std::min(text_.find('\n', position), text_.size());
}

void LineBuffer::line_begin() {
  cursor_ = line_begin_of(cursor_);
}
void LineBuffer::line_end() {
  cursor_ = line_end_of(cursor_);
}

size_t LineBuffer::word_begin_before(size_t position) const {
  while (position > 0 && !is_word(text_, position - 1)) --position;
  while (position > 0 && is_word(text_, position - 1)) --position;
  return position;
}

size_t LineBuffer::word_end_after(size_t position) const {
  while (position < text_.size() && !is_word(text_, position)) ++position;
  while (position < text_.size() && is_word(text_, position)) ++position;
  return position;
}

void LineBuffer::word_left() {
  cursor_ = word_begin_before(cursor_);
}
void LineBuffer::word_right() {
  cursor_ = word_end_after(cursor_);
}

bool LineBuffer::line_up() {
  const size_t begin = line_begin_of(cursor_);
  if (begin == 0) return false;
  const size_t column = display_width(std::string_view(text_).substr(begin, cursor_ - begin));
  const size_t end = begin - 1;
  cursor_ = line_begin_of(end);
  size_t width = 0;
  while (cursor_ < end && width < column) {
    const size_t next = next_boundary(text_, cursor_);
    width += display_width(std::string_view(text_).substr(cursor_, next - cursor_));
    cursor_ = next;
  }
  return true;
}

bool LineBuffer::line_down() {
  const size_t end = line_end_of(cursor_);
  if (end == text_.size()) return false;
  const size_t begin = line_begin_of(cursor_);
  const size_t column = display_width(std::string_view(text_).substr(begin, cursor_ - begin));
  cursor_ = end + 1;
  const size_t next_end = line_end_of(cursor_);
  size_t width = 0;
  while (cursor_ < next_end && width < column) {
    const size_t next = next_boundary(text_, cursor_);
    width += display_width(std::string_view(text_).substr(cursor_, next - cursor_));
    cursor_ = next;
  }
  return true;
}

void LineBuffer::cut(size_t begin, size_t end) {
  if (begin == end) return;
  cut_text_ = text_.substr(begin, end - begin);
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

void LineBuffer::cut_to_line_end() {
  const size_t end = line_end_of(cursor_);
  cut(cursor_, end == cursor_ && end < text_.size() ? end + 1 : end);  // at its end: the line break
}
void LineBuffer::cut_to_line_begin() {
  cut(line_begin_of(cursor_), cursor_);
}

void LineBuffer::cut_word_before() {
  // As in a shell: back to the last white space, whatever lies between.
  size_t begin = cursor_;
  const auto is_space = [&](size_t i) { return text_[i] == ' ' || text_[i] == '\t' || text_[i] == '\n'; };
  while (begin > 0 && is_space(begin - 1)) --begin;
  while (begin > 0 && !is_space(begin - 1)) --begin;
  cut(begin, cursor_);
}

void LineBuffer::cut_word_at() {
  cut(cursor_, word_end_after(cursor_));
}
void LineBuffer::yank() {
  insert(cut_text_);
}

bool LineBuffer::take_trailing_backslash() {
  if (cursor_ != text_.size() || text_.empty() || text_.back() != '\\') return false;
  text_.pop_back();
  cursor_ = text_.size();
  return true;
}

size_t display_width(std::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size();) {
    const Decoded c = decode_at(text, i);
    width += width_of(c);
    i += c.bytes;
  }
  return width;
}

Layout lay_out(std::string_view text, size_t cursor, size_t columns, size_t indent) {
  columns = std::max<size_t>(columns, 2);  // the widest character
  if (indent + 2 > columns) indent = 0;
  Layout layout;
  layout.rows.push_back({0, 0, indent});
  size_t column = indent;
  const auto new_row = [&](size_t begin, size_t row_indent) {
    layout.rows.push_back({begin, begin, row_indent});
    column = row_indent;
  };
  const auto mark_cursor = [&] {
    layout.cursor_row = layout.rows.size() - 1;
    layout.cursor_column = column;
  };
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '\n') {
      if (i == cursor) {
        if (column >= columns) new_row(i, 0);
        mark_cursor();
      }
      new_row(++i, indent);
      continue;
    }
    const Decoded c = decode_at(text, i);
    const size_t width = width_of(c);
    if (column + width > columns) new_row(i, 0);
    if (i == cursor) mark_cursor();
    column += width;
    i += c.bytes;
    layout.rows.back().end = i;
  }
  if (cursor >= text.size()) {
    if (column >= columns) new_row(text.size(), 0);  // the cursor needs a place
    mark_cursor();
  }
  return layout;
}

}  // namespace ds4::cli
