// When and at which lengths states are worth saving; the knobs of the disk cache.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ds4/token.hpp"
#include "ds4/tokenizer.hpp"

namespace ds4::store {

/// Why a state was saved. The values are those of files.
enum class SaveReason : uint8_t {
  unknown = 0,
  cold = 1,       // a prompt that found nothing to continue
  continued = 2,  // every so many tokens
  evict = 3,      // before the state leaves memory
  shutdown = 4,
  agent_system = 5,
  agent_session = 6,
  turn = 7,  // the end of a reply
};
std::string_view save_reason_name(SaveReason reason);

struct SavePolicy {
  uint64_t min_tokens = 512;                   // nothing shorter is saved or loaded
  uint64_t cold_max_tokens = 30000;            // longest prompt that is saved as cold; 0: none is
  uint64_t continued_interval_tokens = 10000;  // 0: no saves while a text grows
  uint64_t boundary_trim_tokens = 32;
  uint64_t boundary_align_tokens = 2048;  // 0: any length
};

/// Null if the numbers go together, else what is wrong with them.
const char* check(const SavePolicy& policy);

/// Where to save a prompt of `tokens` tokens: without its last few, at a multiple of the alignment, if that
/// is not too short; else all of it.
uint64_t store_len(const SavePolicy& policy, uint64_t tokens);

/// Tokens before the first turn's question: the place of the last user tag before the first assistant tag.
/// Nothing if there is none, or if it is below the minimum.
std::optional<uint64_t> chat_anchor(const SavePolicy& policy, const SpecialTokens& special,
                                    std::span<const Token> prompt);

/// Where a request without anything to continue is saved: its chat anchor, else store_len(). Nothing if it is
/// too short or too long.
std::optional<uint64_t> cold_target(const SavePolicy& policy, const SpecialTokens& special,
                                    std::span<const Token> prompt);

/// The interval rounded up to the alignment; 0: none.
uint64_t continued_step(const SavePolicy& policy);

}  // namespace ds4::store
