// Tool calls as answers: a canonical text of calls, so that they compare as values and not as spellings.
#include <algorithm>
#include <vector>

#include <boost/json.hpp>

#include "base/error.hpp"
#include "ds4/chat.hpp"
#include "extract.hpp"
#include "text_tools.hpp"

namespace ds4::eval {
namespace {

namespace json = boost::json;

/// A separator unless this is the first element after an opening bracket.
void append_to_list(std::string& list, std::string_view element, std::string_view separator) {
  if (list.size() > 1) list += separator;
  list += element;
}

std::string canonical(const json::value& value) {
  if (const json::object* object = value.if_object()) {
    std::vector<std::string> members;
    for (const auto& [key, member] : *object) {
      members.push_back(json::serialize(json::string(key)) + ":" + canonical(member));
    }
    std::sort(members.begin(), members.end());
    std::string text = "{";
    for (const std::string& member : members) append_to_list(text, member, ",");
    return text + "}";
  }
  if (const json::array* array = value.if_array()) {
    std::string text = "[";
    for (const json::value& element : *array) append_to_list(text, canonical(element), ",");
    return text + "]";
  }
  if (value.is_double()) {  // 3.0 is 3
    const double number = value.get_double();
    const auto whole = static_cast<int64_t>(std::clamp(number, -9e15, 9e15));
    if (static_cast<double>(whole) == number) return fmt::format("{}", whole);
  }
  return json::serialize(value);
}

/// Empty if the arguments are not JSON.
std::string canonical_call(std::string_view name, std::string_view arguments) {
  json::error_code error;
  const json::value value = json::parse({arguments.data(), arguments.size()}, error);
  return error ? std::string() : std::string(name) + canonical(value);
}

}  // namespace

std::string extract_tool_calls(std::string_view visible) {
  const ParsedReply reply = parse_reply(visible, false, true);
  std::string result;
  for (const ToolCall& call : reply.tool_calls) {
    const std::string text = canonical_call(call.name, call.arguments);
    if (text.empty()) return std::string(no_answer);
    append_to_list(result, text, "; ");
  }
  if (result.empty()) return std::string(no_answer);
  return std::string(clip_bytes(result, max_answer_bytes));
}

Result<std::string> canonical_tool_calls(std::string_view text) {
  json::error_code error;
  const json::value value = json::parse({text.data(), text.size()}, error);
  const json::array* calls = error ? nullptr : value.if_array();
  if (calls == nullptr || calls->empty()) {
    return fail(ErrorCode::format, "expected calls are not a JSON array of calls");
  }
  std::string result;
  for (const json::value& call : *calls) {
    const json::object* object = call.if_object();
    const json::value* name = object == nullptr ? nullptr : object->if_contains("name");
    const json::value* arguments = object == nullptr ? nullptr : object->if_contains("arguments");
    if (name == nullptr || !name->is_string() || arguments == nullptr || !arguments->is_object()) {
      return fail(ErrorCode::format, "an expected call needs a name and an object of arguments");
    }
    append_to_list(result, std::string(name->get_string()) + canonical(*arguments), "; ");
  }
  return result;
}

}  // namespace ds4::eval
