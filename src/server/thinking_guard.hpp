// Brings reasoning to an end when it has used up its tokens, or goes round in circles.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "ds4/token.hpp"

namespace ds4::server {

/// Notices that the last tokens repeat themselves: a period of up to 128 tokens, seen at least 8 times over
/// at least `min_tokens` tokens.
class LoopDetector {
 public:
  static constexpr size_t max_period = 128;
  static constexpr size_t min_repeats = 8;

  explicit LoopDetector(size_t min_tokens = 256) : min_tokens_(min_tokens) {}

  /// True while the tokens up to this one are a loop.
  bool push(Token token);

 private:
  std::array<Token, max_period> last_{};            // ring
  std::array<size_t, max_period + 1> agreement_{};  // by period: tokens in a row that equal the one before
  size_t count_ = 0;
  size_t min_tokens_;
};

/// Watches the tokens inside reasoning.
class ThinkingGuard {
 public:
  enum class Action {
    none,
    nudge,  // tell the model to come to an end; asked for once
    close,  // write the closing tag
  };

  /// Reasoning may take `budget` tokens. The nudge comes at a line end once 7/8 of them are used; budgets
  /// below 128 have none.
  explicit ThinkingGuard(size_t budget) : budget_(budget) {}

  /// What has to be done after this token; `line_end`: its text ends in a newline.
  Action accept(Token token, bool line_end);
  /// Tokens until accept() may ask for something, at least one.
  size_t free_tokens() const;
  bool looped() const { return looped_; }

 private:
  size_t nudge_from() const { return budget_ - budget_ / 8; }

  size_t budget_;
  size_t used_ = 0;
  bool nudged_ = false;
  bool looped_ = false;
  LoopDetector loop_;
};

}  // namespace ds4::server
