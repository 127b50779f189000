#include "store/engine_state.hpp"

#include <utility>

#include "base/error.hpp"
#include "store/hash128.hpp"

namespace ds4::store {

std::vector<TextBorder> SnapshotSource::borders() const {
  return token_borders(tokens(), *tokenizer_);
}

Result<void> SessionSink::add_block(std::span<const std::byte> bytes) {
  if (cancelled_ && cancelled_()) return Error{ErrorCode::cancelled, "nobody waits for the state any more"};
  return state_.add_block(bytes);
}

Result<void> SessionSink::add_frontier(std::span<const std::byte> bytes) {
  DS4_ASSIGN(session_, state_.finish(bytes));
  return {};
}

Result<std::string> state_fingerprint(const Engine& engine, const std::string& numerics) {
  DS4_ASSIGN(std::string fingerprint, engine.fingerprint());
  if (numerics.empty()) return fingerprint;
  Hasher hasher;
  hasher.add(fingerprint);
  hasher.add(numerics);
  return hasher.digest().hex();
}

StateStoreOptions store_options(const StateLayout& layout, std::string fingerprint) {
  StateStoreOptions options;
  options.fingerprint = std::move(fingerprint);
  options.block_tokens = state_block_tokens;
  options.block_bytes = layout.block_bytes();
  options.frontier_bytes = [layout](uint64_t position) { return layout.frontier_bytes(position); };
  return options;
}

}  // namespace ds4::store
