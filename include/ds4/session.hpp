// One conversation's state: the tokens evaluated so far and everything needed to continue them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/sampling.hpp"
#include "ds4/speculation.hpp"
#include "ds4/steering.hpp"
#include "ds4/token.hpp"

namespace ds4 {

/// Opaque copy of a session's state; valid for any session of the same engine with enough context.
class Snapshot {
 public:
  size_t size_bytes() const;
  size_t tokens() const;
  std::span<const Token> token_ids() const;

  /// Writes the state as bytes (ds4/state.hpp): a block of those that the tokens fill, and what else is
  /// needed to go on. Any thread, also while the session goes on. Errors: invalid_argument for another block,
  /// for room of another size than the engine's StateLayout says, for an empty snapshot, or if the engine is
  /// gone; out_of_memory.
  Result<void> export_block(size_t block, std::span<std::byte> out) const;
  Result<void> export_frontier(std::span<std::byte> out) const;

 private:
  friend class Session;
  std::shared_ptr<const struct SnapshotImpl> impl_;
};

class ExpertInputs;

struct SyncOptions {
  /// Called with (tokens done, tokens in all) counted from position 0; finer than chunks, from the calling
  /// thread.
  std::function<void(size_t, size_t)> on_progress;
  /// Polled between layers; true stops the call with ErrorCode::cancelled. What was complete stays usable.
  std::function<bool()> cancelled;
  /// Positions, in any order, at which keep_anchor() is wanted on the way: the ends of those parts of the
  /// prompt that another prompt may share. Prefill stops at each, so pieces get smaller. In what is reused
  /// only positions where a state happens to be kept count; others are passed over.
  std::vector<size_t> keep_anchors;
  /// Of the same engine: gets the inputs of the experts for every token that is evaluated (not for what is
  /// reused). After an error its sums are of no use. One call at a time. invalid_argument for one of another
  /// engine.
  ExpertInputs* expert_inputs = nullptr;
};

/// The most positions that keep_anchor() holds in one session.
inline constexpr size_t max_kept_anchors = 8;

/// How much a sync() could keep.
struct SyncStats {
  size_t reused = 0;     // tokens whose state was kept
  size_t evaluated = 0;  // tokens computed by this call
};

/// What a model thinks of a token that is known.
struct TokenScore {
  float logprob = 0;       // as token_logprob() of the logits before it
  bool likeliest = false;  // whether greedy decoding would have chosen it
};

/// Not thread-safe itself; different sessions of one engine may be used from different threads.
class Session {
 public:
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  /// Brings the state to exactly `prompt`, reusing the longest usable prefix of what is there. Afterwards
  /// logits() are those after its last token. Errors: context_full, invalid_argument (a token outside the
  /// vocabulary; empty prompt), cancelled, not_finite. After the last two the session holds a prefix of
  /// `prompt`.
  Result<SyncStats> sync(std::span<const Token> prompt, const SyncOptions& options = {});

  /// Appends one token. Errors: context_full, invalid_argument; not_finite if no token can be chosen from the
  /// logits after it, because they hold NaN or no finite value. Then the token is in the session all the
  /// same, logits() show what was computed, and rewind() or sync() go back to what was good.
  Result<void> eval(Token token);

  /// Appends known tokens, as sync() would in chunks, and returns for each how likely it was to come there:
  /// the score of a text. Needs a token before the first. Errors: context_full, invalid_argument, cancelled,
  /// not_finite. After the last two the session holds a prefix of what it was to hold.
  Result<std::vector<TokenScore>> score(std::span<const Token> tokens, const SyncOptions& options = {});

  /// The token to follow the last one, chosen where the logits are (on the GPU, if the model is there); the
  /// same as ds4::sample() of logits(). Consumes one random number, none when greedy. Errors:
  /// invalid_argument before the first token, not_finite.
  Result<Token> sample(const SamplingParams& params, Rng& rng) const;
  /// The same, but only tokens whose bit is set may be chosen, as if the logits of the others were -infinity.
  /// Bit t % 64 of word t / 64 belongs to token t; as many words as the vocabulary fills. Chosen on the host,
  /// from a copy of the logits (4 bytes a vocabulary entry, some 0.1 ms from a GPU). Errors also:
  /// invalid_argument for another number of words, or if no token is allowed; not_finite if no allowed one
  /// has a finite logit.
  Result<Token> sample(const SamplingParams& params, Rng& rng, std::span<const uint64_t> allowed) const;
  /// The most likely token to follow, the first of equals. Errors as for sample().
  Result<Token> argmax() const;

