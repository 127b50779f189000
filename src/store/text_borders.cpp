#include "store/text_borders.hpp"

#include <string>

#include "text/special_tokens.hpp"

namespace ds4::store {

void TextBorderBuilder::add(std::string_view text, bool special) {
  if (special) {
    hasher_.add_u64(text_bytes_ - piece_begin_);
    piece_begin_ = text_bytes_;
    borders_.push_back({tokens_, text_bytes_, hasher_.digest()});
  }
  hasher_.add(text);
  text_bytes_ += text.size();
  ++tokens_;
}

std::vector<TextBorder> TextBorderBuilder::borders() const {
  std::vector<TextBorder> all = borders_;
  if (tokens_ > 0) all.push_back(border_here());
  return all;
}

TextBorder TextBorderBuilder::border_here() const {
  Hasher with_length = hasher_;
  with_length.add_u64(text_bytes_ - piece_begin_);
  return {tokens_, text_bytes_, with_length.digest()};
}

std::vector<TextBorder> prompt_borders(std::string_view text, std::span<const size_t> special) {
  std::vector<TextBorder> borders;
  Hasher hasher;
  size_t begin = 0;
  for (const size_t at : special) {
    if (at > text.size() || at < begin) break;
    hasher.add(text.substr(begin, at - begin));
    hasher.add_u64(at - begin);
    borders.push_back({0, at, hasher.digest()});
    begin = at;
  }
  return borders;
}

std::vector<TextBorder> token_borders(std::span<const Token> tokens, const Tokenizer& tokenizer) {
  TextBorderBuilder builder;
  for (const Token token : tokens) {
    builder.add(tokenizer.decode(token), text::is_special(tokenizer.special(), token));
  }
  return builder.borders();
}

bool spells(std::span<const Token> tokens, const Tokenizer& tokenizer, std::string_view text,
            std::span<const size_t> special) {
  size_t at = 0;
  for (const Token token : tokens) {
    const bool begins_special = !special.empty() && special.front() == at;
    if (text::is_special(tokenizer.special(), token) != begins_special) return false;
    const std::string piece = tokenizer.decode(token);
    if (!text.substr(at).starts_with(piece)) return false;
    at += piece.size();
    if (begins_special) special = special.subspan(1);
    if (!special.empty() && special.front() < at) return false;
  }
  return at == text.size();
}

}  // namespace ds4::store
