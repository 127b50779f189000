#include "store/save_policy.hpp"

#include <algorithm>

#include "base/checked.hpp"

namespace ds4::store {

std::string_view save_reason_name(SaveReason reason) {
  switch (reason) {
    case SaveReason::unknown:
      return "unknown";
    case SaveReason::cold:
      return "cold";
    case SaveReason::continued:
      return "continued";
    case SaveReason::evict:
      return "evict";
    case SaveReason::shutdown:
      return "shutdown";
    case SaveReason::agent_system:
      return "agent-system";
    case SaveReason::agent_session:
      return "agent-session";
    case SaveReason::turn:
      return "turn";
  }
  return "unknown";
}

const char* check(const SavePolicy& policy) {
  if (policy.min_tokens == 0) return "the shortest state that is saved must have a token";
  if (policy.cold_max_tokens != 0 && policy.cold_max_tokens < policy.min_tokens) {
    return "the longest cold prompt that is saved must be 0 or at least the shortest state that is saved";
  }
  return nullptr;
}

uint64_t store_len(const SavePolicy& policy, uint64_t tokens) {
  const auto least = checked_add(policy.min_tokens, policy.boundary_trim_tokens);
  if (!least || tokens <= *least) return tokens;
  uint64_t stable = tokens - policy.boundary_trim_tokens;
  if (policy.boundary_align_tokens > 0) stable -= stable % policy.boundary_align_tokens;
  return stable >= policy.min_tokens ? stable : tokens;
}

std::optional<uint64_t> chat_anchor(const SavePolicy& policy, const SpecialTokens& special,
                                    std::span<const Token> prompt) {
  const auto answer = std::find(prompt.begin(), prompt.end(), special.assistant);
  for (auto token = answer; token != prompt.begin();) {
    if (*--token != special.user) continue;
    const auto length = static_cast<uint64_t>(token - prompt.begin());
    return length >= policy.min_tokens ? std::optional(length) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<uint64_t> cold_target(const SavePolicy& policy, const SpecialTokens& special,
                                    std::span<const Token> prompt) {
  if (prompt.size() < policy.min_tokens || prompt.size() > policy.cold_max_tokens) return std::nullopt;
  if (const auto anchor = chat_anchor(policy, special, prompt)) return anchor;
  return store_len(policy, prompt.size());
}

uint64_t continued_step(const SavePolicy& policy) {
  const uint64_t interval = policy.continued_interval_tokens;
  if (interval == 0 || policy.boundary_align_tokens == 0) return interval;
  return checked_round_up(interval, policy.boundary_align_tokens).value_or(0);
}

}  // namespace ds4::store
