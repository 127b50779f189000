// One answer under way: what its next token may be, and what its tokens mean to the client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/sampling.hpp"
#include "ds4/tokenizer.hpp"
#include "grammar/constraint.hpp"
#include "server/generation.hpp"
#include "server/stop_matcher.hpp"
#include "server/thinking_guard.hpp"
#include "text/reply_reader.hpp"

namespace ds4::server {

/// What the answers to one request have in common.
struct AnswerOptions {
  bool thinking = false;  // the prompt ended with an open reasoning tag
  bool tools = false;     // calls are read
  bool one_call = false;  // the reply ends behind its first complete call; a constraint sees to that itself
  bool split = true;      // reasoning is split off; completions show everything as text
  SamplingParams sampling;
  size_t max_tokens = 0;       // at least 1
  size_t thinking_tokens = 0;  // reasoning is brought to an end after these
  std::vector<std::string> stop;
  std::optional<grammar::Constraint> constraint;  // of what comes after the reasoning
  /// Beside a constraint that is a format: calls that the model may make instead. Its first token decides, as
  /// no text belongs to both.
  std::optional<grammar::Constraint> calls;
  bool may_be_closed = false;    // the constraint is a format: rather cut short than cut off. Calls never are
  bool hold_to_promises = true;  // with tools: an end behind the announcement of an action is refused once
  std::function<std::string()> new_call_id;
};

/// How many tokens of reasoning leave room for an answer within `max_tokens`.
size_t thinking_limit(std::optional<size_t> budget, size_t max_tokens);

class Answer {
 public:
  Answer(const Tokenizer& tokenizer, AnswerOptions options, size_t choice, uint64_t seed);

  /// What the next token has to be, if that is not the model's to choose.
  std::optional<Token> forced() const;
  /// Otherwise how it is drawn: parameters, and if there is a mask, only tokens whose bit is set.
  SamplingParams sampling() const;
  std::span<const uint64_t> mask();
  Rng& rng() { return rng_; }
  /// How many tokens may be drawn with the present parameters before asking again, at least one.
  size_t free_tokens() const;

  /// Takes the next token; `score` if log-probabilities were asked for. False once the answer is finished.
  /// Unless it ended the reply, the token is in tokens() and is to be evaluated.
  bool accept(Token token, std::optional<ScoredToken> score);
  /// Ends the answer early: there is no more room, or something failed.
  void finish(FinishReason reason, RequestError error = {});

  bool finished() const { return finished_; }
  /// Events since the last call.
  std::vector<GenerationEvent> take_events();

  const std::vector<Token>& tokens() const { return tokens_; }  // all but EOS
  size_t reasoning_tokens() const { return reasoning_tokens_; }
  const ParsedReply& reply() const { return reader_.result(); }
  const std::vector<std::string>& call_ids() const { return call_ids_; }  // of complete calls
  FinishReason finish_reason() const { return reason_; }
  const std::string& error() const { return error_; }  // why it failed; empty if it did not
  bool hit_stop() const { return stops_.hit().has_value(); }
  bool looped() const { return looped_; }
  /// The model was kept from ending its reply behind the announcement of an action.
  bool promised() const { return promised_; }
  /// Why the grammar's shortest end was written, or nothing more could be, in place of the model's words.
  enum class Closing { none, limit, loop };
  Closing closed() const { return closed_; }
  const SamplingParams& params() const { return options_.sampling; }

 private:
  bool in_reasoning() const { return options_.thinking && !reader_.reasoning_closed(); }
  bool constrained() const { return options_.constraint && !in_reasoning(); }
  bool ends_reply(Token token) const;
  void decide(Token token);
  bool refuses_end() const;
  /// Whether what the grammar needs to end has room behind this token; if not, begins to write its end.
  bool leaves_room(Token token);
  bool write_end(Closing why);
  void close_block(std::string_view last_bytes);
  void guard_reasoning(Token token, const std::string& bytes);
  void guard_structure(Token token);
  void publish(std::vector<text::ReplyEvent> events);
  void publish_text(GenerationEvent::Kind kind, std::string text);
  void publish_call(text::ReplyEvent&& event);
  void end(FinishReason reason, bool cut, RequestError error);
  GenerationEvent& add(GenerationEvent::Kind kind);

  const Tokenizer& tokenizer_;
  AnswerOptions options_;
  size_t choice_;
  Rng rng_;
  text::ReplyReader reader_;
  StopMatcher stops_;
  ThinkingGuard guard_;
  std::deque<Token> forced_;
  std::vector<uint64_t> mask_;
  std::vector<Token> tokens_;
  size_t reasoning_tokens_ = 0;
  std::vector<GenerationEvent> events_;
  std::vector<ScoredToken> scores_;  // of tokens whose text was not shown yet
  std::vector<std::string> begun_ids_, call_ids_;
  std::vector<std::string> arguments_;  // by call begun
  LoopDetector structure_loop_;
  bool looped_ = false;
  bool promised_ = false;
  bool end_refused_ = false;  // the next token is no end
  Closing closed_ = Closing::none;
  bool block_closes_ = false;  // behind the only call that is wanted
  bool no_end_fits_ = false;   // and none will: it is not looked for again
  bool finished_ = false;
  FinishReason reason_ = FinishReason::stop;
  std::string error_;
};

}  // namespace ds4::server
