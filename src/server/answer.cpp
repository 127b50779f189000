#include "server/answer.hpp"

#include <algorithm>
#include <utility>

#include "server/promised_action.hpp"

namespace ds4::server {
namespace {

using Kind = GenerationEvent::Kind;

// Put into the reasoning when its tokens run out: the engine's words, in the voice of the model.
constexpr std::string_view kNudge =
    "I have thought about this long enough and should now come to my answer.\n";
constexpr std::string_view kBlockClose = "</｜DSML｜tool_calls>";
constexpr size_t most_room_tokens = 1024;

// The end of a structure is worked out when this many tokens are left. It seldom takes more.
constexpr size_t closing_window_tokens = 512;
// Repeated tokens inside a structure that are no data any more.
constexpr size_t structure_loop_tokens = 1024;

text::ReplyReaderOptions reader_options(const AnswerOptions& options) {
  return {.think = options.split && options.thinking, .tools = options.tools};
}

}  // namespace

size_t thinking_limit(std::optional<size_t> budget, size_t max_tokens) {
  const size_t room = std::min(most_room_tokens, max_tokens / 4);
  return std::max<size_t>(1, std::min(budget.value_or(max_tokens), max_tokens - room));
}

Answer::Answer(const Tokenizer& tokenizer, AnswerOptions options, size_t choice, uint64_t seed)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      choice_(choice),
      rng_(seed),
      reader_(reader_options(options_)),
      stops_(options_.stop),
      guard_(options_.thinking_tokens),
      structure_loop_(structure_loop_tokens) {}

std::optional<Token> Answer::forced() const {
  return forced_.empty() ? std::nullopt : std::optional(forced_.front());
}

SamplingParams Answer::sampling() const {
  SamplingParams params = options_.sampling;
  if (options_.tools && reader_.phase() == text::SamplingPhase::structure) params.temperature = 0;
  if (end_refused_) params.temperature = 0;
  return params;
}

std::span<const uint64_t> Answer::mask() {
  if (!constrained() && !end_refused_) return {};
  mask_.resize((tokenizer_.vocabulary_size() + 63) / 64);
  if (constrained()) {
    options_.constraint->allowed(mask_);
    if (options_.calls) {
      std::vector<uint64_t> calls(mask_.size());
      options_.calls->allowed(calls);
      for (size_t i = 0; i < mask_.size(); ++i) mask_[i] |= calls[i];
    }
    return mask_;
  }
  std::fill(mask_.begin(), mask_.end(), ~uint64_t{0});
  if (const size_t rest = tokenizer_.vocabulary_size() % 64; rest > 0) mask_.back() >>= 64 - rest;
  const SpecialTokens& special = tokenizer_.special();
  for (const Token token : {special.eos, special.bos, special.user}) {
    mask_[static_cast<size_t>(token) / 64] &= ~(uint64_t{1} << (static_cast<size_t>(token) % 64));
  }
  return mask_;
}

size_t Answer::free_tokens() const {
  if (!forced_.empty() || options_.constraint || end_refused_) return 1;
  if (options_.tools && (options_.one_call || options_.sampling.temperature > 0)) return 1;
  const size_t left = options_.max_tokens - tokens_.size();
  return in_reasoning() ? std::min(left, guard_.free_tokens()) : left;
}

bool Answer::ends_reply(Token token) const {
  const SpecialTokens& special = tokenizer_.special();
  return token == special.eos || token == special.bos || token == special.user;
}

bool Answer::accept(Token token, std::optional<ScoredToken> score) {
  const bool forced = !forced_.empty();
  if (forced) forced_.pop_front();
  if (ends_reply(token)) {
    if (options_.constraint && in_reasoning()) {
      // The model forgot to close its reasoning, and what was asked for is still to come.
      forced_.push_back(tokenizer_.special().think_close);
      return true;
    }
    if (refuses_end()) {
      promised_ = end_refused_ = true;
      return true;
    }
    end(FinishReason::stop, false, {});
    return false;
  }
  end_refused_ = false;
  if (constrained() && options_.calls) decide(token);
  if (!forced && constrained() && !leaves_room(token)) return true;
  if (constrained() && !options_.constraint->accept(token)) {
    end(FinishReason::error, true,
        {.status = 500, .type = "server_error", .message = "a token outside of the grammar was chosen"});
    return false;
  }
  const std::string bytes = tokenizer_.decode(token);
  const bool reasoning = in_reasoning();
  tokens_.push_back(token);
  reasoning_tokens_ += reasoning ? 1 : 0;
  // Where reasoning and answer come apart, the tag between them is a token of neither.
  if (score && !(options_.split && token == tokenizer_.special().think_close))
    scores_.push_back(std::move(*score));
  publish(reader_.push(bytes));
  if (reasoning) {
    guard_reasoning(token, bytes);
  } else if (constrained()) {
    guard_structure(token);
  }
  if (finished_) return false;
  if (options_.one_call && !options_.constraint && !call_ids_.empty() && !block_closes_) close_block(bytes);
  if (stops_.hit()) {
    end(FinishReason::stop, true, {});
  } else if (reader_.block_closed() || (block_closes_ && forced_.empty())) {
    end(FinishReason::tool_calls, false, {});
  } else if (reader_.block_broken()) {
    end(FinishReason::stop, false, {});
  } else if (closed_ != Closing::none && forced_.empty()) {
    end(closed_ == Closing::loop ? FinishReason::stop : FinishReason::length, false, {});
  } else if (tokens_.size() >= options_.max_tokens) {
    end(block_closes_ ? FinishReason::tool_calls : FinishReason::length, true, {});
  }
  return !finished_;
}

/// Calls, or what the format asks for: the other one is out of the question now.
void Answer::decide(Token token) {
  const auto calls = std::exchange(options_.calls, std::nullopt);
  grammar::Constraint behind = *calls;
  if (behind.accept(token)) {
    options_.constraint = calls;
    options_.may_be_closed = false;
  } else {
    reader_.end_tools();  // strings may hold markup
    options_.tools = false;
  }
}

/// Once, where nothing was called, nothing else made the reply end, and its text says that more follows. The
/// same turn goes on, so nothing that was told is taken back.
bool Answer::refuses_end() const {
  if (!options_.hold_to_promises || !options_.tools || options_.constraint || promised_) return false;
  const ParsedReply& reply = reader_.result();
  const bool called = !begun_ids_.empty() || reader_.in_block() || reply.malformed_tools;
  return !called && !in_reasoning() && !stops_.hit() && promises_action(reply.content);
}

bool Answer::leaves_room(Token token) {
  const size_t left = options_.max_tokens - tokens_.size();
  if (!options_.may_be_closed || no_end_fits_ || left > closing_window_tokens) return true;
  grammar::Constraint behind = *options_.constraint;
  if (!behind.accept(token) || behind.shortest_end(left - 1)) return true;
  no_end_fits_ = !write_end(Closing::limit);
  return no_end_fits_;
}

/// False if there is no end that fits.
bool Answer::write_end(Closing why) {
  const auto rest = options_.constraint->shortest_end(options_.max_tokens - tokens_.size());
  if (!rest || rest->empty()) return false;
  forced_.assign(rest->begin(), rest->end());
  closed_ = why;
  return true;
}

/// A structure that goes round in circles is brought to its end. Of a call that would be a wrong one.
void Answer::guard_structure(Token token) {
  if (!structure_loop_.push(token) || closed_ != Closing::none) return;
  if (options_.may_be_closed && write_end(Closing::loop)) return;
  closed_ = Closing::loop;
  end(FinishReason::length, true, {});
}

/// Writes what the model would have written had it wanted no other call, so that the turn is a usual one when
/// it comes back. `last_bytes`: of the token that ended the call.
void Answer::close_block(std::string_view last_bytes) {
  block_closes_ = true;
  if (reader_.block_closed()) return;
  const size_t tag = last_bytes.rfind('>');
  std::string_view begun = tag == std::string_view::npos ? last_bytes : last_bytes.substr(tag + 1);
  const bool new_line = begun.starts_with('\n');
  while (begun.starts_with('\n')) begun.remove_prefix(1);
  std::string rest = new_line || !begun.empty() ? "" : "\n";
  rest += kBlockClose.substr(kBlockClose.starts_with(begun) ? begun.size() : 0);
  const std::vector<Token> tokens = tokenizer_.encode_rendered(rest);
  forced_.assign(tokens.begin(), tokens.end());
}

void Answer::guard_reasoning(Token token, const std::string& bytes) {
  if (!in_reasoning()) return;
  switch (guard_.accept(token, bytes.ends_with('\n'))) {
    case ThinkingGuard::Action::none:
      break;
    case ThinkingGuard::Action::nudge:
      for (const Token word : tokenizer_.encode_plain(kNudge)) forced_.push_back(word);
      break;
    case ThinkingGuard::Action::close:
      looped_ = guard_.looped();
      forced_.assign(1, tokenizer_.special().think_close);
      break;
  }
}

void Answer::publish(std::vector<text::ReplyEvent> events) {
  for (text::ReplyEvent& event : events) {
    switch (event.kind) {
      case text::ReplyEvent::Kind::reasoning:
        publish_text(Kind::reasoning, std::move(event.text));
        break;
      case text::ReplyEvent::Kind::content: {
        std::string shown = stops_.push(event.text);
        if (!shown.empty()) publish_text(Kind::content, std::move(shown));
        break;
      }
      default:
        if (!stops_.hit()) publish_call(std::move(event));
        break;
    }
  }
}

void Answer::publish_text(Kind kind, std::string text) {
  GenerationEvent& event = add(kind);
  event.text = std::move(text);
  event.scores = std::exchange(scores_, {});
}

void Answer::publish_call(text::ReplyEvent&& event) {
  using From = text::ReplyEvent::Kind;
  if (event.kind == From::block_end || (options_.one_call && !call_ids_.empty())) return;
  if (event.kind == From::call_begin) {
    // What was held back while it might have become a stop string can be none any more.
    if (std::string held = stops_.flush(); !held.empty()) publish_text(Kind::content, std::move(held));
    scores_.clear();
    begun_ids_.resize(event.call + 1);
    arguments_.resize(event.call + 1);
    begun_ids_[event.call] = options_.new_call_id();
    GenerationEvent& begin = add(Kind::call_begin);
    begin.call = event.call;
    begin.id = begun_ids_[event.call];
    begin.text = std::move(event.text);
    return;
  }
  GenerationEvent& added = add(event.kind == From::call_arguments ? Kind::call_arguments
                               : event.kind == From::call_end     ? Kind::call_end
                                                                  : Kind::call_dropped);
  added.call = event.call;
  if (event.kind == From::call_arguments) arguments_[event.call] += event.text;
  added.text = event.kind == From::call_end ? arguments_[event.call] : std::move(event.text);
  if (event.kind == From::call_end) call_ids_.push_back(begun_ids_[event.call]);
}

void Answer::finish(FinishReason reason, RequestError error) {
  if (!finished_) end(reason, true, std::move(error));
}

void Answer::end(FinishReason reason, bool cut, RequestError error) {
  publish(reader_.finish(cut));
  if (std::string held = stops_.flush(); !held.empty()) publish_text(Kind::content, std::move(held));
  // Clients wait for calls that are announced; a block may have none that can be read.
  const bool ended = reason == FinishReason::stop || reason == FinishReason::tool_calls;
  if (ended) reason = call_ids_.empty() ? FinishReason::stop : FinishReason::tool_calls;
  finished_ = true;
  reason_ = reason;
  error_ = error.message;
  GenerationEvent& event = add(Kind::finished);
  event.finish = reason;
  event.stop_sequence = stops_.hit();
  event.reasoning_complete = !in_reasoning();
  event.error = std::move(error);
  event.scores = std::exchange(scores_, {});
}

GenerationEvent& Answer::add(Kind kind) {
  events_.emplace_back();
  events_.back().kind = kind;
  events_.back().choice = choice_;
  return events_.back();
}

std::vector<GenerationEvent> Answer::take_events() {
  return std::exchange(events_, {});
}

}  // namespace ds4::server
