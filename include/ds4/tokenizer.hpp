// Text to tokens and back, by the rules the model was trained with (docs/tokenizer.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/token.hpp"

namespace ds4 {

/// Ids of the tokens that structure a conversation.
struct SpecialTokens {
  Token bos = -1;
  Token eos = -1;
  Token user = -1;
  Token assistant = -1;
  Token think_open = -1;
  Token think_close = -1;
  Token dsml = -1;
};

/// Byte-level BPE. Immutable after creation; safe to use from several threads.
class Tokenizer {
 public:
  /// `tokens[i]` is the vocabulary string of id i (GPT-2 byte alphabet for ordinary tokens, literal text for
  /// added ones); `merges[r]` is "LEFT RIGHT" with rank r. Error if one of the seven special tokens is
  /// missing.
  static Result<Tokenizer> create(std::span<const std::string_view> tokens,
                                  std::span<const std::string_view> merges);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  size_t vocabulary_size() const;
  const SpecialTokens& special() const;

  /// Untrusted text: spellings of special tokens stay ordinary text. Never fails; time is linear in the text.
  std::vector<Token> encode_plain(std::string_view text) const;
  /// Text made by the engine itself: the seven special spellings become their tokens.
  std::vector<Token> encode_rendered(std::string_view text) const;

  /// Bytes of one token (empty for an id outside the vocabulary), and of a sequence. A token may end in the
  /// middle of a UTF-8 character.
  std::string decode(Token token) const;
  std::string decode(std::span<const Token> tokens) const;

  /// The raw vocabulary string (GPT-2 alphabet); empty for an id outside the vocabulary.
  std::string_view vocabulary_string(Token token) const;
  /// Id of a raw vocabulary string, or -1.
  Token find(std::string_view vocabulary_string) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Holds back the bytes of an unfinished UTF-8 character, so that streamed text never splits one.
class Utf8Stream {
 public:
  /// Appends bytes and returns what can be shown now.
  std::string push(std::string_view bytes);
  /// Returns what is left, even if incomplete.
  std::string flush();

 private:
  std::string pending_;
};

}  // namespace ds4
