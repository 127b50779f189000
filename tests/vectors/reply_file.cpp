// The JSON files of recorded replies.
#include <algorithm>

#include <boost/json.hpp>

#include "base/error.hpp"
#include "base/quote.hpp"
#include "recorded_reply.hpp"

namespace ds4::vectors {
namespace {

namespace json = boost::json;

/// Values by type, with the place in error sentences.
class Fields {
 public:
  Fields(const json::value& value, std::string place) : value_(value), place_(std::move(place)) {}

  template <class... Args>
  Error wrong(fmt::format_string<Args...> text, Args&&... args) const {
    return fail(ErrorCode::format, "{}: {}", place_, fmt::format(text, std::forward<Args>(args)...));
  }

  Result<Fields> at(const char* key) const {
    const json::object* object = value_.if_object();
    const json::value* value = object == nullptr ? nullptr : object->if_contains(key);
    if (value == nullptr) return wrong("there is no \"{}\"", key);
    return Fields(*value, place_ + "." + key);
  }
  Result<std::string> string(const char* key) const {
    DS4_ASSIGN(const Fields field, at(key));
    if (!field.value_.is_string()) return field.wrong("not a string");
    return std::string(field.value_.get_string());
  }
  Result<uint64_t> count(const char* key, uint64_t most) const {
    DS4_ASSIGN(const Fields field, at(key));
    json::error_code error;
    const auto value = field.value_.to_number<uint64_t>(error);
    if (error || value > most) return field.wrong("not a number from 0 to {}", most);
    return value;
  }
  Result<float> logprob() const {
    DS4_ASSIGN(const Fields field, at("logprob"));
    json::error_code error;
    const auto value = field.value_.to_number<double>(error);
    if (error || !(value <= 0)) return field.wrong("not the logarithm of a probability");
    return static_cast<float>(std::max(value, -1e30));
  }
  /// The elements of an array of `least` to `most`.
  Result<std::vector<Fields>> elements(const char* key, size_t least, size_t most) const {
    DS4_ASSIGN(const Fields field, at(key));
    const json::array* array = field.value_.if_array();
    if (array == nullptr || array->size() < least || array->size() > most) {
      return field.wrong("not an array of {} to {} elements", least, most);
    }
    std::vector<Fields> result;
    result.reserve(array->size());
    for (size_t i = 0; i < array->size(); ++i) {
      result.emplace_back((*array)[i], fmt::format("{}[{}]", field.place_, i));
    }
    return result;
  }
  /// The field "token": its bytes, which must be those of its text.
  Result<std::string> token_bytes() const {
    DS4_ASSIGN(const Fields token, at("token"));
    DS4_ASSIGN(const std::string text, token.string("text"));
    DS4_ASSIGN(const auto values, token.elements("bytes", 1, max_token_bytes));
    std::string bytes;
    for (const Fields& value : values) {
      json::error_code error;
      const auto byte = value.value_.to_number<uint8_t>(error);
      if (error) return value.wrong("not a byte");
      bytes.push_back(static_cast<char>(byte));
    }
    // A part of a character has no text of its own: U+FFFD stands in for it.
    if (bytes != text && text.find("\xef\xbf\xbd") == std::string::npos) {
      return token.wrong("the text {} does not have these bytes", quote(text));
    }
    return bytes;
  }

 private:
  const json::value& value_;
  std::string place_;
};

/// The request must be the one that check_case() repeats: the prompt alone, greedily, without reasoning.
Result<void> check_request(const Fields& root, const std::string& prompt) {
  DS4_ASSIGN(const Fields request, root.at("request"));
  DS4_TRY(request.count("temperature", 0));
  DS4_ASSIGN(const Fields thinking, request.at("thinking"));
  DS4_ASSIGN(const std::string type, thinking.string("type"));
  if (type != "disabled") return thinking.wrong("{}, not \"disabled\"", quote(type));
  DS4_ASSIGN(const auto messages, request.elements("messages", 1, 1));
  DS4_ASSIGN(const std::string role, messages[0].string("role"));
  DS4_ASSIGN(const std::string content, messages[0].string("content"));
  if (role != "user" || content != prompt) return messages[0].wrong("not the prompt");
  return {};
}

Result<RecordedStep> read_step(const Fields& fields, size_t index) {
  DS4_ASSIGN(const uint64_t told, fields.count("step", max_steps - 1));
  if (told != index) return fields.wrong("step {} where step {} should be", told, index);
  RecordedStep step;
  DS4_ASSIGN(step.selected, fields.token_bytes());
  DS4_ASSIGN(const auto alternatives, fields.elements("top_logprobs", 0, max_top));
  for (const Fields& alternative : alternatives) {
    RecordedToken token;
    DS4_ASSIGN(token.bytes, alternative.token_bytes());
    DS4_ASSIGN(token.logprob, alternative.logprob());
    step.top.push_back(std::move(token));
  }
  return step;
}

}  // namespace

Result<RecordedReply> parse_reply(std::string_view text, const std::string& name) {
  json::error_code error;
  const json::value value = json::parse(json::string_view(text.data(), text.size()), error);
  if (error) return fail(ErrorCode::format, "{}: not JSON: {}", name, error.message());
  const Fields root(value, name);
  DS4_ASSIGN(const std::string schema, root.string("schema"));
  if (schema != "ds4-official-logprobs-v1") return root.wrong("unknown schema {}", quote(schema));
  RecordedReply reply;
  DS4_ASSIGN(reply.id, root.string("id"));
  DS4_ASSIGN(reply.prompt, root.string("prompt"));
  DS4_TRY(check_request(root, reply.prompt));
  DS4_ASSIGN(const Fields usage, root.at("usage"));
  DS4_ASSIGN(reply.prompt_tokens, usage.count("prompt_tokens", 1 << 20));
  DS4_ASSIGN(const Fields message, root.at("message"));
  DS4_ASSIGN(reply.content, message.string("content"));
  DS4_ASSIGN(const auto steps, root.elements("steps", 1, max_steps));
  std::string content;
  for (size_t i = 0; i < steps.size(); ++i) {
    DS4_ASSIGN(RecordedStep step, read_step(steps[i], i));
    content += step.selected;
    reply.steps.push_back(std::move(step));
  }
  if (content != reply.content) return root.wrong("the tokens of the steps do not make up the message");
  return reply;
}

Result<void> check_agreement(const RecordedCase& recorded, const RecordedReply& reply,
                             std::string_view prompt) {
  const auto differ = [&](const std::string& what) {
    return fail(ErrorCode::format, "case {}: {} not the same in the JSON file", recorded.id, what);
  };
  if (recorded.id != reply.id) return differ("the id is");
  if (prompt != reply.prompt) return differ("the prompt is");
  if (recorded.steps.size() != reply.steps.size()) return differ("the number of steps is");
  for (size_t i = 0; i < reply.steps.size(); ++i) {
    const RecordedStep &ours = recorded.steps[i], &theirs = reply.steps[i];
    if (ours.selected != theirs.selected) return differ(fmt::format("the token of step {} is", i));
    std::vector<RecordedToken> available;
    for (const RecordedToken& token : theirs.top) {
      if (token.logprob > unavailable_logprob) available.push_back(token);
    }
    const auto same = [](const RecordedToken& a, const RecordedToken& b) {
      return a.bytes == b.bytes && a.logprob == b.logprob;
    };
    if (!std::equal(ours.top.begin(), ours.top.end(), available.begin(), available.end(), same)) {
      return differ(fmt::format("what step {} lists is", i));
    }
  }
  return {};
}

}  // namespace ds4::vectors
