// Inner workings of a Session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.hpp"
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
  /// Remembers the present state, from which a token can be chosen.
  Result<void> add_anchor();
  void reset();
  /// Appends `first` and those of `depth` drafts that would have been chosen anyway.
  Result<std::vector<Token>> speculate(Token first, size_t depth, const SamplingParams& params, Rng& rng,
                                       std::span<const Token> stops);
  /// Counts and times one step of generate().
  void observe_plain(double seconds);

  std::shared_ptr<const EngineImpl> engine;
  std::unique_ptr<backend::Sequence> sequence;
  uint64_t context;
  std::vector<Token> tokens;
  std::vector<float> fetched_logits;  // of the present position once somebody asked; else empty
  Anchors anchors;
  SpeculationOptions speculation_options;
  SpeculationStats speculation_stats;
  DraftDepth draft_depth{speculation_options};
};

}  // namespace ds4
