// A request under way: from its prompt to the last event.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ds4/session.hpp"
#include "grammar/constraint.hpp"
#include "server/answer.hpp"
#include "server/disk_cache.hpp"
#include "server/generation.hpp"
#include "server/prompt.hpp"
#include "server/session_pool.hpp"

namespace ds4::server {

/// What is told about a request for logs and traces, when it begins and when it is over.
struct RequestRecord {
  uint64_t id = 0;
  std::string kind, model;
  bool begun = false;  // its beginning was told before
  bool stream = false;
  ThinkMode thinking = ThinkMode::none;
  SamplingParams sampling;
  uint64_t seed = 0;
  size_t max_tokens = 0, choices = 1;
  std::vector<std::string> tools;  // names
  std::string tool_choice, format;
  std::string prompt;
  std::string body;  // as received
  struct Answered {
    std::string text;
    std::string finish;  // as `outcome`; "unfinished"
  };
  std::vector<Answered> answers;
  Usage usage;
  Miss miss = Miss::none;
  bool continued_text = false;  // the session went on with what was sampled, not with the prompt's own tokens
  size_t diverged_at = 0;       // tokens shared with the nearest session
  std::string kept_text, asked_text;  // see Lease
  DiskResult disk = DiskResult::unused;
  double disk_seconds = 0;
  std::string outcome;  // "stop", "length", "tool_calls", "cancelled", or "failed"
  std::string error;
  size_t tool_calls = 0;
  bool tools_malformed = false, tools_repaired = false, thinking_looped = false;
  size_t promised = 0;         // answers kept from ending behind the announcement of an action
  size_t promises_kept = 0;    // of those, with a call in the end
  size_t closed_at_limit = 0;  // answers in a format whose end was written for them
  size_t closed_in_loop = 0;
  size_t tool_reminders = 0;  // in the prompt
  size_t calls_changed = 0;   // see Prompt
  double queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
};

/// One answer and the session it grows in.
struct Choice {
  Answer answer;
  std::shared_ptr<ResidentSession> resident;
};

/// A position at which a prompt's state is written to disk.
struct SavePoint {
  size_t position = 0;
  DiskCache::Save how;
};

/// What holds the answers of a request, at its beginning.
struct Constraints {
  std::optional<grammar::Constraint> answer;  // none: anything may be written
  std::optional<grammar::Constraint> calls;   // see AnswerOptions
};

/// Another request is computing a beginning that this one has as well: nothing is done before that is there.
struct Following {
  uint64_t leader = 0;  // its id
  size_t tokens = 0;    // of the common beginning
};

struct Job {
  using Clock = std::chrono::steady_clock;

  uint64_t id = 0;
  GenerationRequest request;
  Prompt prompt;
  Constraints constraints;
  std::shared_ptr<EventSink> sink;
  size_t max_tokens = 0;
  uint64_t seed = 0;

  std::optional<Following> following;  // there is no lease yet
  Lease lease;
  std::vector<size_t> borders;         // of lease.tokens, ascending, see prompt_borders()
  std::shared_ptr<DiskLook> look;      // under way: nothing is evaluated meanwhile
  std::vector<SavePoint> save_points;  // ascending
  std::vector<size_t> stops;           // of the evaluation: borders and save points, ascending
  size_t saved_steps = 0;              // of those at which a growing conversation is saved
  bool looked_again = false;           // after memory was made for it
  DiskResult disk = DiskResult::unused;
  double disk_seconds = 0;
  bool announced = false;  // while it waits
  bool begun = false;      // and on_begin was called
  bool prefilled = false;
  Usage usage;
  std::vector<Choice> choices;
  Clock::time_point submitted, taken, answered, reported;

  Session& session() { return lease.resident->session(); }
};

/// A stop in a prompt of `total` tokens that leaves no rest too short for the kernels of long pieces before
/// the last token: this one, or a few tokens earlier.
size_t reachable_stop(size_t stop, size_t total);

/// Positions at which the state of a prompt is kept, ascending: before the first turn of a user, where other
/// conversations with the same system text begin; before the last one, which clients change most; and before
/// the last token, where a reply without reasoning differs from one with.
std::vector<size_t> prompt_borders(std::span<const Token> tokens, Token user);

/// Where a prompt of which `cached` tokens were there already is saved while it is evaluated: its beginning
/// that others may share if all of it is new, every so many tokens, and before the last token if much is new
/// or the next prompt will differ from there on.
std::vector<SavePoint> save_points(const store::SavePolicy& policy, const SpecialTokens& special,
                                   std::span<const Token> tokens, size_t cached, bool forgets_reasoning);

/// A slice of a prompt has at least so many tokens, unless the engine's chunks are smaller.
inline constexpr size_t least_quantum_tokens = 32;

/// How many tokens a slice has if `measured` fit into its time, with chunks of at most `chunk` (at least 1).
size_t slice_tokens(double measured, size_t chunk);

/// The next piece of a prompt of `total` tokens of which `done` are evaluated: up to `quantum` tokens and up
/// to the next stop, but never a piece or a rest too short for the kernels of long pieces, unless it ends
/// before the last token.
size_t prefill_end(size_t done, size_t total, size_t quantum, std::span<const size_t> stops);

/// "stop", "length", "tool_calls", "failed".
std::string_view finish_name(FinishReason reason);

/// Of a job that has begun, or is over.
RequestRecord make_record(const Job& job, std::string outcome, std::string error, const Tokenizer& tokenizer);

}  // namespace ds4::server
