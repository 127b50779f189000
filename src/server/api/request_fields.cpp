#include "server/api/request_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace ds4::server::api {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kLongestNameBytes = 256;
constexpr size_t kMostStops = 64;
constexpr size_t kLongestStopBytes = 4096;  // every answer has its own copy
constexpr size_t kMostCandidates = 1000;
constexpr int64_t kMostTopK = 1024;  // SamplingParams::top_k

/// Fields that are numbers, and the value that changes nothing.
struct NeutralNumber {
  const char* name;
  double neutral;
};
constexpr NeutralNumber kNumbers[] = {
    {"frequency_penalty", 0},
    {"presence_penalty", 0},
    {"repetition_penalty", 1},
    {"repeat_penalty", 1},
    {"length_penalty", 1},
    {"dry_multiplier", 0},
    {"xtc_probability", 0},
    {"mirostat", 0},
    {"mirostat_mode", 0},
    {"typical_p", 1},
    {"tfs_z", 1},
    {"top_a", 0},
    {"min_tokens", 0},
    {"dynatemp_range", 0},
    {"n_predict", -1},
    {"n_probs", 0},
};
/// Fields that change the answer whenever they have a value that is not empty.
constexpr const char* kOthers[] = {
    "logit_bias",
    "audio",
    "web_search_options",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "grammar",
    "json_schema",
    "allowed_token_ids",
    "stop_token_ids",
    "bad_words",
    "logits_processors",
    "documents",
    "use_beam_search",
    "echo",
    "ignore_eos",
    "prompt_embeds",
    "prompt_token_ids",
    "continue_final_message",
    "mcp_servers",
    "chat_template",
    "include_stop_str_in_output",
    "prompt_logprobs",
    "truncate_prompt_tokens",
    "regex",
    "ebnf",
};

bool is_empty(const JsonValue& value) {
  switch (value.kind()) {
    case Kind::null:
      return true;
    case Kind::boolean:
      return !value.boolean();
    case Kind::string:
      return value.text() == "\"\"";
    case Kind::array:
    case Kind::object:
      return text::skip_white_space(value.text(), 1) == value.text().size() - 1;
    case Kind::number:
      return false;
  }
  return false;
}

/// 0 and negative numbers ask for a seed of the server's choice (docs/sampling.md).
void read_seed(const Fields& body, GenerationRequest& request) {
  const auto value = body.find("seed");
  if (!value) return;
  uint64_t seed = 0;
  const std::string_view text = value->text();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size()) {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    const int64_t number = body.integer("seed", -kMost - 1, kMost).value_or(0);
    seed = static_cast<uint64_t>(std::max<int64_t>(0, number));
  }
  if (seed > 0) request.seed = seed;
}

/// The text of an element of a content array, or nothing after noting an error. Reasoning is appended to
/// `reasoning`, where that is not null.
std::optional<std::string> read_text_part(const JsonValue& part, const std::string& path, FieldErrors& errors,
                                          std::string* reasoning) {
  if (part.is(Kind::string)) return part.string();
  const auto fields = element_fields(part, path, errors);
  if (!fields) return std::nullopt;
  const std::string type = fields->string("type").value_or("text");
  if (type == "text" || type == "input_text" || type == "output_text" || type == "summary_text" ||
      type == "reasoning_text") {
    return fields->string("text").value_or("");
  }
  if (type == "refusal") return fields->string("refusal").value_or("");
  if (reasoning != nullptr && (type == "thinking" || type == "reasoning" || type == "redacted_thinking")) {
    *reasoning += read_reasoning_text(*fields);
    return "";
  }
  errors.add(path, fmt::format("{}: content of type {} is not supported", path, type.substr(0, 40)),
             "unsupported_content");
  return std::nullopt;
}

}  // namespace

std::string read_model(const Fields& body, const ServerInfo& info) {
  std::string model = body.string("model").value_or("");
  if (model.size() > kLongestNameBytes) body.wrong_value("model", "is too long");
  return model.empty() ? info.model_id : model;
}

void read_sampling(const Fields& body, GenerationRequest& request) {
  SamplingParams& sampling = request.sampling;
  // Above 2, the limit of OpenAI, there is only noise; other servers allow it.
  if (const auto value = body.number("temperature", 0, 100))
    sampling.temperature = static_cast<float>(*value);
  if (const auto value = body.number("top_p", 0, 1)) sampling.top_p = static_cast<float>(*value);
  if (const auto value = body.number("min_p", 0, 1)) sampling.min_p = static_cast<float>(*value);
  if (const auto value = body.integer("top_k", -1, kMostTopK)) sampling.top_k = static_cast<int>(*value);
  read_seed(body, request);
}

