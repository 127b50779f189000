#include "text/pre_tokenizer.hpp"

#include "text/utf8.hpp"

namespace ds4::text {
namespace {

bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

}  // namespace

PreTokenizer::Character PreTokenizer::at(size_t position) const {
  if (position >= text_.size()) return {.end = position};
  const CodePoint c = code_point_at(text_, position);
  const CharacterClass kind = character_class(c.value);
  const Run run = kind == CharacterClass::number ? Run::number : is_cjk(c.value) ? Run::cjk : Run::other;
  return {kind, run, position + c.length_bytes, true};
}

PreTokenizer::Character PreTokenizer::at(size_t position, Run run) const {
  Character c = at(position);
  c.present = c.present && c.run == run;
  return c;
}

size_t PreTokenizer::end_while(size_t position, CharacterClass kind, Run run) const {
  for (Character c = at(position, run); c.present && c.kind == kind; c = at(position, run)) position = c.end;
  return position;
}

size_t PreTokenizer::number_end(size_t begin) const {
  size_t end = begin;
  for (int digits = 0; digits < 3; ++digits) {
    const Character c = at(end, Run::number);
    if (!c.present) break;
    end = c.end;
  }
  return end;
}

/// White space: everything up to the last newline; without a newline all but the last character, which may
/// belong to what follows, unless the run ends here.
size_t PreTokenizer::space_end(size_t begin) const {
  size_t end = begin;
  size_t last_begin = begin;
  size_t newline_end = begin;
  Character c = at(begin, Run::other);
  while (c.present && (c.kind == CharacterClass::space || c.kind == CharacterClass::newline)) {
    last_begin = end;
    end = c.end;
    if (c.kind == CharacterClass::newline) newline_end = end;
    c = at(end, Run::other);
  }
  if (newline_end != begin) return newline_end;
  if (!c.present || last_begin == begin) return end;
  return last_begin;
}

/// Characters that no rule takes stay together.
size_t PreTokenizer::unmatched_end(size_t begin, Run run) const {
  size_t end = begin;
  for (Character c = at(end, run); c.present && c.kind == CharacterClass::other; c = at(end, run)) {
    const Character following = at(c.end, run);
    if (following.present && following.kind == CharacterClass::word) break;
    end = c.end;
  }
  return end;
}

size_t PreTokenizer::piece_end(size_t begin) const {
  const Character first = at(begin);
  if (first.run == Run::number) return number_end(begin);

  const char byte = text_[begin];
  if (first.kind == CharacterClass::punctuation && is_ascii(byte) && first.end < text_.size() &&
      is_ascii_letter(text_[first.end])) {
    size_t end = first.end;
    while (end < text_.size() && is_ascii_letter(text_[end])) ++end;
    return end;
  }

  const Character second = at(first.end, first.run);
  const bool word_follows = second.present && second.kind == CharacterClass::word;
  const bool may_lead_word =
      first.kind != CharacterClass::newline && first.kind != CharacterClass::punctuation;
  if (first.kind == CharacterClass::word || (may_lead_word && word_follows)) {
    return end_while(first.end, CharacterClass::word, first.run);
  }

  const bool punctuation_follows = second.present && second.kind == CharacterClass::punctuation;
  if (first.kind == CharacterClass::punctuation || (byte == ' ' && punctuation_follows)) {
    return end_while(end_while(first.end, CharacterClass::punctuation, first.run), CharacterClass::newline,
                     first.run);
  }

  if (first.kind == CharacterClass::other) return unmatched_end(begin, first.run);
  return space_end(begin);
}

bool PreTokenizer::next(std::string_view& piece) {
  if (position_ >= text_.size()) return false;
  const size_t end = piece_end(position_);
  piece = text_.substr(position_, end - position_);
  position_ = end;
  return true;
}

}  // namespace ds4::text
