// A request under way: from its prompt to the last event.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ds4/session.hpp"
#include "grammar/grammar.hpp"
#include "server/answer.hpp"
#include "server/generation.hpp"
#include "server/prompt.hpp"
#include "server/session_pool.hpp"

namespace ds4::server {

/// What is told about a request when it is over, for logs and traces.
struct RequestRecord {
  uint64_t id = 0;
  std::string kind, model;
  std::string prompt, generated;  // texts; the generated one is of the first answer
  std::string body;               // as received
  Usage usage;
  Miss miss = Miss::none;
  bool continued_text = false;  // the session went on with what was sampled, not with the prompt's own tokens
  size_t diverged_at = 0;       // tokens shared with the nearest session
  std::string outcome;          // "stop", "length", "tool_calls", "cancelled", or "failed"
  std::string error;
  size_t tool_calls = 0;
  bool tools_malformed = false, tools_repaired = false, thinking_looped = false;
  double queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
};

/// One answer and the session it grows in.
struct Choice {
  Answer answer;
  std::shared_ptr<ResidentSession> resident;
};

struct Job {
  using Clock = std::chrono::steady_clock;

  uint64_t id = 0;
  GenerationRequest request;
  Prompt prompt;
  std::shared_ptr<const grammar::Grammar> grammar;  // null: unconstrained
  std::shared_ptr<EventSink> sink;
  size_t max_tokens = 0;
  uint64_t seed = 0;

  Lease lease;
  bool prefilled = false;
  Usage usage;
  std::vector<Choice> choices;
  Clock::time_point submitted, taken, answered, reported;

  Session& session() { return lease.resident->session(); }
};

/// The next piece of a prompt of `total` tokens of which `done` are evaluated: up to `quantum` tokens, but
/// never a rest too short for the kernels of long pieces, and the last token always alone, so that the state
/// before it can be gone back to: there a reply without reasoning differs from one with.
size_t prefill_end(size_t done, size_t total, size_t quantum);

/// The last record of a job.
RequestRecord make_record(const Job& job, std::string outcome, std::string error, const Tokenizer& tokenizer);

}  // namespace ds4::server
