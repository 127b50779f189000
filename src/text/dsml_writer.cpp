#include "text/dsml.hpp"
#include "text/json_text.hpp"
#include "text/string_edit.hpp"

namespace ds4 {
namespace text {

std::string escape_attribute(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result.push_back(c);
        break;
    }
  }
  return result;
}

namespace {

void append_parameter(PromptBuilder& prompt, std::string_view name, bool is_string, std::string_view value) {
  prompt.trusted("<｜DSML｜parameter name=\"");
  prompt.untrusted(escape_attribute(name));
  prompt.trusted(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
  prompt.untrusted(value);
  prompt.trusted(kParameterEnd);
  prompt.trusted("\n");
}

std::string string_value(std::string_view text) {
  return replace_all(text, kParameterEnd, kEscapedParameterEnd);
}

/// The closing tag can only stand inside a JSON string, where an escape sequence may replace its first
/// character.
std::string json_value(std::string_view json) {
  return replace_all(json_minify(json), kParameterEnd, "\\u003c/｜DSML｜parameter>");
}

void append_arguments(PromptBuilder& prompt, const std::string& arguments) {
  const auto members = json_object_members(arguments);
  if (!members) {
    append_parameter(prompt, "arguments", true, string_value(arguments));
    return;
  }
  for (const JsonMember& member : *members) {
    if (member.value.front() == '"') {
      append_parameter(prompt, member.key, true, string_value(json_unquote(member.value)));
    } else {
      append_parameter(prompt, member.key, false, json_value(member.value));
    }
  }
}

}  // namespace

void append_tool_calls(PromptBuilder& prompt, const std::vector<ToolCall>& calls) {
  if (calls.empty()) return;
  prompt.trusted("\n\n<｜DSML｜tool_calls>\n");
  for (const ToolCall& call : calls) {
    prompt.trusted("<｜DSML｜invoke name=\"");
    prompt.untrusted(escape_attribute(call.name));
    prompt.trusted("\">\n");
    append_arguments(prompt, call.arguments);
    prompt.trusted("</｜DSML｜invoke>\n");
  }
  prompt.trusted("</｜DSML｜tool_calls>");
}

}  // namespace text

std::string render_tool_calls(const std::vector<ToolCall>& calls) {
  text::PromptBuilder prompt;
  text::append_tool_calls(prompt, calls);
  return prompt.take().text();
}

}  // namespace ds4
