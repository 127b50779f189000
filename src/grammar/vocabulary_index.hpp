// The byte strings of a vocabulary as a tree, for finding all tokens that a grammar allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/token.hpp"
#include "ds4/tokenizer.hpp"

namespace ds4::grammar {

/// The byte strings of a vocabulary as a tree: ordinary tokens, and of the special ones the mark of tool
/// markup. Made once per tokenizer (some tenths of a second). Immutable; may be shared by threads.
class VocabularyIndex {
 public:
  explicit VocabularyIndex(const Tokenizer& tokenizer);

  size_t vocabulary_size() const { return vocabulary_size_; }
  /// 64-bit words of a mask: bit `token % 64` of word `token / 64`.
  size_t mask_words() const { return (vocabulary_size_ + 63) / 64; }
  Token eos() const { return eos_; }
  Token dsml() const { return dsml_; }
  /// Empty for tokens that are never allowed (other special tokens, unused ids) and for EOS.
  std::string_view bytes(Token token) const;

  /// The bytes as tokens, each as long as can be; empty if there is none for one of them.
  std::vector<Token> spell(std::string_view text, bool with_dsml) const;

  /// The tree in depth-first order; node 0 is the empty string.
  struct Node {
    uint32_t end = 0;           // one behind the last node of the subtree
    uint32_t tokens_begin = 0;  // into tokens(); the tokens of node i end where those of node i + 1 begin
    uint16_t depth = 0;
    uint8_t byte = 0;
  };
  std::span<const Node> nodes() const { return nodes_; }  // and one more that only ends the last token list
  std::span<const Token> tokens() const { return tokens_; }
  size_t most_characters() const { return most_characters_; }  // in one token
  size_t most_openings() const { return most_openings_; }      // '{' and '[' in one token

 private:
  void build_tree();

  size_t vocabulary_size_ = 0;
  Token eos_ = -1, dsml_ = -1;
  size_t most_characters_ = 0, most_openings_ = 0;
  std::string text_;               // of all tokens, one after another
  std::vector<uint32_t> offsets_;  // vocabulary_size + 1
  std::vector<Node> nodes_;
  std::vector<Token> tokens_;
};

}  // namespace ds4::grammar
