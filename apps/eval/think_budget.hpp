// When reasoning has to end so that room for the answer is left (docs/eval.md §4).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "ds4/error.hpp"
#include "ds4/token.hpp"

namespace ds4::eval {

struct ReplyBudget {
  uint64_t soft_tokens = 1024;  // with this many left, reasoning ends as soon as the model nearly would
  uint64_t hard_tokens = 512;   // with this many left, it ends
  uint64_t close_rank = 3;      // "nearly": the closing tag is among this many likeliest tokens
};

enum class CloseKind { none, natural, soft_forced, hard_forced };
/// "none", "natural", "soft_forced", "hard_forced".
std::string_view close_name(CloseKind kind);

/// How reasoning ended.
struct ThinkClose {
  CloseKind kind = CloseKind::none;
  uint64_t token_index = 0;       // of the closing token among the generated ones, from 1
  uint64_t remaining_tokens = 0;  // of the budget when it was chosen
  uint64_t rank = 0;              // soft_forced: its place among the likeliest tokens, from 1
};

/// Watches one reply. The closing tag is one token of the vocabulary.
class ThinkWatch {
 public:
  /// `thinking`: the prompt ended with an open reasoning tag.
  ThinkWatch(const ReplyBudget& budget, Token close_token, bool thinking)
      : budget_(budget), close_token_(close_token), thinking_(thinking) {}

  /// The place of the closing token among the likeliest `limit` ones, from 1; 0 if it is not there.
  using RankOfClose = std::function<Result<uint64_t>(uint64_t limit)>;
  /// The token that must come next, or none: then the model chooses. `remaining`: tokens that may still be
  /// generated, this one included. Asks for the rank only where it matters.
  Result<std::optional<Token>> forced(uint64_t remaining, const RankOfClose& rank_of_close);
  /// How many tokens the model may choose before forced() has to be asked again, when it has just said none.
  uint64_t free_tokens(uint64_t remaining) const;
  /// A token was generated as number `index` from 1, with the bytes `text`.
  void generated(uint64_t index, uint64_t remaining, std::string_view text);

  bool thinking() const { return thinking_; }
  const ThinkClose& close() const { return close_; }

 private:
  ReplyBudget budget_;
  Token close_token_;
  bool thinking_;
  ThinkClose close_;
  std::string tail_;  // the last bytes, in which a closing tag may have begun
};

}  // namespace ds4::eval
