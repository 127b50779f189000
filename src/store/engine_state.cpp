#include "store/engine_state.hpp"

#include <utility>

#include "base/error.hpp"
#include "store/hash128.hpp"

namespace ds4::store {

std::vector<TextBorder> SnapshotSource::borders() const {
  return token_borders(tokens(), *tokenizer_);
}

Result<void> SessionSink::add_frontier(std::span<const std::byte> bytes) {
  DS4_ASSIGN(session_, state_.finish(bytes));
  return {};
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
  DS4_ASSIGN(store.fingerprint, engine.fingerprint());
  if (!options.numerics.empty()) {
    Hasher hasher;
    hasher.add(store.fingerprint);
    hasher.add(options.numerics);
    store.fingerprint = hasher.digest().hex();
  }
  return StateStore::open(std::move(store));
}

}  // namespace ds4::store
