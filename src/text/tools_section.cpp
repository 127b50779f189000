#include "text/tools_section.hpp"

namespace ds4 {
namespace {

// Protocol text: the model was trained with it, byte for byte.
constexpr std::string_view kPreamble = R"text(## Tools

You have access to a set of tools to help answer the user question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as raw text and set `string="true"`. Preserve characters such as `>`, `&`, and `&&` exactly; never replace normal string characters with XML or HTML entity escapes. Only if a string value itself contains the exact closing parameter tag `</｜DSML｜parameter>`, write that tag as `&lt;/｜DSML｜parameter>` inside the value. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)text";

constexpr std::string_view kTrailer = R"text(

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls. Use the exact parameter names from the schemas.)text";

}  // namespace

void text::append_tools_section(PromptBuilder& prompt, const std::vector<std::string>& tool_schemas) {
  if (tool_schemas.empty()) return;
  prompt.trusted(kPreamble);
  for (size_t i = 0; i < tool_schemas.size(); ++i) {
    if (i > 0) prompt.trusted("\n");
    prompt.untrusted(tool_schemas[i]);
  }
  prompt.trusted(kTrailer);
}

std::string render_tools_section(const std::vector<std::string>& tool_schemas) {
  text::PromptBuilder prompt;
  text::append_tools_section(prompt, tool_schemas);
  return prompt.take().text();
}

}  // namespace ds4