  /// Chooses and appends the next tokens, at least one and at most `max_tokens`: those that sample() and
  /// eval() would give one after the other, with the same random numbers, but several at a time where drafts
  /// are right. Ends early before one of `stops`, which is then the last token returned but is not appended.
  /// Errors as for sample() and eval().
  Result<std::vector<Token>> generate(const SamplingParams& params, Rng& rng, size_t max_tokens,
                                      std::span<const Token> stops = {});
  /// How generate() uses the engine's drafter; without one it never drafts.
  void set_speculation(const SpeculationOptions& options);
  const SpeculationStats& speculation() const;

  /// Holds for tokens evaluated from now on; what was evaluated before stays as it is. No effect without
  /// directions.
  void set_steering(const SteeringScales& scales);
  /// Evaluates `prompt` in a session that was reset, and returns what a part of every layer computed for its
  /// last `rows` tokens, before steering: [layers][rows][width]. Errors: as for sync(); invalid_argument for
  /// a prompt longer than one prefill chunk; unsupported.
  Result<std::vector<float>> capture(std::span<const Token> prompt, Component component, size_t rows);

  /// Logits after the last token, one per vocabulary entry; empty before the first token. Copied from the
  /// device when asked for; valid until the session changes.
  Result<std::span<const float>> logits() const;

  std::span<const Token> tokens() const;
  size_t position() const { return tokens().size(); }
  uint64_t context() const;
  size_t common_prefix(std::span<const Token> prompt) const;

  /// Goes back to `position` tokens. Exact: what follows is what would have followed then. Possible for any
  /// position that can be reached again from a kept anchor; otherwise no_state, with the reason and the
  /// nearest position that can be reached without recomputing from the start. logits() are valid afterwards
  /// (position 0: empty).
  Result<void> rewind(size_t position);
  /// Keeps the present state, with its logits, so that rewind() and sync() can come back to it without
  /// evaluating anything, however many tokens follow. At most max_kept_anchors are held; a further one makes
  /// the oldest an ordinary anchor, of those that sync() leaves at the ends of chunks and of prompts and
  /// decoding every 128 tokens, and that are thinned out. There are at most 16 in all; each takes
  /// MemoryPlan::session_bytes and a row of logits (Flash on a GPU: some 25 MB). Gone with reset(),
  /// restore(), and when the session goes back to before it. Errors: invalid_argument before the first token,
  /// not_finite, out_of_memory.
  Result<void> keep_anchor();
  /// The last position at or before `position` at which a state is kept (the present one counts), or 0. So
  /// sync(p) evaluates p.size() - nearest_reachable(common_prefix(p)) tokens.
  size_t nearest_reachable(size_t position) const;
  /// How many tokens rewind(position) would evaluate; none if it would fail.
  std::optional<size_t> rewind_cost(size_t position) const;
  /// Forgets everything.
  void reset();
  /// A further session with the state of this one after nearest_reachable(position) tokens, sharing what is
  /// frozen; the two go on independently. Neither steering nor speculation is taken over. Errors:
  /// out_of_memory.
  Result<Session> fork(size_t position) const;

  Result<Snapshot> snapshot() const;
  /// The state after the first `position` tokens, where one is kept (nearest_reachable(position) ==
  /// position); costs nothing. no_state otherwise.
  Result<Snapshot> snapshot(size_t position) const;
  Result<void> restore(const Snapshot& snapshot);

  /// Bytes of state held now.
  size_t state_bytes() const;
  /// Bytes of the earlier states that are kept to go back to, beside those that they share with the present
  /// one and with each other.
  size_t anchor_bytes() const;

 private:
  friend class Engine;
  friend class StateImport;
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// A token to append to a session (Engine::eval_batch).
struct BatchRow {
  Session* session = nullptr;
  Token token = -1;
};

/// The most sessions that take part in one pass.
inline constexpr size_t max_batch_rows = 16;

}  // namespace ds4
