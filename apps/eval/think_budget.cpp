#include "think_budget.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace ds4::eval {

std::string_view close_name(CloseKind kind) {
  switch (kind) {
    case CloseKind::none:
      return "none";
    case CloseKind::natural:
      return "natural";
    case CloseKind::soft_forced:
      return "soft_forced";
    case CloseKind::hard_forced:
      return "hard_forced";
  }
  return "";
}

Result<std::optional<Token>> ThinkWatch::forced(uint64_t remaining, const RankOfClose& rank_of_close) {
  if (!thinking_) return std::optional<Token>();
  if (remaining <= budget_.hard_tokens) {
    close_.kind = CloseKind::hard_forced;
    return std::optional(close_token_);
  }
  if (remaining > budget_.soft_tokens) return std::optional<Token>();
  DS4_ASSIGN(const uint64_t rank, rank_of_close(budget_.close_rank));
  if (rank == 0) return std::optional<Token>();
  close_.kind = CloseKind::soft_forced;
  close_.rank = rank;
  return std::optional(close_token_);
}

uint64_t ThinkWatch::free_tokens(uint64_t remaining) const {
  if (!thinking_) return remaining;
  const uint64_t first_limit = std::max(budget_.soft_tokens, budget_.hard_tokens);
  return remaining > first_limit ? remaining - first_limit : 1;
}

void ThinkWatch::generated(uint64_t index, uint64_t remaining, std::string_view text) {
  static constexpr std::string_view tag = "</think>";
  if (!thinking_) return;
  tail_ += text;
  if (tail_.find(tag) == std::string::npos) {
    if (tail_.size() >= tag.size()) tail_.erase(0, tail_.size() - (tag.size() - 1));
    return;
  }
  thinking_ = false;
  if (close_.kind == CloseKind::none) close_.kind = CloseKind::natural;
  close_.token_index = index;
  close_.remaining_tokens = remaining;
}

}  // namespace ds4::eval
