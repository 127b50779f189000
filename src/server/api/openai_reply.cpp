#include "server/api/openai_reply.hpp"

#include <ctime>

#include "server/api/error_body.hpp"
#include "server/api/event_stream.hpp"
#include "server/api/ids.hpp"
#include "server/api/thinking_fields.hpp"

namespace ds4::server::api {
namespace {

using Event = GenerationEvent::Kind;

RequestError error_of(const GenerationEvent& event, const std::string& overflow_param) {
  RequestError error = event.error;
  if (error.code == "context_length_exceeded") error.param = overflow_param;
  return error;
}

}  // namespace

OpenAiReplyOptions reply_options(const char* id_prefix, const GenerationRequest& request, bool stream,
                                 bool include_usage) {
  OpenAiReplyOptions options;
  options.id = random_id(id_prefix, 24);
  options.created = static_cast<int64_t>(std::time(nullptr));
  options.model = request.model;
  options.stream = stream;
  options.include_usage = include_usage;
  options.choices = request.choices;
  options.top_logprobs = request.top_logprobs > 0;
  options.thinking = request.thinking;
  return options;
}

const char* name_of(FinishReason finish) {
  switch (finish) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::tool_calls:
      return "tool_calls";
    case FinishReason::error:
      return "error";
  }
  return "error";
}

void write_openai_usage(JsonWriter& json, const Usage& usage) {
  const size_t cached = std::min(usage.cached_tokens, usage.prompt_tokens);
  json.begin_object().member("prompt_tokens", usage.prompt_tokens);
  json.member("completion_tokens", usage.completion_tokens);
  json.member("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").begin_object().member("cached_tokens", cached);
  json.member("cache_write_tokens", usage.prompt_tokens - cached).end_object();
  json.key("completion_tokens_details").begin_object().member("reasoning_tokens", usage.reasoning_tokens);
  json.end_object().end_object();
}

void write_finish(JsonWriter& json, const GenerationEvent& finished) {
  json.member("finish_reason", name_of(finished.finish));
  if (finished.stop_sequence) json.member("stop_reason", *finished.stop_sequence);
}

void write_prefill(JsonWriter& json, const GenerationEvent& progress) {
  json.key("prefill").begin_object().member("done", progress.done).member("total", progress.total);
  json.end_object();
}

void write_logprob(JsonWriter& json, float logprob) {
  constexpr float kImpossible = -9999;
  json.number(logprob >= kImpossible ? logprob : kImpossible);  // NaN compares false
}

OpenAiReply::OpenAiReply(OpenAiReplyOptions options, std::shared_ptr<http::Exchange> exchange,
                         std::string overflow_param, std::string object)
    : options_(std::move(options)),
      exchange_(std::move(exchange)),
      overflow_param_(std::move(overflow_param)),
      object_(std::move(object)) {}

void OpenAiReply::on_event(const GenerationEvent& event) {
  if (ended_) return;
  if (event.kind == Event::failed) return fail(error_of(event, overflow_param_));
  if (event.kind == Event::done) return finish(event);
  if (event.choice >= options_.choices) return;
  if (event.kind == Event::reasoning && options_.hide_reasoning) return;
  const bool broken = event.kind == Event::finished && event.finish == FinishReason::error;
  if (!options_.stream) {
    if (broken && !choice_error_) choice_error_ = generation_error(event);
    return collect(event);
  }
  begin();
  if (event.kind == Event::progress) return send_progress(event);
  if (!broken) return stream(event);
  exchange_->write(event_text("error", openai_error(generation_error(event))));
}

void OpenAiReply::send_choice(const std::string& choice) {
  exchange_->write(chunk(choice));
}

void OpenAiReply::begin() {
  if (begun_) return;
  begun_ = true;
  begin_event_stream(*exchange_, thinking_header(options_.thinking),
                     [alive = chunk(keepalive_choice())] { return alive; });
  stream_begin();
}

/// A chunk that says nothing, with a member that clients pass over who do not know it.
void OpenAiReply::send_progress(const GenerationEvent& progress) {
  if (progress.total == 0) return;  // it waits
  JsonWriter json = envelope();
  write_prefill(json.raw(keepalive_choice()).end_array(), progress);
  exchange_->write(event_text(json.end_object().take()));
}

void OpenAiReply::finish(const GenerationEvent& done) {
  if (!options_.stream) {
    if (choice_error_) return fail(*choice_error_);
    ended_ = true;
    JsonWriter json = envelope();
    for (size_t i = 0; i < options_.choices; ++i) write_choice(json, i);
    json.end_array().key("usage");
    write_openai_usage(json, done.usage);
    http::Response response;
    response.body = json.end_object().take() + "\n";
    response.headers = thinking_header(options_.thinking);
    return exchange_->respond(std::move(response));
  }
  ended_ = true;
  begin();
  if (options_.include_usage) {
    JsonWriter json = envelope();
    json.end_array().key("usage");
    write_openai_usage(json, done.usage);
    exchange_->write(event_text(json.end_object().take()));
  }
  exchange_->write(event_text("[DONE]"));
  exchange_->end();
}

void OpenAiReply::fail(const RequestError& error) {
  ended_ = true;
  if (!begun_) return exchange_->respond(openai_error_response(error));
  end_with_error(*exchange_, openai_error(error));
}

/// Open inside the array of choices.
JsonWriter OpenAiReply::envelope() const {
  JsonWriter json;
  json.begin_object().member("id", options_.id).member("object", object_).member("created", options_.created);
  json.member("model", options_.model).key("choices").begin_array();
  return json;
}

std::string OpenAiReply::chunk(const std::string& choice) const {
  JsonWriter json = envelope();
  json.raw(choice).end_array().end_object();
  return event_text(json.take());
}

}  // namespace ds4::server::api
