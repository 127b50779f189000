#include "grammar/tool_rules.hpp"

#include <map>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "grammar/json_values.hpp"
#include "grammar/lowering.hpp"
#include "grammar/regex.hpp"
#include "grammar/schema_text.hpp"
#include "text/dsml.hpp"
#include "text/string_edit.hpp"

namespace ds4::grammar {
namespace {

constexpr std::string_view kBlockOpen = "\n\n<｜DSML｜tool_calls>\n";
constexpr std::string_view kBlockClose = "</｜DSML｜tool_calls>";
constexpr std::string_view kInvokeOpen = "<｜DSML｜invoke name=\"";
constexpr std::string_view kInvokeClose = "</｜DSML｜invoke>\n";
constexpr std::string_view kParameterOpen = "<｜DSML｜parameter name=\"";

/// Texts that a value may hold: those without a closing tag, and where the text is restricted also without
/// the tag's escaped form, which would be read as another text.
std::optional<Dfa> raw_texts(bool restricted) {
  std::string pattern(kClosingTagPattern);
  if (restricted) pattern.append("|").append(text::kEscapedParameterEnd);
  const auto tags = dfa_of_pattern(pattern);
  return tags ? complement(*tags) : std::nullopt;
}

}  // namespace

struct ToolRules::Tool {
  SchemaReader& reader;
  SchemaCompiler& compiler;
};

ToolRules::ToolRules(AutomatonBuilder& builder) : builder_(builder), json_(builder, true) {}

Result<uint32_t> ToolRules::block(std::span<const ToolSignature> tools, bool parallel) {
  const uint32_t start = builder_.add_state();
  const uint32_t invoke = builder_.add_text(start, kBlockOpen);
  const uint32_t behind = builder_.add_state();
  const uint32_t name = builder_.add_text(invoke, kInvokeOpen);
  for (const ToolSignature& tool : tools) DS4_TRY(emit_tool(tool, name, behind));
  builder_.add_text_to(behind, kBlockClose, json_.end());
  if (parallel) builder_.add_jump(behind, {.target = invoke});
  return start;
}

Result<void> ToolRules::emit_tool(const ToolSignature& tool, uint32_t start, uint32_t end) {
  const std::string field = fmt::format("tools: the parameters of '{}'", tool.name);
  boost::json::value schema = boost::json::object{{"type", "object"}, {"properties", boost::json::object{}}};
  if (!tool.parameters.empty()) {
    DS4_ASSIGN(schema, parse_schema(tool.parameters, field));
  }
  SchemaReader reader(schema, field);
  SchemaCompiler compiler(reader, json_, false);
  Tool state{.reader = reader, .compiler = compiler};
  DS4_ASSIGN(const ValueForms forms, compiler.forms({&reader.root()}));
  std::vector<Branch> objects = forms.objects;
  if (forms.any) objects = {Branch{.more_properties = true}};
  if (objects.empty()) return reader.error("the schema allows no object");
  const uint32_t opened = builder_.add_text(start, text::escape_attribute(tool.name) + "\">\n");
  for (const Branch& object : objects) {
    const uint32_t arguments = builder_.add_state();
    builder_.add_jump(opened, {.target = arguments});
    DS4_TRY(emit_arguments(object, state, arguments, end));
    if (builder_.full()) return reader.error("the schema is too large");
  }
  return compiler.run();
}

Result<void> ToolRules::emit_arguments(const Branch& object, Tool& tool, uint32_t start, uint32_t end) {
  uint32_t at = start;
  for (const Property& property : object.properties) {
    const uint32_t next = builder_.add_state();
    const std::string tag = fmt::format("{}{}\"", kParameterOpen, text::escape_attribute(property.name));
    DS4_TRY(emit_value(property.schemas, tool, builder_.add_text(at, tag), next));
    if (!property.required) builder_.add_jump(at, {.target = next});
    at = next;
  }
  if (object.more_properties) DS4_TRY(emit_more(object, tool, at));
  builder_.add_text_to(at, kInvokeClose, end);
  return {};
}

/// Parameters of free names, any number of them.
Result<void> ToolRules::emit_more(const Branch& object, Tool& tool, uint32_t from) {
  // Names that need no escaping, and that are not empty.
  DS4_ASSIGN(const Dfa names, tool.compiler.more_names(object));
  const Dfa plain{
      {{.edges = {{' ', '!', 1}, {'#', '%', 1}, {'\'', ';', 1}, {'=', '=', 1}, {'?', kLastCharacter, 1}}},
       {.edges = {{' ', '!', 1}, {'#', '%', 1}, {'\'', ';', 1}, {'=', '=', 1}, {'?', kLastCharacter, 1}},
        .accepting = true}}};
  const auto writable = intersect(names, plain);
  if (!writable) return tool.reader.error("the names of the schema's properties are too complex");
  if (writable->empty()) return {};
  const uint32_t named = builder_.add_state();
  const uint32_t name =
      lower(builder_, *writable, {.escapes = StringForm::Escapes::none, .terminator = "\""}, named);
  const uint32_t opened = builder_.add_text(from, kParameterOpen);
  builder_.add_jump(opened, {.target = name});
  return emit_value(object.more_schemas, tool, named, from);
}

Result<void> ToolRules::emit_value(const Conjunction& schemas, Tool& tool, uint32_t named, uint32_t end) {
  DS4_ASSIGN(const ValueForms forms, tool.compiler.forms(schemas));
  if (forms.has_strings()) {
    DS4_TRY(emit_raw(forms, tool, builder_.add_text(named, " string=\"true\">"), end));
  }
  if (!forms.has_others()) return {};
  const uint32_t value = builder_.add_state();
  const uint32_t opened = builder_.add_text(named, " string=\"false\">");
  const uint32_t behind = builder_.add_state();
  builder_.add_jump(opened, {.target = value, .return_to = behind, .deeper = true});
  builder_.add_text_to(behind, std::string(text::kParameterEnd) + "\n", end);
  return tool.compiler.emit(forms, value, false);
}

void ToolRules::call_line(uint32_t from, uint32_t rule, uint32_t end) {
  const uint32_t line_end = builder_.add_state();
  builder_.call(from, rule, line_end);
  builder_.add_byte(line_end, '\n', end);
}

/// Text up to and with the closing tag.
uint32_t ToolRules::free_raw(uint32_t least, uint32_t most) {
  const auto [place, is_new] = free_raws_.try_emplace({least, most}, 0);
  if (is_new) {
    const auto texts = raw_texts(least > 0 || most != kUnlimited);
    const StringForm form{.terminator = text::kParameterEnd, .least = least, .most = most};
    place->second = texts ? lower(builder_, *texts, form, json_.end()) : builder_.add_state();
  }
  return place->second;
}

Result<void> ToolRules::emit_raw(const ValueForms& forms, Tool& tool, uint32_t opened, uint32_t end) {
  if (forms.any || forms.free_strings) {
    call_line(opened, free_raw(0, kUnlimited), end);
    return {};
  }
  for (const auto& [least, most] : forms.string_lengths) call_line(opened, free_raw(least, most), end);
  if (forms.strings.empty()) return {};
  auto strings = unite(forms.strings);
  const auto raw = raw_texts(true);
  if (strings && raw) strings = intersect(*strings, *raw);
  if (!strings || !raw) return tool.reader.error("the strings of the schema are too complex");
  if (strings->empty()) return {};
  const uint32_t rule = lower(builder_, *strings, {.terminator = text::kParameterEnd}, json_.end());
  call_line(opened, rule, end);
  return {};
}

}  // namespace ds4::grammar
