// The conversations that are kept ready, and which of them a request continues.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ds4/engine.hpp"
#include "ds4/session.hpp"
#include "server/prompt.hpp"

namespace ds4::server {

/// A session with the text of its tokens.
class ResidentSession {
 public:
  ResidentSession(Session session, const Tokenizer& tokenizer)
      : session_(std::move(session)), tokenizer_(&tokenizer) {}

  const std::string& text() const { return text_; }  // of its tokens
  Session& session() { return session_; }
  const Session& session() const { return session_; }

  /// Follows the session's tokens after it was used.
  void refresh();
  /// Another session in its place.
  void replace(Session session);

  struct Match {
    size_t tokens = 0;      // of the session that the prompt continues
    size_t text_bytes = 0;  // of the prompt's text that they stand for; 0: they are the prompt's own tokens
  };
  /// The longest beginning that can be shared: equal tokens, or, up to the border before a special token of
  /// the prompt, equal text with special tokens in the same places. The second continues what was sampled
  /// even where text would be tokenised another way.
  Match match(const Prompt& prompt) const;
  /// Behind the first `tokens` tokens no turn begins, neither of a user nor of the assistant.
  bool only_reply_after(size_t tokens) const;

  uint64_t id = 0;           // of the session among those of a pool
  std::string conversation;  // as the client calls it
  uint64_t last_use = 0;     // grows from use to use
  std::chrono::steady_clock::time_point used_at;
  bool busy = false;
  bool side = false;      // of a side request
  bool dead_end = false;  // the next prompt leaves out what was reasoned last: nobody goes on from its end

 private:
  Session session_;
  const Tokenizer* tokenizer_;
  std::vector<Token> tokens_;
  std::string text_;
  std::vector<size_t> ends_;     // of each token in `text_`
  std::vector<size_t> special_;  // where in `text_` special tokens begin
};

struct PoolLimits {
  uint64_t context = 32768;                  // tokens per session
  size_t sessions = 8;                       // kept between requests
  size_t bytes = 0;                          // of their states; 0: no limit
  std::chrono::seconds displace_after{600};  // unused, a long conversation may make room for a shorter one
};

/// Why a request could not continue everything of the session nearest to it.
enum class Miss {
  none,         // it could
  no_session,   // nothing is kept
  other_start,  // no session begins like the prompt
  diverged,     // the prompt leaves the nearest session before its end
  busy,         // the nearest session is answering another request
};
std::string_view miss_name(Miss miss);

/// A session for a request.
struct Lease {
  std::shared_ptr<ResidentSession> resident;
  std::vector<Token> tokens;  // what the session has to be brought to
  size_t reusable = 0;        // of those, tokens whose state should be there
  size_t diverged_at = 0;     // Miss::diverged and busy: length of the common beginning
  Miss miss = Miss::none;
  std::string kept_text, asked_text;  // with a miss: around the place where session and prompt differ
  bool by_text = false;  // `tokens` begin with what was sampled, not with the prompt's own tokens
};

/// Not thread-safe; belongs to the scheduler.
class SessionPool {
 public:
  /// `on_evict` is called with a session that is about to be forgotten because of the limits; for want of
  /// memory sessions go without it, since whatever it keeps would take that memory.
  SessionPool(const Engine& engine, const PoolLimits& limits,
              std::function<void(const ResidentSession&)> on_evict = {})
      : engine_(engine), limits_(limits), on_evict_(std::move(on_evict)) {}

  /// A session that is not busy: the one that the prompt continues, a copy of a part of one that it branches
  /// off, or an empty one. `side`: a copy or a new one, never somebody else's. Errors: out_of_memory.
  Result<Lease> acquire(const Prompt& prompt, const std::string& conversation, bool side);
  /// Tokens of a prompt that a session begins with, one that is busy included.
  size_t shared_tokens(const Prompt& prompt);
  /// For want of memory: forgets the idle session that was not used for the longest time, but for `except`;
  /// none much longer than `tokens` for a side request. False if there is none.
  bool give_up_one(size_t tokens, bool side, const ResidentSession* except = nullptr);
  /// A further session with the present state of a leased one.
  Result<std::shared_ptr<ResidentSession>> copy(const ResidentSession& original, bool side);
  /// The request is done; the session is kept unless there is no room or `keep` is false.
  void release(const std::shared_ptr<ResidentSession>& resident, bool keep);
  /// Keeps to the limits while conversations grow.
  void trim();
  /// Nothing runs any more, and what did may be in any state.
  void forget_busy() {
    std::erase_if(sessions_, [](const auto& resident) { return resident->busy; });
  }

  size_t kept() const { return sessions_.size(); }
  /// Takes one of the sessions out that are not busy, the most recently used first; null if there is none.
  std::shared_ptr<ResidentSession> take_idle();
  size_t state_bytes() const;
  uint64_t evictions() const { return evictions_; }

 private:
  Result<std::shared_ptr<ResidentSession>> create();
  Result<std::shared_ptr<ResidentSession>> branch(const ResidentSession& original, size_t tokens);
  /// branch(), or create() without an original. For want of memory, others are given up.
  Result<std::shared_ptr<ResidentSession>> make(const ResidentSession* original, size_t at, size_t tokens,
                                                bool side);
  void use(ResidentSession& resident);
  /// Forgets idle sessions, the least recently used first, until the limits hold; none much longer than
  /// `tokens` that are protected. So a short request beside long conversations exceeds the limits while
  /// it runs, and is forgotten itself.
  void make_room(size_t tokens);
  /// The least recently used of the idle sessions, none much longer than `tokens` that was used within
  /// `protected_for`; null if there is none.
  std::shared_ptr<ResidentSession> find_idle(size_t tokens, std::chrono::steady_clock::duration protected_for,
                                             const ResidentSession* except) const;
  void evict(const std::shared_ptr<ResidentSession>& resident);
  bool over_limits() const;

  const Engine& engine_;
  PoolLimits limits_;
  std::function<void(const ResidentSession&)> on_evict_;
  std::vector<std::shared_ptr<ResidentSession>> sessions_;
  uint64_t clock_ = 0;
  uint64_t last_id_ = 0;
  uint64_t evictions_ = 0;
};

}  // namespace ds4::server
