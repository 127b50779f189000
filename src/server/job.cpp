#include "server/job.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace ds4::server {
namespace {

// Of a prompt with this much new text the state before the last token is saved, for those who ask again.
constexpr size_t long_prompt_tokens = 1024;

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

std::string tool_choice_name(const GenerationRequest& request) {
  switch (request.tool_choice) {
    case ToolChoice::none:
      return "none";
    case ToolChoice::automatic:
      return "auto";
    case ToolChoice::required:
      return "required";
    case ToolChoice::named:
      return request.tool_choice_name;
  }
  return "";
}

std::string format_name(ResponseFormat::Kind kind) {
  switch (kind) {
    case ResponseFormat::Kind::text:
      return "text";
    case ResponseFormat::Kind::json_object:
      return "json_object";
    case ResponseFormat::Kind::json_schema:
      return "json_schema";
  }
  return "";
}

void note_parameters(const Job& job, RequestRecord& record) {
  const GenerationRequest& request = job.request;
  record.stream = request.stream;
  record.thinking = request.thinking.mode;
  record.sampling = request.sampling;
  record.seed = job.seed;
  record.max_tokens = job.max_tokens;
  record.choices = request.choices;
  for (const Tool& tool : request.tools) record.tools.push_back(tool.name);
  record.tool_choice = tool_choice_name(request);
  record.format = format_name(request.format.kind);
}

}  // namespace

std::string_view finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::tool_calls:
      return "tool_calls";
    case FinishReason::error:
      return "failed";
  }
  return "";
}

size_t reachable_stop(size_t stop, size_t total) {
  const size_t latest = total - 1 > short_piece_tokens ? total - 1 - (short_piece_tokens + 1) : 0;
  return std::min(stop, latest);
}

std::vector<size_t> prompt_borders(std::span<const Token> tokens, Token user) {
  const auto first = std::find(tokens.begin(), tokens.end(), user);
  const auto last = std::find(tokens.rbegin(), tokens.rend(), user);
  std::vector<size_t> borders;
  if (first != tokens.end()) {
    borders.push_back(reachable_stop(static_cast<size_t>(first - tokens.begin()), tokens.size()));
    borders.push_back(reachable_stop(static_cast<size_t>(tokens.rend() - last) - 1, tokens.size()));
  }
  borders.push_back(tokens.size() - 1);
  return borders;
}

std::vector<SavePoint> save_points(const store::SavePolicy& policy, const SpecialTokens& special,
                                   std::span<const Token> tokens, size_t cached, bool forgets_reasoning) {
  std::map<size_t, DiskCache::Save> points;
  if (const size_t step = store::continued_step(policy); step > 0) {
    for (size_t at = (cached / step + 1) * step; at < tokens.size(); at += step) {
      points[reachable_stop(at, tokens.size())] = {.reason = store::SaveReason::continued};
    }
  }
  const bool much_is_new = tokens.size() - cached >= long_prompt_tokens;
  if (much_is_new || forgets_reasoning) {
    points[tokens.size() - 1] = {
        .reason = store::SaveReason::continued, .forced = much_is_new, .branch = forgets_reasoning};
  }
  if (const auto cold = cached == 0 ? store::cold_target(policy, special, tokens) : std::nullopt) {
    points[reachable_stop(*cold, tokens.size())] = {
        .reason = store::SaveReason::cold, .anchor = true, .forced = true};
  }
  std::vector<SavePoint> result;
  for (const auto& [position, how] : points) {
    if (position >= policy.min_tokens && position > cached) result.push_back({position, how});
  }
  return result;
}

size_t slice_tokens(double measured, size_t chunk) {
  const size_t least = std::min(least_quantum_tokens, chunk);
  return static_cast<size_t>(std::clamp(measured, static_cast<double>(least), static_cast<double>(chunk)));
}

size_t prefill_end(size_t done, size_t total, size_t quantum, std::span<const size_t> stops) {
  const size_t before_last = total - 1;
  if (done >= before_last) return total;
  size_t end = std::min(before_last, done + std::max(quantum, short_piece_tokens + 1));
  for (const size_t stop : stops) {
    if (stop > done + short_piece_tokens && stop < end) end = stop;
  }
  return before_last - end <= short_piece_tokens ? before_last : end;
}

RequestRecord make_record(const Job& job, std::string outcome, std::string error,
                          const Tokenizer& tokenizer) {
  RequestRecord record;
  record.id = job.id;
  record.kind = kind_name(job.request.kind);
  record.begun = job.begun;
  note_parameters(job, record);
  record.model = job.request.model;
  record.prompt = job.prompt.text;
  record.body = job.request.body;
  record.usage = job.usage;
  record.miss = job.lease.miss;
  record.continued_text = job.lease.by_text;
  record.diverged_at = job.lease.diverged_at;
  record.kept_text = job.lease.kept_text;
  record.asked_text = job.lease.asked_text;
  record.disk = job.disk;
  record.disk_seconds = job.disk_seconds;
  record.outcome = std::move(outcome);
  record.calls_changed = job.prompt.calls_changed;
  record.tool_reminders = job.prompt.rendered.tool_reminders;
  record.error = std::move(error);
  record.usage.completion_tokens = record.usage.reasoning_tokens = 0;
  for (const Choice& choice : job.choices) {
    const Answer& answer = choice.answer;
    record.answers.push_back(
        {tokenizer.decode(answer.tokens()),
         std::string(answer.finished() ? finish_name(answer.finish_reason()) : "unfinished")});
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
