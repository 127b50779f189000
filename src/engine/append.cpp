// One token more: of a session, or of several in one pass.
#include <algorithm>

#include "base/error.hpp"
#include "ds4/engine.hpp"
#include "engine/session_impl.hpp"

namespace ds4 {
namespace {

static_assert(max_batch_rows == backend::max_decode_rows);

void make_room(std::vector<Token>& tokens) {
  constexpr size_t fewest = 64;
  if (tokens.size() == tokens.capacity()) tokens.reserve(std::max(2 * tokens.size(), fewest));
}

}  // namespace

Result<void> Session::Impl::check_room() const {
  if (tokens.size() < context) return {};
  return fail(ErrorCode::context_full, "the context of {} tokens is full", context);
}

Result<void> Session::Impl::finish_token() {
  DS4_TRY(check_finite());
  return tokens.size() % anchor_interval_tokens == 0 ? add_anchor() : Result<void>();
}

Result<std::vector<Result<void>>> Session::Impl::append(const backend::Backend& device,
                                                        std::span<Impl* const> sessions,
                                                        std::span<const backend::DecodeRow> rows) {
  const auto append_all = [&]() -> Result<std::vector<Result<void>>> {
    std::vector<Result<void>> results(rows.size());
    for (Impl* session : sessions) make_room(session->tokens);
    DS4_TRY(device.decode(rows, {}));
    for (size_t i = 0; i < rows.size(); ++i) {
      sessions[i]->fetched_logits.clear();
      sessions[i]->tokens.push_back(rows[i].token);
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      results[i] = catch_bad_alloc("a step", [&] { return sessions[i]->finish_token(); });
    }
    return results;
  };
  auto results = catch_bad_alloc("a step", append_all);
  if (!results) {
    for (Impl* session : sessions) session->settle();
  }
  return results;
}

Result<void> Session::eval(Token token) {
  DS4_TRY(impl_->check_room());
  Impl* const session = impl_.get();
  const backend::DecodeRow row{session->sequence.get(), token};
  DS4_ASSIGN(const auto results, Impl::append(*session->engine->backend, {&session, 1}, {&row, 1}));
  return results.front();
}

Result<std::vector<Result<void>>> Engine::eval_batch(std::span<const BatchRow> rows) const {
  return catch_bad_alloc("a step", [&]() -> Result<std::vector<Result<void>>> {
    std::vector<Session::Impl*> sessions;
    std::vector<backend::DecodeRow> decode_rows;
    for (size_t i = 0; i < rows.size(); ++i) {
      Session::Impl* const session = rows[i].session == nullptr ? nullptr : rows[i].session->impl_.get();
      if (session == nullptr || session->engine != impl_) {
        return fail(ErrorCode::invalid_argument, "row {} of the batch: {}", i,
                    session == nullptr ? "there is no session" : "the session is of another engine");
      }
      if (auto room = session->check_room(); !room) {
        return fail(room.error().code, "row {} of the batch: {}", i, room.error().message);
      }
      sessions.push_back(session);
      decode_rows.push_back({session->sequence.get(), rows[i].token});
    }
    return Session::Impl::append(*impl_->backend, sessions, decode_rows);
  });
}

}  // namespace ds4
