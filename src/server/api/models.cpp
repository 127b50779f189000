#include "server/api/models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "base/quote.hpp"
#include "server/api/error_body.hpp"
#include "server/api/json_writer.hpp"

namespace ds4::server::api {
namespace {

constexpr const char* kSupportedParameters[] = {
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "seed",
    "n",
    "stream",
    "logprobs",
    "top_logprobs",
    "response_format",
    "structured_outputs",
    "reasoning",
    "reasoning_effort",
};

/// "2026-01-01T00:00:00Z"
std::string iso_time(int64_t seconds) {
  namespace chrono = std::chrono;
  const chrono::sys_seconds time{chrono::seconds(seconds)};
  const auto day = chrono::floor<chrono::days>(time);
  const chrono::year_month_day date(day);
  const chrono::hh_mm_ss clock(time - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     clock.hours().count(), clock.minutes().count(), clock.seconds().count());
}

/// Clients look for the sizes under many names; a missing one makes them assume something else.
void write_model(JsonWriter& json, std::string_view id, const ServerInfo& info) {
  const uint64_t longest_answer = std::min<uint64_t>(info.default_max_tokens, info.context_tokens);
  json.begin_object().member("id", id).member("object", "model").member("created", info.created);
  json.member("owned_by", "ds4").member("name", info.model_name);
  for (const char* name :
       {"context_length", "context_window", "max_context_length", "max_model_len", "max_input_tokens"}) {
    json.member(name, info.context_tokens);
  }
  for (const char* name : {"max_output_tokens", "max_completion_tokens", "max_tokens"}) {
    json.member(name, longest_answer);
  }
  json.key("top_provider").begin_object().member("context_length", info.context_tokens);
  json.member("max_completion_tokens", longest_answer).member("is_moderated", false).end_object();
  json.key("supported_parameters").begin_array();
  for (const char* name : kSupportedParameters) json.string(name);
  json.end_array();
  json.key("architecture").begin_object().member("modality", "text->text");
  json.key("input_modalities").begin_array().string("text").end_array();
  json.key("output_modalities").begin_array().string("text").end_array().end_object();
  json.key("capabilities").begin_object().member("completion", true).member("chat", true);
  json.member("tools", true).member("reasoning", true).member("structured_outputs", true);
  json.member("infill", info.infill).member("vision", false).end_object();
  json.member("type", "model")
      .member("display_name", info.model_name)
      .member("created_at", iso_time(info.created));
  json.end_object();
}

}  // namespace

http::Response answer_models(const http::Request& /*request*/, Generator& generator) {
  const ServerInfo& info = generator.info();
  JsonWriter json;
  json.begin_object().member("object", "list").key("data").begin_array();
  write_model(json, info.model_id, info);
  json.end_array()
      .member("has_more", false)
      .member("first_id", info.model_id)
      .member("last_id", info.model_id);
  http::Response response;
  response.body = json.end_object().take() + "\n";
  return response;
}

http::Response answer_model(std::string_view id, const ServerInfo& info) {
  if (id != info.model_id && id != "deepseek-chat" && id != "deepseek-reasoner") {
    RequestError error;
    error.status = 404;
    error.message = fmt::format("the model {} does not exist; this server has {}", quote(id), info.model_id);
    error.param = "model";
    error.code = "model_not_found";
    return openai_error_response(error);
  }
  JsonWriter json;
  write_model(json, id, info);
  http::Response response;
  response.body = json.take() + "\n";
  return response;
}

}  // namespace ds4::server::api
