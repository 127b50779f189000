#include "key_decoder.hpp"

#include <algorithm>
#include <utility>

namespace ds4::cli {
namespace {

constexpr std::string_view paste_begin_sequence = "\x1b[200~";
constexpr std::string_view paste_end_sequence = "\x1b[201~";

bool is_text(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 && byte != 0x7f;
}

/// Bytes of the character that begins with `lead`; 1 for a byte that cannot begin one.
size_t character_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  if (byte >= 0xc2 && byte < 0xe0) return 2;
  if (byte >= 0xe0 && byte < 0xf0) return 3;
  return byte >= 0xf0 && byte < 0xf5 ? 4 : 1;
}

Key control_key(char c) {
  switch (c) {
    case 1:
      return Key::home;
    case 2:
      return Key::left;
    case 3:
      return Key::interrupt;
    case 4:
      return Key::end_of_file;
    case 5:
      return Key::end;
    case 6:
      return Key::right;
    case 7:
      return Key::escape;  // Ctrl+G leaves the search
    case 8:
    case 127:
      return Key::backspace;
    case 9:
      return Key::tab;
    case 10:
    case 13:
      return Key::enter;
    case 11:
      return Key::cut_line_end;
    case 12:
      return Key::clear_screen;
    case 14:
      return Key::next;
    case 16:
      return Key::previous;
    case 18:
      return Key::search;
    case 21:
      return Key::cut_line_begin;
    case 23:
      return Key::cut_word_before;
    case 25:
      return Key::yank;
    case 26:
      return Key::suspend;
    default:
      return Key::unknown;
  }
}

/// `final` ends a sequence "ESC [ parameters final"; a second parameter above 1 means a modifier key was
/// held.
Key csi_key(std::string_view parameters, char final) {
  const bool modified = parameters.find(';') != std::string_view::npos;
  switch (final) {
    case 'A':
      return Key::up;
    case 'B':
      return Key::down;
    case 'C':
      return modified ? Key::word_right : Key::right;
    case 'D':
      return modified ? Key::word_left : Key::left;
    case 'H':
      return Key::home;
    case 'F':
      return Key::end;
    case 'u':
      return parameters == "13;3" || parameters == "13;2" ? Key::newline : Key::unknown;
    case '~':
      break;
    default:
      return Key::unknown;
  }
  const std::string_view number = parameters.substr(0, parameters.find(';'));
  if (number == "1" || number == "7") return Key::home;
  if (number == "4" || number == "8") return Key::end;
  if (number == "3") return Key::del;
  return Key::unknown;
}

/// Line breaks of any kind become '\n'; other control characters but the tab are dropped.
std::string clean_paste(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      out += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else if (is_text(text[i]) || text[i] == '\n' || text[i] == '\t') {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

std::optional<KeyEvent> KeyDecoder::take(size_t bytes, Key key) {
  pending_.erase(0, bytes);
  return KeyEvent{key, {}};
}

std::optional<KeyEvent> KeyDecoder::next() {
  if (pasting_) return paste_end();
  if (pending_.empty()) return std::nullopt;
  if (is_text(pending_[0])) return text_run();
  if (pending_[0] == '\x1b') return escape_sequence();
  return take(1, control_key(pending_[0]));
}

std::optional<KeyEvent> KeyDecoder::text_run() {
  size_t end = 0;
  while (end < pending_.size() && is_text(pending_[end])) {
    const size_t length = character_length(pending_[end]);
    if (end + length > pending_.size()) break;  // the rest of the character is on its way
    end += length;
  }
  if (end == 0) return std::nullopt;
  KeyEvent event{Key::text, pending_.substr(0, end)};
  pending_.erase(0, end);
  return event;
}

std::optional<KeyEvent> KeyDecoder::escape_sequence() {
  if (pending_.size() < 2) return std::nullopt;
  switch (pending_[1]) {
    case '\r':
    case '\n':
      return take(2, Key::newline);
    case 'b':
      return take(2, Key::word_left);
    case 'f':
      return take(2, Key::word_right);
    case 'd':
      return take(2, Key::cut_word_at);
    case '\x7f':
    case '\b':
      return take(2, Key::cut_word_before);
    case '\x1b':
      return take(1, Key::escape);
    case 'O':
      return pending_.size() < 3 ? std::nullopt : take(3, csi_key("", pending_[2]));
    case '[':
      break;
    default:
      return take(2, Key::unknown);
  }
  // Parameters and intermediates are 0x20..0x3f, the final byte is 0x40..0x7e.
  size_t end = 2;
  while (end < pending_.size() && pending_[end] >= 0x20 && pending_[end] < 0x40) ++end;
  if (end == pending_.size()) return end > 64 ? take(end, Key::unknown) : std::nullopt;
  if (std::string_view(pending_).substr(0, end + 1) == paste_begin_sequence) {
    pending_.erase(0, end + 1);
    pasting_ = true;
    return paste_end();
  }
  const Key key = csi_key(std::string_view(pending_).substr(2, end - 2), pending_[end]);
  return take(end + 1, key);
}

std::optional<KeyEvent> KeyDecoder::paste_end() {
  // Only the last few bytes of what came before can hold the begin of the end sequence.
  const size_t searched =
      pasted_.size() < paste_end_sequence.size() ? 0 : pasted_.size() - paste_end_sequence.size();
  pasted_ += std::exchange(pending_, {});
  const size_t end = pasted_.find(paste_end_sequence, searched);
  if (end == std::string::npos) return std::nullopt;
  pending_ = pasted_.substr(end + paste_end_sequence.size());
  KeyEvent event{Key::paste, clean_paste(std::string_view(pasted_).substr(0, end))};
  pasted_.clear();
  pasting_ = false;
  return event;
}

std::optional<KeyEvent> KeyDecoder::timeout() {
  if (!waiting()) return std::nullopt;
  if (pending_ == "\x1b") return take(1, Key::escape);
  if (pending_[0] == '\x1b') return take(pending_.size(), Key::unknown);
  KeyEvent event{Key::text, std::exchange(pending_, {})};  // an incomplete character: keep its bytes
  return event;
}

}  // namespace ds4::cli
