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

Result<std::unique_ptr<StateStore>> open_engine_store(const Engine& engine,
                                                      const EngineStoreOptions& options) {
  StateStoreOptions store;
  store.directory = options.directory;
  store.policy = options.policy;
  store.block_tokens = state_block_tokens;
  store.block_bytes = engine.state_layout().block_bytes();
  store.frontier_bytes = [layout = engine.state_layout()](uint64_t position) {
    return layout.frontier_bytes(position);
  };
  DS4_ASSIGN(store.fingerprint, state_fingerprint(engine, options.numerics));
  return StateStore::open(std::move(store));
}

}  // namespace ds4::store
