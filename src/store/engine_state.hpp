// Between sessions and the disk store: where a state comes from, and where it goes.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "ds4/engine.hpp"
#include "ds4/state.hpp"
#include "ds4/tokenizer.hpp"
#include "store/state_store.hpp"
#include "store/text_borders.hpp"

namespace ds4::store {

/// A snapshot to be written. The tokenizer must outlive it.
class SnapshotSource final : public StateSource {
 public:
  SnapshotSource(Snapshot snapshot, const Tokenizer& tokenizer)
      : snapshot_(std::move(snapshot)), tokenizer_(&tokenizer) {}

  std::span<const Token> tokens() const override { return snapshot_.token_ids(); }
  std::vector<TextBorder> borders() const override;
  Result<void> export_block(size_t block, std::span<std::byte> out) const override {
    return snapshot_.export_block(block, out);
  }
  Result<void> export_frontier(std::span<std::byte> out) const override {
    return snapshot_.export_frontier(out);
  }

 private:
  Snapshot snapshot_;
  const Tokenizer* tokenizer_;
};

/// A session that is read.
class SessionSink final : public StateSink {
 public:
  /// `cancelled` is asked before every block; reading ends with that error.
  explicit SessionSink(StateImport state, std::function<bool()> cancelled = {})
      : state_(std::move(state)), cancelled_(std::move(cancelled)) {}

  Result<void> add_block(std::span<const std::byte> bytes) override;
  Result<void> add_frontier(std::span<const std::byte> bytes) override;
  /// There once everything was read.
  std::optional<Session> take() { return std::move(session_); }

 private:
  StateImport state_;
  std::function<bool()> cancelled_;
  std::optional<Session> session_;
};

/// Engine::fingerprint(), and `numerics`, which names what states depend on beside it: the scales of
/// steering.
Result<std::string> state_fingerprint(const Engine& engine, const std::string& numerics);

/// Options of a store for states of this layout; folder and policy are the caller's to add. `fingerprint`:
/// that of state_fingerprint(), or of ModelStates.
StateStoreOptions store_options(const StateLayout& layout, std::string fingerprint);

}  // namespace ds4::store
