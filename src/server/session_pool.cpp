#include "server/session_pool.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "text/special_tokens.hpp"

namespace ds4::server {
namespace {

// A session this many times longer than a prompt is not given up to keep it: never if the prompt is short,
// else not unless nobody has used the session for long.
constexpr size_t displace_factor = 4;
constexpr size_t displace_tokens = 4096;

// Shown of texts on either side of the place where they differ.
constexpr size_t window_bytes = 80;

size_t common_size(const auto& a, const auto& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// Whole characters around `place`.
std::string window(const std::string& text, size_t place) {
  const auto character = [&](size_t at) {
    while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    return at;
  };
  const size_t begin = character(place > window_bytes ? place - window_bytes : 0);
  return text.substr(begin, character(std::min(text.size(), place + window_bytes)) - begin);
}

}  // namespace

std::string_view miss_name(Miss miss) {
  switch (miss) {
    case Miss::none:
      return "none";
    case Miss::no_session:
      return "no-session";
    case Miss::other_start:
      return "other-start";
    case Miss::diverged:
      return "diverged";
    case Miss::busy:
      return "busy";
  }
  return "";
}

void ResidentSession::replace(Session session) {
  session_ = std::move(session);
  refresh();
}

void ResidentSession::refresh() {
  const std::span<const Token> now = session_.tokens();
  const size_t same = common_size(tokens_, now);
  tokens_.resize(same);
  ends_.resize(same);
  text_.resize(same == 0 ? 0 : ends_.back());
  while (!special_.empty() && special_.back() >= text_.size()) special_.pop_back();
  for (const Token token : now.subspan(same)) {
    if (text::is_special(tokenizer_->special(), token)) special_.push_back(text_.size());
    text_ += tokenizer_->decode(token);
    tokens_.push_back(token);
    ends_.push_back(text_.size());
  }
}

ResidentSession::Match ResidentSession::match(const Prompt& prompt) const {
  const Match equal_tokens{common_size(tokens_, prompt.tokens), 0};
  // Up to where texts and special tokens are the same.
  size_t bytes = common_size(text_, prompt.text);
  const size_t equal = common_size(special_, prompt.special);
  for (const auto* list : {&special_, &prompt.special}) {
    if (equal < list->size()) bytes = std::min(bytes, (*list)[equal]);
  }
  const auto end_at = [&](size_t position) -> size_t {
    const auto end = std::lower_bound(ends_.begin(), ends_.end(), position);
    return end != ends_.end() && *end == position ? static_cast<size_t>(end - ends_.begin()) + 1 : 0;
  };
  auto border = std::upper_bound(prompt.special.begin(), prompt.special.end(), bytes);
  while (border != prompt.special.begin()) {
    --border;
    const size_t tokens = end_at(*border);
    if (tokens > 0) return tokens > equal_tokens.tokens ? Match{tokens, *border} : equal_tokens;
  }
  return equal_tokens;
}

bool ResidentSession::only_reply_after(size_t tokens) const {
  const SpecialTokens& special = tokenizer_->special();
  return std::none_of(tokens_.begin() + static_cast<ptrdiff_t>(tokens), tokens_.end(),
                      [&](Token token) { return token == special.user || token == special.assistant; });
}

Result<std::shared_ptr<ResidentSession>> SessionPool::create() {
  DS4_ASSIGN(Session session, engine_.create_session(limits_.context));
  return std::make_shared<ResidentSession>(std::move(session), engine_.tokenizer());
}

Result<Lease> SessionPool::acquire(const Prompt& prompt, const std::string& conversation, bool side) {
  Lease lease;
  std::shared_ptr<ResidentSession> nearest;
  ResidentSession::Match best;
  for (const auto& resident : sessions_) {
    if (resident->busy) resident->refresh();  // it goes on between two calls
    const ResidentSession::Match match = resident->match(prompt);
    const auto rank = [&](const ResidentSession& session, size_t tokens) {
      return std::tuple(tokens, !session.busy, !conversation.empty() && session.conversation == conversation,
                        session.last_use);
    };
    if (nearest == nullptr || rank(*resident, match.tokens) > rank(*nearest, best.tokens)) {
      nearest = resident;
      best = match;
    }
  }
  // One token is the same in all conversations.
  const bool shared = nearest != nullptr && best.tokens > 1;
  const size_t length = shared ? nearest->session().position() : 0;
  if (!shared) {
    lease.miss = sessions_.empty() ? Miss::no_session : Miss::other_start;
  } else if (nearest->busy) {
    lease.miss = Miss::busy;
  } else if (best.tokens < length) {
    lease.miss = Miss::diverged;
  }
  if (shared) lease.diverged_at = best.tokens;
  if (nearest != nullptr && lease.miss != Miss::none) {
    const size_t differs = common_size(nearest->text(), prompt.text);
    lease.kept_text = window(nearest->text(), differs);
    lease.asked_text = window(prompt.text, differs);
  }

  // What is given up in place is a reply, or a part of one: the client asks again, or goes on without the
  // reasoning. Where a turn of the user differs, another conversation begins.
  const bool in_place = shared && !nearest->busy && !side && nearest->only_reply_after(best.tokens);
  if (in_place) {
    lease.resident = nearest;
  } else {
    auto made = make(shared ? nearest.get() : nullptr, best.tokens, prompt.tokens.size(), side);
    if (made) {
      lease.resident = std::move(*made);
      sessions_.push_back(lease.resident);
    } else if (shared && !nearest->busy && !side && made.error().code == ErrorCode::out_of_memory) {
      lease.resident = nearest;  // no memory for both
    } else {
      return made.error();
    }
  }
  if (best.text_bytes > 0 && shared) {
    const std::span<const Token> sampled = nearest->session().tokens().first(best.tokens);
    lease.tokens.assign(sampled.begin(), sampled.end());
    const std::vector<Token> rest = prompt.rendered.suffix(best.text_bytes).encode(engine_.tokenizer());
    lease.tokens.insert(lease.tokens.end(), rest.begin(), rest.end());
    lease.by_text = lease.tokens.size() < limits_.context;
  }
  // Sampled tokens may be more than those of the same text, and too many.
  if (!lease.by_text) lease.tokens = prompt.tokens;
  lease.resident->refresh();
  lease.reusable = lease.resident->session().common_prefix(lease.tokens);
  use(*lease.resident);
  lease.resident->busy = true;
  lease.resident->side = side;
  if (!conversation.empty()) lease.resident->conversation = conversation;
  make_room(prompt.tokens.size());
  return lease;
}

size_t SessionPool::shared_tokens(const Prompt& prompt) {
  size_t most = 0;
  for (const auto& resident : sessions_) {
    if (resident->busy) resident->refresh();
    most = std::max(most, resident->match(prompt).tokens);
  }
  return most;
}

Result<std::shared_ptr<ResidentSession>> SessionPool::branch(const ResidentSession& original, size_t tokens) {
  DS4_ASSIGN(Session session, original.session().fork(tokens));
  return std::make_shared<ResidentSession>(std::move(session), engine_.tokenizer());
}

Result<std::shared_ptr<ResidentSession>> SessionPool::make(const ResidentSession* original, size_t at,
                                                           size_t tokens, bool side) {
  while (true) {
    auto made = original != nullptr ? branch(*original, at) : create();
    if (made) (*made)->id = ++last_id_;
    if (made || made.error().code != ErrorCode::out_of_memory) return made;
    if (!give_up_one(tokens, side, original)) return made;
  }
}

Result<std::shared_ptr<ResidentSession>> SessionPool::copy(const ResidentSession& original, bool side) {
  const size_t position = original.session().position();
  DS4_ASSIGN(auto resident, make(&original, position, position, side));
  use(*resident);
  resident->busy = true;
  sessions_.push_back(resident);
  return resident;
}

void SessionPool::use(ResidentSession& resident) {
  resident.last_use = ++clock_;
  resident.used_at = std::chrono::steady_clock::now();
}

void SessionPool::release(const std::shared_ptr<ResidentSession>& resident, bool keep) {
  resident->busy = false;
  resident->refresh();
  use(*resident);
  if (!keep || resident->session().position() == 0) std::erase(sessions_, resident);
  make_room(resident->session().position());
}

size_t SessionPool::state_bytes() const {
  size_t bytes = 0;
  for (const auto& resident : sessions_) {
    bytes += resident->session().state_bytes() + resident->session().anchor_bytes();
  }
  return bytes;
}

bool SessionPool::over_limits() const {
  return sessions_.size() > limits_.sessions || (limits_.bytes > 0 && state_bytes() > limits_.bytes);
}

std::shared_ptr<ResidentSession> SessionPool::find_idle(size_t tokens,
                                                        std::chrono::steady_clock::duration protected_for,
                                                        const ResidentSession* except) const {
  const size_t largest =
      tokens > SIZE_MAX / displace_factor ? SIZE_MAX : std::max(displace_tokens, tokens * displace_factor);
  const auto now = std::chrono::steady_clock::now();
  std::shared_ptr<ResidentSession> oldest;
  for (const auto& resident : sessions_) {
    const bool protect = resident->session().position() > largest && now - resident->used_at < protected_for;
    if (resident->busy || protect || resident.get() == except) continue;
    if (oldest == nullptr || resident->last_use < oldest->last_use) oldest = resident;
  }
  return oldest;
}

std::shared_ptr<ResidentSession> SessionPool::take_idle() {
  std::shared_ptr<ResidentSession> newest;
  for (const auto& resident : sessions_) {
    if (!resident->busy && (newest == nullptr || resident->last_use > newest->last_use)) newest = resident;
  }
  std::erase(sessions_, newest);
  return newest;
}

void SessionPool::evict(const std::shared_ptr<ResidentSession>& resident) {
  std::erase(sessions_, resident);
  ++evictions_;
}

bool SessionPool::give_up_one(size_t tokens, bool side, const ResidentSession* except) {
  const auto victim = find_idle(side ? tokens : SIZE_MAX, limits_.displace_after, except);
  if (victim == nullptr) return false;
  evict(victim);
  return true;
}

void SessionPool::trim() {
  size_t longest = 0;
  for (const auto& resident : sessions_) {
    if (resident->busy) longest = std::max(longest, resident->session().position());
  }
  make_room(longest);
}

void SessionPool::make_room(size_t tokens) {
  using Duration = std::chrono::steady_clock::duration;
  const Duration protected_for = tokens <= displace_tokens ? Duration::max() : limits_.displace_after;
  while (over_limits()) {
    const auto victim = find_idle(tokens, protected_for, nullptr);
    if (victim == nullptr) return;
    if (on_evict_) on_evict_(*victim);
    evict(victim);
  }
}

}  // namespace ds4::server
