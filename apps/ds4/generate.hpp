// One reply: evaluating the prompt, then choosing token after token.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/console.hpp"
#include "ds4/engine.hpp"
#include "ds4/sampling.hpp"

namespace ds4::cli {

enum class StopReason {
  end_of_reply,  // the model chose a token that ends it
  token_limit,
  context_full,
  interrupted,    // Ctrl+C
  output_failed,  // standard output cannot be written
};

struct ReplyOptions {
  SamplingParams sampling;
  size_t max_tokens = 0;
  bool thinking = false;  // the prompt ends with an open reasoning tag
};

struct Reply {
  std::vector<Token> tokens;  // without the one that ended it
  StopReason stop = StopReason::end_of_reply;
  size_t prefilled_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  SpeculationStats drafts;  // of the session so far
};

/// Tokens that may be generated after `position`: one place of the context stays free.
size_t generation_room(uint64_t context, size_t position, size_t wanted);

/// Evaluates the prompt and streams the reply to `output`.
Result<Reply> generate_reply(const Engine& engine, Session& session, std::span<const Token> prompt,
                             const ReplyOptions& options, Rng& rng, Writer& output);

/// "prefill: ... t/s, generation: ... t/s" on standard error.
void say_speed(const Reply& reply);

}  // namespace ds4::cli
