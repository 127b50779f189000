#include "server/job.hpp"

#include <algorithm>
#include <utility>

namespace ds4::server {
namespace {

// Passes of up to this many tokens are computed as decoding is.
constexpr size_t short_piece_tokens = 16;

double seconds(Job::Clock::time_point from, Job::Clock::time_point to) {
  return std::max(0.0, std::chrono::duration<double>(to - from).count());
}

std::string kind_name(GenerationRequest::Kind kind) {
  switch (kind) {
    case GenerationRequest::Kind::chat:
      return "chat";
    case GenerationRequest::Kind::completion:
      return "completion";
    case GenerationRequest::Kind::infill:
      return "infill";
  }
  return "";
}

}  // namespace

std::vector<size_t> prompt_borders(std::span<const Token> tokens, Token user) {
  const auto first = std::find(tokens.begin(), tokens.end(), user);
  const auto last = std::find(tokens.rbegin(), tokens.rend(), user);
  std::vector<size_t> borders;
  if (first != tokens.end()) {
    borders.push_back(static_cast<size_t>(first - tokens.begin()));
    borders.push_back(static_cast<size_t>(tokens.rend() - last) - 1);
  }
  borders.push_back(tokens.size() - 1);
  return borders;
}

size_t prefill_end(size_t done, size_t total, size_t quantum, std::span<const size_t> borders) {
  const size_t before_last = total - 1;
  if (done >= before_last) return total;
  size_t end = std::min(before_last, done + std::max(quantum, short_piece_tokens + 1));
  for (const size_t border : borders) {
    if (border > done + short_piece_tokens && border < end) end = border;
  }
  return before_last - end <= short_piece_tokens ? before_last : end;
}

RequestRecord make_record(const Job& job, std::string outcome, std::string error,
                          const Tokenizer& tokenizer) {
  RequestRecord record;
  record.id = job.id;
  record.kind = kind_name(job.request.kind);
  record.model = job.request.model;
  record.prompt = job.prompt.text;
  record.body = job.request.body;
  record.usage = job.usage;
  record.miss = job.lease.miss;
  record.continued_text = job.lease.by_text;
  record.diverged_at = job.lease.diverged_at;
  record.outcome = std::move(outcome);
  record.calls_changed = job.prompt.calls_changed;
  record.tool_reminders = job.prompt.rendered.tool_reminders;
  record.error = std::move(error);
  if (!job.choices.empty()) record.generated = tokenizer.decode(job.choices.front().answer.tokens());
  record.usage.completion_tokens = record.usage.reasoning_tokens = 0;
  for (const Choice& choice : job.choices) {
    record.usage.completion_tokens += choice.answer.tokens().size();
    record.usage.reasoning_tokens += choice.answer.reasoning_tokens();
    record.tool_calls += choice.answer.call_ids().size();
    record.tools_malformed = record.tools_malformed || choice.answer.reply().malformed_tools;
    record.tools_repaired = record.tools_repaired || choice.answer.reply().repaired_tools;
    record.thinking_looped = record.thinking_looped || choice.answer.looped();
    record.promised += choice.answer.promised() ? 1 : 0;
    record.promises_kept += choice.answer.promised() && !choice.answer.call_ids().empty() ? 1 : 0;
    record.closed_at_limit += choice.answer.closed() == Answer::Closing::limit ? 1 : 0;
    record.closed_in_loop += choice.answer.closed() == Answer::Closing::loop ? 1 : 0;
  }
  const auto now = Job::Clock::now();
  const auto taken = job.taken == Job::Clock::time_point() ? now : job.taken;
  const auto answered = job.answered == Job::Clock::time_point() ? now : job.answered;
  record.queue_seconds = seconds(job.submitted, taken);
  record.prefill_seconds = seconds(taken, answered);
  record.decode_seconds = seconds(answered, now);
  return record;
}

}  // namespace ds4::server
