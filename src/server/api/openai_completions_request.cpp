#include "server/api/error_body.hpp"
#include "server/api/openai_completions.hpp"
#include "server/api/request_fields.hpp"
#include "server/api/thinking_fields.hpp"

namespace ds4::server::api {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kMostChoices = 16;
constexpr size_t kMostTopLogprobs = 20;

std::string read_prompt(const Fields& body) {
  const auto prompt = body.find("prompt");
  if (!prompt) {
    body.errors().add("prompt", "missing prompt", "missing_required_parameter");
    return "";
  }
  if (prompt->is(Kind::string)) return prompt->string();
  if (prompt->is(Kind::array)) {
    const auto prompts = prompt->elements();
    const bool one = prompts.size() == 1 && prompts.front().is(Kind::string);
    if (one) return prompts.front().string();
    if (prompts.empty() || prompts.front().is(Kind::string)) {
      body.refuse("prompt", prompts.empty() ? "must not be empty" : "with several prompts is not supported");
    } else {
      body.refuse("prompt", "as tokens is not supported");
    }
    return "";
  }
  body.wrong_type("prompt", "a string");
  return "";
}

/// What an editor wants filled in between two texts: short, and beside its user's conversations.
void read_suffix(const Fields& body, const ServerInfo& info, GenerationRequest& request) {
  request.suffix = body.string("suffix").value_or("");
  if (request.suffix.empty()) return;
  if (!info.infill) return body.refuse("suffix", "is not supported: this vocabulary has no tokens for it");
  request.kind = GenerationRequest::Kind::infill;
  request.side = true;
  request.thinking = {ThinkMode::none, std::nullopt};
}

}  // namespace

CompletionRequest read_completion_request(const http::Request& request, const ServerInfo& info,
                                          FieldErrors& errors) {
  CompletionRequest completion;
  const auto object = parse_body(request.body, errors);
  if (!object) return completion;
  const Fields body(*object, "", errors);
  GenerationRequest& generation = completion.generation;
  generation.kind = GenerationRequest::Kind::completion;
  generation.model = read_model(body, info);
  generation.prompt = read_prompt(body);
  generation.thinking = read_thinking(body, generation.model, info.effort_profile, false);
  read_suffix(body, info, generation);
  read_sampling(body, generation);
  generation.max_tokens = read_max_tokens(body, {"max_tokens", "max_completion_tokens"});
  generation.stop = read_stop(body, "stop");
  generation.choices = body.count("n", 1, kMostChoices).value_or(1);
  if (const auto alternatives = body.count("logprobs", 0, kMostTopLogprobs)) {
    generation.logprobs = true;
    generation.top_logprobs = *alternatives;
  }
  completion.stream = body.boolean("stream").value_or(false);
  completion.generation.stream = completion.stream;
  if (const auto stream = body.object("stream_options")) {
    completion.include_usage = stream->boolean("include_usage").value_or(false);
  }
  const auto format = body.object("response_format");
  if (format && format->string("type") != "text") body.refuse("response_format");
  refuse_unsupported(body);
  generation.conversation = conversation_hint(body, request);
  generation.body = request.body;
  return completion;
}

void handle_completions(const http::Request& request, std::shared_ptr<http::Exchange> exchange,
                        Generator& generator) {
  FieldErrors errors;
  CompletionRequest completion = read_completion_request(request, generator.info(), errors);
  if (errors) return exchange->respond(openai_error_response(errors.first()));
  const auto options =
      reply_options("cmpl-", completion.generation, completion.stream, completion.include_usage);
  generator.submit(std::move(completion.generation), make_completion_reply(options, std::move(exchange)));
}

}  // namespace ds4::server::api