std::vector<std::string> read_stop(const Fields& body, std::string_view name) {
  std::vector<std::string> stops;
  const auto value = body.find(name);
  if (!value) return stops;
  if (value->is(Kind::string)) {
    stops.push_back(value->string());
  } else if (value->is(Kind::array)) {
    for (const JsonValue& element : value->elements()) {
      if (!element.is(Kind::string)) {
        body.wrong_type(name, "a string or an array of strings");
        return {};
      }
      stops.push_back(element.string());
    }
  } else {
    body.wrong_type(name, "a string or an array of strings");
  }
  std::erase_if(stops, [](const std::string& stop) { return stop.empty(); });
  if (stops.size() > kMostStops) body.wrong_value(name, fmt::format("has more than {} strings", kMostStops));
  if (std::any_of(stops.begin(), stops.end(),
                  [](const auto& stop) { return stop.size() > kLongestStopBytes; })) {
    body.wrong_value(name, fmt::format("has a string of more than {} bytes", kLongestStopBytes));
  }
  return stops;
}

std::optional<size_t> read_max_tokens(const Fields& body, std::initializer_list<std::string_view> names) {
  std::optional<size_t> result, result_position;
  for (const std::string_view name : names) {
    const auto value = body.count(name, 0, std::numeric_limits<int64_t>::max());
    if (!value || body.position(name) < result_position) continue;
    result = value;
    result_position = body.position(name);
  }
  return result;
}

void refuse_unsupported(const Fields& body) {
  for (const auto& [name, neutral] : kNumbers) {
    if (!body.has(name)) continue;
    const auto value =
        body.number(name, -std::numeric_limits<double>::max(), std::numeric_limits<double>::max());
    if (value && *value != neutral) body.refuse(name);
  }
  for (const char* name : kOthers) {
    if (const auto value = body.find(name); value && !is_empty(*value)) body.refuse(name);
  }
  // As many candidates as answers: nothing is chosen among them.
  const auto best_of = body.count("best_of", 0, kMostCandidates);
  if (best_of.value_or(0) > 1 && best_of != body.count("n", 0, kMostCandidates)) body.refuse("best_of");
  const auto modalities = body.array("modalities");
  if (modalities && std::any_of(modalities->begin(), modalities->end(), [](const JsonValue& value) {
        return !value.is(Kind::string) || value.string() != "text";
      })) {
    body.refuse("modalities", "other than text are not supported");
  }
  if (body.boolean("add_generation_prompt") == false)
    body.refuse("add_generation_prompt", "false is not supported");
}

std::string conversation_hint(const Fields& body, const http::Request& request) {
  const auto text_of = [&](std::string_view name) {
    const auto value = body.find(name);
    return value && value->is(Kind::string) ? value->string().substr(0, kLongestNameBytes) : std::string();
  };
  if (std::string key = text_of("prompt_cache_key"); !key.empty()) return key;
  for (const char* name : {"session_id", "x-session-id", "x-session-affinity", "conversation_id"}) {
    if (const auto value = request.header(name); value && !value->empty()) {
      return std::string(value->substr(0, kLongestNameBytes));
    }
  }
  if (std::string user = text_of("safety_identifier"); !user.empty()) return user;
  return text_of("user");
}

std::string read_text_content(const JsonValue& content, const std::string& path, FieldErrors& errors,
                              std::string* reasoning) {
  if (content.is(Kind::null)) return "";
  if (content.is(Kind::string)) return content.string();
  if (!content.is(Kind::array)) {
    errors.add(path, fmt::format("{} must be a string or an array of parts", path), "invalid_type");
    return "";
  }
  std::string text;
  size_t index = 0;
  for (const JsonValue& part : content.elements()) {
    const auto piece = read_text_part(part, element_path(path, index++), errors, reasoning);
    if (!piece) return "";
    text += *piece;
  }
  return text;
}

std::string read_reasoning_text(const Fields& message) {
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    const auto value = message.find(name);
    if (!value || !(value->is(Kind::string) || value->is(Kind::array))) continue;
    FieldErrors ignored;
    std::string text = read_text_content(*value, name, ignored);
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace ds4::server::api
