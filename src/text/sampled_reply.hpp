// A reply as it was sampled, from its tokens.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "ds4/chat.hpp"
#include "ds4/token.hpp"
#include "ds4/tokenizer.hpp"

namespace ds4::text {

/// A finished reply, as it is remembered: `tokens` up to EOS; `block_bytes` of them at the end are tool
/// calls; `thinking`: they began inside reasoning. Null if reasoning was not closed.
std::shared_ptr<const SampledReply> sampled_reply(std::span<const Token> tokens, size_t block_bytes,
                                                  bool thinking, const Tokenizer& tokenizer);

}  // namespace ds4::text
