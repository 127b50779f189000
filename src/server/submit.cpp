// The part of the scheduler that runs on the threads of its callers: from a request to a job in the queue.
#include <fmt/format.h>
#include <openssl/rand.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "server/scheduler.hpp"

namespace ds4::server {
namespace {

std::string prompt_field(const GenerationRequest& request) {
  return request.kind == GenerationRequest::Kind::chat ? "messages" : "prompt";
}

std::optional<RequestError> check_length(const GenerationRequest& request, size_t tokens, uint64_t context) {
  if (tokens < context) return std::nullopt;
  return RequestError{
      .message =
          fmt::format("Prompt has {} tokens, but the configured context size is {} tokens", tokens, context),
      .param = prompt_field(request),
      .code = "context_length_exceeded",
      .prompt_tokens = tokens,
      .context = context};
}

uint64_t random_seed() {
  uint64_t seed = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&seed), sizeof(seed));
  return seed;
}

void tell_failed(EventSink& sink, RequestError error) {
  GenerationEvent event;
  event.kind = GenerationEvent::Kind::failed;
  event.error = std::move(error);
  sink.on_event(event);
}

RequestError grammar_error(const Error& error) {
  return {.message = error.message, .param = error.message.substr(0, error.message.find(':'))};
}

}  // namespace

Result<std::optional<grammar::Constraint>> Scheduler::make_calls(const GenerationRequest& request) {
  std::vector<grammar::ToolSignature> tools;
  for (const Tool& tool : request.tools) {
    if (request.tool_choice != ToolChoice::named || tool.name == request.tool_choice_name) {
      tools.push_back({tool.name, tool.parameters});
    }
  }
  if (tools.empty()) {
    return fail(ErrorCode::invalid_argument, "tool_choice: there is no tool called '{}'",
                request.tool_choice_name);
  }
  auto made = constraints_.tool_calls(tools, request.parallel_tool_calls);
  if (made || request.tool_choice != ToolChoice::automatic) return made;
  // Nobody asked for arguments that obey their schemas, so one that cannot be held to is no reason to refuse.
  for (grammar::ToolSignature& tool : tools) tool.parameters = R"({"type":"object"})";
  return constraints_.tool_calls(tools, request.parallel_tool_calls);
}

Result<Constraints> Scheduler::make_constraints(const GenerationRequest& request) {
  Constraints made;
  if (request.tool_choice == ToolChoice::required || request.tool_choice == ToolChoice::named) {
    DS4_ASSIGN(made.answer, make_calls(request));
    return made;
  }
  if (request.format.kind == ResponseFormat::Kind::text) return made;
  if (request.format.kind == ResponseFormat::Kind::json_object) {
    DS4_ASSIGN(made.answer, constraints_.json_object());
  } else {
    DS4_ASSIGN(made.answer,
               constraints_.json_schema(request.format.schema, request.format.strict, request.format.field));
  }
  const bool tools = request.kind == GenerationRequest::Kind::chat && !request.tools.empty() &&
                     request.tool_choice == ToolChoice::automatic;
  if (tools) {
    DS4_ASSIGN(made.calls, make_calls(request));
  }
  return made;
}

void Scheduler::submit(GenerationRequest request, std::shared_ptr<EventSink> sink) {
  if (request.choices == 0 || request.choices > max_batch_rows) {
    return tell_failed(*sink,
                       {.message = fmt::format("n: from 1 to {} answers", max_batch_rows), .param = "n"});
  }
  auto constraints = make_constraints(request);
  if (!constraints) return tell_failed(*sink, grammar_error(constraints.error()));
  auto prompt = build_prompt(request, memory_, tokenizer(), options_.prompt);
  if (auto* error = std::get_if<RequestError>(&prompt)) return tell_failed(*sink, std::move(*error));

  auto job = std::make_unique<Job>();
  job->prompt = std::move(std::get<Prompt>(prompt));
  const size_t tokens = job->prompt.tokens.size();
  if (auto error = check_length(request, tokens, options_.pool.context)) {
    return tell_failed(*sink, std::move(*error));
  }
  job->id = ++last_id_;
  job->max_tokens =
      std::min<size_t>(request.max_tokens.value_or(info_.default_max_tokens), options_.pool.context - tokens);
  job->seed = request.seed.value_or(random_seed());
  job->constraints = std::move(*constraints);
  job->request = std::move(request);
  job->sink = sink;
  job->submitted = Clock::now();
  RequestError refusal;
  {
    const std::lock_guard lock(mutex_);
    if (refusing_) {
      refusal = {.status = 503, .type = "server_error", .message = "the server is shutting down"};
    } else if (queue_.size() >= options_.queue_limit) {
      refusal = {.status = 429,
                 .type = "rate_limit_error",
                 .message = fmt::format("{} requests are waiting already; try again later", queue_.size()),
                 .code = "queue_full"};
    } else {
      queue_.push_back(std::move(job));
    }
  }
  if (!refusal.message.empty()) return tell_failed(*sink, std::move(refusal));
  wake_.notify_all();
}

Generator::Count Scheduler::count(const GenerationRequest& request) const {
  const auto prompt = build_prompt(request, memory_, tokenizer(), options_.prompt);
  if (const auto* error = std::get_if<RequestError>(&prompt)) return {0, *error};
  return {std::get<Prompt>(prompt).tokens.size(), std::nullopt};
}

}  // namespace ds4::server
