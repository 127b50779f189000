// Places in a text where token sequences that spell the same may be exchanged: just before special tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ds4/token.hpp"
#include "ds4/tokenizer.hpp"
#include "store/hash128.hpp"

namespace ds4::store {

/// A beginning of a text that ends just before a special token, or at the end.
struct TextBorder {
  uint64_t tokens = 0;  // of the sequence, up to here; 0 in the borders of a prompt
  uint64_t text_bytes = 0;
  Hash128 hash;  // of the text and of where in it special tokens begin

  bool operator==(const TextBorder&) const = default;
};

/// Collects the borders of a token sequence. The hash is over the pieces between special tokens, each
/// followed by its length: typed text that spells a special token is not that token.
class TextBorderBuilder {
 public:
  /// The bytes of the next token.
  void add(std::string_view text, bool special);
  /// Those so far, and one for the end.
  std::vector<TextBorder> borders() const;

  uint64_t tokens() const { return tokens_; }

 private:
  TextBorder border_here() const;

  Hasher hasher_;  // of everything added
  uint64_t tokens_ = 0;
  uint64_t text_bytes_ = 0;
  uint64_t piece_begin_ = 0;
  std::vector<TextBorder> borders_;
};

/// The borders of a prompt: before each place in `special` (ascending), where special tokens begin.
std::vector<TextBorder> prompt_borders(std::string_view text, std::span<const size_t> special);

/// The borders of tokens.
std::vector<TextBorder> token_borders(std::span<const Token> tokens, const Tokenizer& tokenizer);

/// Whether tokens spell exactly this text, with special tokens in the same places (ascending; those behind
/// the text do not count): equal hashes only make that very likely.
bool spells(std::span<const Token> tokens, const Tokenizer& tokenizer, std::string_view text,
            std::span<const size_t> special);

}  // namespace ds4::store
