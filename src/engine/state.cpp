// A session's state as bytes: taken from snapshots, and put together again.
#include "ds4/state.hpp"

#include <utility>

#include "backend/checks.hpp"
#include "base/error.hpp"
#include "base/out_of_memory.hpp"
#include "engine/fingerprint.hpp"
#include "engine/session_impl.hpp"

namespace ds4 {
namespace {

Result<void> check_size(const char* what, size_t bytes, size_t expected) {
  if (bytes == expected) return {};
  return fail(ErrorCode::invalid_argument, "{} has {} bytes, not {}", what, expected, bytes);
}

// The engine of a snapshot that is not empty.
Result<std::shared_ptr<const EngineImpl>> engine_of(const SnapshotImpl* snapshot) {
  if (snapshot == nullptr || snapshot->tokens.empty()) {
    return fail(ErrorCode::invalid_argument, "the snapshot is empty");
  }
  auto engine = snapshot->engine.lock();
  if (engine == nullptr) return fail(ErrorCode::invalid_argument, "the engine of the snapshot is closed");
  return engine;
}

}  // namespace

std::span<const Token> Snapshot::token_ids() const {
  return impl_ == nullptr ? std::span<const Token>() : impl_->tokens;
}

Result<void> Snapshot::export_block(size_t block, std::span<std::byte> out) const {
  return catch_bad_alloc("an exported block", [&]() -> Result<void> {
    DS4_ASSIGN(const auto engine, engine_of(impl_.get()));
    const size_t blocks = impl_->tokens.size() / state_block_tokens;
    if (block >= blocks) {
      return fail(ErrorCode::invalid_argument, "there is no block {}: {} tokens fill {}", block,
                  impl_->tokens.size(), blocks);
    }
    DS4_TRY(check_size("a block", out.size(), engine->state_layout.block_bytes()));
    return engine->backend->export_state(*impl_->image, engine->state_layout.block(block), out);
  });
}

Result<void> Snapshot::export_frontier(std::span<std::byte> out) const {
  return catch_bad_alloc("an exported state", [&]() -> Result<void> {
    DS4_ASSIGN(const auto engine, engine_of(impl_.get()));
    const size_t position = impl_->tokens.size();
    DS4_TRY(check_size("the frontier", out.size(), engine->state_layout.frontier_bytes(position)));
    return engine->backend->export_state(*impl_->image, engine->state_layout.frontier(position), out);
  });
}

Result<Snapshot> Session::snapshot(size_t position) const {
  const Anchor* const anchor = impl_->anchors.find(position);
  if (anchor == nullptr || anchor->position != position) {
    if (position == this->position()) return snapshot();
    return fail(ErrorCode::no_state, "no state is kept at position {}; the nearest one before is at {}",
                position, nearest_reachable(position));
  }
  return catch_bad_alloc("a snapshot", [&]() -> Result<Snapshot> {
    const auto tokens = std::span(impl_->tokens).first(position);
    Snapshot result;
    result.impl_ = std::make_shared<const SnapshotImpl>(
        SnapshotImpl{impl_->engine, anchor->image, {tokens.begin(), tokens.end()}});
    return result;
  });
}

struct StateImport::Impl {
  std::unique_ptr<Session::Impl> session;  // none once the import is over
  std::vector<Token> tokens;               // of the session to be
  size_t blocks_added = 0;

  size_t blocks() const { return tokens.size() / state_block_tokens; }
  Result<void> check_open() const {
    if (session != nullptr) return {};
    return fail(ErrorCode::invalid_argument, "the import of a state is over");
  }
  Result<void> add(const StateParts& parts, std::span<const std::byte> bytes) const {
    return session->engine->backend->import_state(*session->sequence, parts, bytes);
  }
  Result<void> add_block(std::span<const std::byte> bytes);
  Result<Session> finish(std::span<const std::byte> frontier);
};

Result<void> StateImport::Impl::add_block(std::span<const std::byte> bytes) {
  const StateLayout& layout = session->engine->state_layout;
  if (blocks_added == blocks()) {
    return fail(ErrorCode::invalid_argument, "{} tokens fill {} blocks, and all have been imported",
                tokens.size(), blocks());
  }
  DS4_TRY(check_size("a block", bytes.size(), layout.block_bytes()));
  auto done = catch_bad_alloc("an imported block", [&] { return add(layout.block(blocks_added), bytes); });
  if (done) {
    ++blocks_added;
  } else {
    session.reset();
  }
  return done;
}

Result<Session> StateImport::Impl::finish(std::span<const std::byte> frontier) {
  const StateLayout& layout = session->engine->state_layout;
  if (blocks_added != blocks()) {
    return fail(ErrorCode::invalid_argument, "{} of the {} blocks that {} tokens fill are missing",
                blocks() - blocks_added, blocks(), tokens.size());
  }
  DS4_TRY(check_size("the frontier", frontier.size(), layout.frontier_bytes(tokens.size())));
  std::unique_ptr<Session::Impl> whole = std::move(session);  // gone if anything fails
  return catch_bad_alloc("an imported state", [&]() -> Result<Session> {
    DS4_TRY(whole->engine->backend->import_state(*whole->sequence, layout.frontier(tokens.size()), frontier));
    whole->tokens = std::move(tokens);
    DS4_TRY(whole->check_finite());
    DS4_TRY(whole->add_anchor());
    return Session(std::move(whole));
  });
}

StateImport::StateImport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StateImport::StateImport(StateImport&&) noexcept = default;
StateImport& StateImport::operator=(StateImport&&) noexcept = default;
StateImport::~StateImport() = default;

size_t StateImport::blocks() const {
  return impl_->blocks();
}
size_t StateImport::blocks_added() const {
  return impl_->blocks_added;
}

Result<void> StateImport::add_block(std::span<const std::byte> bytes) {
  DS4_TRY(impl_->check_open());
  return impl_->add_block(bytes);
}

Result<Session> StateImport::finish(std::span<const std::byte> frontier) {
  DS4_TRY(impl_->check_open());
  return impl_->finish(frontier);
}

const StateLayout& Engine::state_layout() const {
  return impl_->state_layout;
}

Result<std::string> Engine::fingerprint() const {
  return catch_bad_alloc("the fingerprint of a model", [this]() -> Result<std::string> {
    return ds4::fingerprint({impl_->file, impl_->mtp_file ? &*impl_->mtp_file : nullptr,
                             impl_->state_layout.drafter(), impl_->steering_digest,
                             impl_->exact_activations});
  });
}

Result<StateImport> Engine::import_state(std::span<const Token> tokens, uint64_t context) const {
  DS4_TRY(backend::check_tokens(tokens, impl_->info.vocabulary));
  DS4_ASSIGN(Session session, create_session(context));
  if (tokens.size() > context) {
    return fail(ErrorCode::context_full, "the state has {} tokens, the context of the session is {}",
                tokens.size(), context);
  }
  return catch_bad_alloc("an imported state", [&]() -> Result<StateImport> {
    auto begun = std::make_unique<StateImport::Impl>();
    begun->tokens.assign(tokens.begin(), tokens.end());
    begun->session = std::move(session.impl_);
    return StateImport(std::move(begun));
  });
}

}  // namespace ds4
