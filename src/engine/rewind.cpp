// Going back to an earlier position of a session, and the states that it keeps for that.
#include "backend/checks.hpp"
#include "base/error.hpp"
#include "base/out_of_memory.hpp"
#include "engine/session_impl.hpp"

namespace ds4 {

Result<void> Session::Impl::fall_back(size_t position) {
  const Anchor* anchor = anchors.find(position);
  if (anchor == nullptr) {
    reset();
    return {};
  }
  if (auto done = engine->backend->restore(*sequence, *anchor->image); !done) {
    settle();
    return done;
  }
  fetched_logits.clear();
  tokens.resize(anchor->position);
  anchors.truncate(anchor->position);
  return {};
}

Result<void> Session::Impl::add_anchor() {
  auto image = engine->backend->snapshot(*sequence);
  if (!image && image.error().code == ErrorCode::out_of_memory) {
    if (anchors.drop_one()) image = engine->backend->snapshot(*sequence);
    if (!image && image.error().code == ErrorCode::out_of_memory) return {};
  }
  if (!image) return std::move(image).error();
  anchors.add({tokens.size(), std::move(image).value()});
  return {};
}

Result<void> Session::keep_anchor() {
  DS4_TRY(backend::check_choice(*impl_->sequence));
  if (impl_->anchors.pin(position())) return {};
  return impl_->guarded("a kept state", [this]() -> Result<void> {
    DS4_ASSIGN(auto image, impl_->engine->backend->snapshot(*impl_->sequence));
    impl_->anchors.add({position(), std::move(image)});
    impl_->anchors.pin(position());
    return {};
  });
}

size_t Session::nearest_reachable(size_t position) const {
  if (position >= this->position() && impl_->check_finite()) return this->position();
  const Anchor* const anchor = impl_->anchors.find(position);
  return anchor == nullptr ? 0 : anchor->position;
}

std::optional<size_t> Session::rewind_cost(size_t position) const {
  if (position > this->position()) return std::nullopt;
  const size_t from = nearest_reachable(position);
  if (position == this->position() && from != position) return std::nullopt;  // it computed NaN
  if (position - from > impl_->engine->prefill_chunk) return std::nullopt;
  return position - from;
}

Result<void> Session::Impl::rewind(size_t target) {
  if (target > tokens.size()) {
    return fail(ErrorCode::invalid_argument, "cannot rewind to position {}: the session has {} tokens",
                target, tokens.size());
  }
  if (target == tokens.size()) return check_finite();
  const Anchor* anchor = anchors.find(target);
  const size_t from = anchor == nullptr ? 0 : anchor->position;
  if (target - from > engine->prefill_chunk) {
    return fail(
        ErrorCode::no_state,
        "cannot rewind to position {}: no state is kept between {} and there, and recomputing {} tokens is "
        "more than one prefill chunk; position {} can be reached",
        target, from, target - from, from);
  }
  const std::vector<Token> kept(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(target));
  DS4_TRY(fall_back(target));
  return extend(kept, {});
}

Result<Session> Session::fork(size_t position) const {
  return catch_bad_alloc("a copy of a session", [&]() -> Result<Session> {
    const backend::Backend& device = *impl_->engine->backend;
    DS4_ASSIGN(auto sequence, device.create_sequence());
    auto copy = std::make_unique<Impl>(impl_->engine, std::move(sequence), impl_->context);
    const size_t from = nearest_reachable(position);
    if (from == 0) return Session(std::move(copy));
    const Anchor* const anchor = impl_->anchors.find(from);
    if (anchor != nullptr && anchor->position == from) {
      DS4_TRY(device.restore(*copy->sequence, *anchor->image));
    } else {
      DS4_ASSIGN(const auto image, device.snapshot(*impl_->sequence));
      DS4_TRY(device.restore(*copy->sequence, *image));
    }
    copy->tokens.assign(impl_->tokens.begin(), impl_->tokens.begin() + static_cast<ptrdiff_t>(from));
    copy->anchors = impl_->anchors;
    copy->anchors.truncate(from);
    return Session(std::move(copy));
  });
}

Result<void> Session::rewind(size_t position) {
  return impl_->guarded("going back", [&] { return impl_->rewind(position); });
}

}  // namespace ds4
