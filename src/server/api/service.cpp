#include "server/api/service.hpp"

#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "ds4/version.hpp"
#include "server/api/error_body.hpp"
#include "server/api/json_fields.hpp"
#include "server/api/json_writer.hpp"
#include "server/api/thinking_fields.hpp"
#include "text/utf8.hpp"

namespace ds4::server::api {
namespace {

http::Response json_response(JsonWriter& json) {
  http::Response response;
  response.body = json.take() + "\n";
  return response;
}

/// The bytes of a token: a string, or an array of numbers if they are part of a character.
void write_piece(JsonWriter& json, const std::string& bytes) {
  json.key("piece");
  if (text::is_utf8(bytes)) {
    json.string(bytes);
    return;
  }
  json.begin_array();
  for (const char byte : bytes) json.integer(static_cast<unsigned>(static_cast<unsigned char>(byte)));
  json.end_array();
}

std::string read_text(const Fields& body) {
  for (const char* name : {"content", "text", "prompt"}) {
    if (body.has(name)) return body.string(name).value_or("");
  }
  body.errors().add("content", "missing content", "missing_required_parameter");
  return "";
}

std::vector<Token> read_tokens(const Fields& body, size_t vocabulary_size) {
  std::vector<Token> tokens;
  if (!body.has("tokens")) body.errors().add("tokens", "missing tokens", "missing_required_parameter");
  const auto elements = body.array("tokens");
  if (!elements) return tokens;
  tokens.reserve(elements->size());
  for (const JsonValue& element : *elements) {
    Token token = -1;
    const std::string_view text = element.text();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), token);
    if (error != std::errc() || end != text.data() + text.size() || token < 0 ||
        static_cast<size_t>(token) >= vocabulary_size) {
      const std::string path = element_path("tokens", tokens.size());
      body.errors().add(path, path + " is not a token of the vocabulary", "invalid_value");
      break;
    }
    tokens.push_back(token);
  }
  return tokens;
}

}  // namespace

http::Response answer_health() {
  http::Response response;
  response.body = "{\"status\":\"ok\"}\n";
  return response;
}

http::Response answer_props(const http::Request& /*request*/, Generator& generator) {
  const ServerInfo& info = generator.info();
  const SamplingParams sampling;
  JsonWriter json;
  json.begin_object().key("default_generation_settings").begin_object();
  json.key("temperature").number(sampling.temperature).member("top_k", sampling.top_k);
  json.key("top_p").number(sampling.top_p).key("min_p").number(sampling.min_p);
  json.member("max_tokens", info.default_max_tokens).member("thinking", name_of(Thinking().mode));
  json.member("effort_profile", info.effort_profile == EffortProfile::preview ? "preview" : "0731");
  json.member("n_ctx", info.context_tokens).end_object();
  json.member("model", info.model_id).member("model_name", info.model_name);
  json.member("context_length", info.context_tokens).member("n_ctx", info.context_tokens);
  json.member("vocabulary_size", generator.tokenizer().vocabulary_size()).member("infill", info.infill);
  json.member("build_info", std::string("ds4 ") + version).end_object();
  return json_response(json);
}

http::Response answer_tokenize(const http::Request& request, Generator& generator) {
  FieldErrors errors;
  const auto object = parse_body(request.body, errors);
  if (!object) return openai_error_response(errors.first());
  const Fields body(*object, "", errors);
  const std::string text = read_text(body);
  const bool add_special = body.boolean("add_special").value_or(false);
  const bool with_pieces = body.boolean("with_pieces").value_or(false);
  if (body.boolean("parse_special").value_or(false)) body.refuse("parse_special");
  if (errors) return openai_error_response(errors.first());
  const Tokenizer& tokenizer = generator.tokenizer();
  std::vector<Token> tokens = tokenizer.encode_plain(text);
  if (add_special) tokens.insert(tokens.begin(), tokenizer.special().bos);
  JsonWriter json;
  json.begin_object().key("tokens").begin_array();
  for (const Token token : tokens) {
    if (!with_pieces) {
      json.integer(token);
      continue;
    }
    write_piece(json.begin_object().member("id", token), tokenizer.decode(token));
    json.end_object();
  }
  json.end_array().end_object();
  return json_response(json);
}

http::Response answer_detokenize(const http::Request& request, Generator& generator) {
  FieldErrors errors;
  const auto object = parse_body(request.body, errors);
  if (!object) return openai_error_response(errors.first());
  const Tokenizer& tokenizer = generator.tokenizer();
  const std::vector<Token> tokens = read_tokens(Fields(*object, "", errors), tokenizer.vocabulary_size());
  if (errors) return openai_error_response(errors.first());
  JsonWriter json;
  json.begin_object().member("content", tokenizer.decode(tokens)).end_object();
  return json_response(json);
}

}  // namespace ds4::server::api
