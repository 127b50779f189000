// Inner workings of a Session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "base/out_of_memory.hpp"
#include "ds4/session.hpp"
#include "engine/anchors.hpp"
#include "engine/draft_depth.hpp"
#include "engine/engine_impl.hpp"

namespace ds4 {

/// While tokens are generated, a state to go back to is kept this often. Multiples of 128 are where the
/// compressors have no open window.
inline constexpr size_t anchor_interval_tokens = 128;

struct SnapshotImpl {
  std::weak_ptr<const EngineImpl> engine;
  std::shared_ptr<const backend::StateImage> image;
  std::vector<Token> tokens;
};

struct Session::Impl {
  Impl(std::shared_ptr<const EngineImpl> owner, std::unique_ptr<backend::Sequence> state, uint64_t max_tokens)
      : engine(std::move(owner)), sequence(std::move(state)), context(max_tokens) {}

  Result<void> check_prompt(std::span<const Token> prompt) const;
  /// The backend's part of `inputs`; invalid_argument if they are another engine's.
  Result<backend::ExpertInputs*> expert_inputs(ExpertInputs& inputs) const;
  /// not_finite if there are logits, and no token can be chosen from them.
  Result<void> check_finite() const;
  /// Evaluates one chunk of a text of `total` tokens; the logits of its last `logit_rows` tokens go to
  /// `logits`, as from Backend::prefill().
  Result<void> extend_chunk(std::span<const Token> chunk, size_t total, size_t logit_rows,
                            std::span<float> logits, const SyncOptions& options);
  /// Evaluates prompt[tokens.size() ..) chunk by chunk.
  Result<void> extend(std::span<const Token> prompt, const SyncOptions& options);
  /// Goes back to the newest anchor at or before `position`, or to the start.
  Result<void> fall_back(size_t position);
  /// Remembers the present state, from which a token can be chosen. Without memory for it another anchor is
  /// given up; if that does not help, nothing is remembered.
  Result<void> add_anchor();
  void reset();
  /// context_full unless there is room for a token.
  Result<void> check_room() const;
  /// Appends rows[i].token to *sessions[i], whose sequence is rows[i].sequence and which has room. The rows'
  /// results, or the error of all.
  static Result<std::vector<Result<void>>> append(const backend::Backend& device,
                                                  std::span<Impl* const> sessions,
                                                  std::span<const backend::DecodeRow> rows);
  /// What follows when a token was appended: not_finite, or perhaps an anchor.
  Result<void> finish_token();
  /// Appends `first` and those of `depth` drafts that would have been chosen anyway.
  Result<std::vector<Token>> speculate(Token first, size_t depth, const SamplingParams& params, Rng& rng,
                                       std::span<const Token> stops);
  /// Counts and times one step of generate().
  void observe_plain(double seconds);

  /// After an allocation failed anywhere: the tokens are again those of the sequence, or none.
  void settle();
  /// What `call` returns; out_of_memory, with a session that can be used, if an allocation in it fails.
  template <class Call>
  auto guarded(const char* what, const Call& call) -> decltype(call()) {
    auto result = catch_bad_alloc(what, call);
    if (!result && result.error().code == ErrorCode::out_of_memory) settle();
    return result;
  }

  // What the session's functions of these names do, but for guarding.
  Result<SyncStats> sync(std::span<const Token> prompt, const SyncOptions& options);
  Result<std::vector<float>> capture(std::span<const Token> prompt, Component component, size_t rows);
  Result<Token> sample(std::span<const float> logits, const SamplingParams& params, Rng& rng,
                       std::span<const uint64_t> allowed);
  size_t common_prefix(std::span<const Token> prompt) const;
  Result<void> rewind(size_t position);
  Result<void> restore(const SnapshotImpl& source);

  std::shared_ptr<const EngineImpl> engine;
  std::unique_ptr<backend::Sequence> sequence;
  uint64_t context;
  std::vector<Token> tokens;
  std::vector<float> fetched_logits;  // of the present position once somebody asked; else empty
  std::vector<float> masked_logits;   // scratch of a choice among some tokens
  Anchors anchors;
  SpeculationOptions speculation_options;
  SpeculationStats speculation_stats;
  DraftDepth draft_depth{speculation_options};
};

}  // namespace ds4
