#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "server/api/history.hpp"
#include "server/api/json_writer.hpp"
#include "server/api/openai_responses.hpp"

namespace ds4::server::api {
namespace {

using Kind = JsonValue::Kind;
using ToolKind = ResponseTool::Kind;

constexpr const char* kNoParameters = R"({"type":"object","properties":{}})";
/// A call holds the action of a local_shell_call.
constexpr const char* kShellParameters =
    R"({"type":"object","properties":{"command":{"type":"array","items":{"type":"string"},)"
    R"("description":"The program and its arguments."},"working_directory":{"type":"string"},)"
    R"("timeout_ms":{"type":"integer"},"env":{"type":"object","additionalProperties":{"type":"string"}}},)"
    R"("required":["command"]})";

/// Adds a tool that the model sees as `schema`. A name that is taken already keeps its tool: a search finds
/// again what was offered before.
void add_tool(ResponsesRequest& request, Tool tool, ResponseTool back) {
  if (request.tools.emplace(tool.name, std::move(back)).second)
    request.generation.tools.push_back(std::move(tool));
}

std::string function_schema(std::string_view name, std::string_view description,
                            std::string_view parameters) {
  JsonWriter json;
  json.begin_object().member("name", name).member("description", description);
  return json.key("parameters").raw(parameters).end_object().take();
}

std::optional<std::string> read_name(const Fields& tool) {
  auto name = tool.string("name");
  if (name && !name->empty()) return name;
  tool.wrong_value("name", "must be given");
  return std::nullopt;
}

/// The schema of the arguments, empty if there is none.
std::string read_parameters(const Fields& tool) {
  for (const char* name : {"parameters", "input_schema"}) {
    if (tool.object(name)) return std::string(tool.find(name)->text());
  }
  return "";
}

void read_function(const Fields& tool, std::string_view text, const std::string& name_space,
                   ResponsesRequest& request) {
  auto name = read_name(tool);
  if (!name) return;
  Tool result;
  result.name = name_space + *name;
  result.parameters = read_parameters(tool);
  result.schema = text;
  if (!name_space.empty()) {
    result.schema = function_schema(result.name, tool.string("description").value_or(""),
                                    result.parameters.empty() ? kNoParameters : result.parameters);
  }
  add_tool(request, std::move(result), {ToolKind::function, std::move(*name), name_space});
}

/// Free text becomes the one parameter of a function. What its grammar is, the model can only be told.
void read_custom(const Fields& tool, const std::string& name_space, ResponsesRequest& request) {
  auto name = read_name(tool);
  if (!name) return;
  std::string description = tool.string("description").value_or("");
  const auto format = tool.object("format");
  if (format && format->string("type") == "grammar") {
    append_line(description, fmt::format("The input is free text in this grammar ({}):\n{}",
                                         format->string("syntax").value_or("lark"),
                                         format->string("definition").value_or("")));
  }
  Tool result;
  result.name = name_space + *name;
  result.parameters =
      R"({"type":"object","properties":{"input":{"type":"string","description":"The input as free text."}},)"
      R"("required":["input"]})";
  result.schema = function_schema(result.name, description, result.parameters);
  add_tool(request, std::move(result), {ToolKind::custom, std::move(*name), name_space});
}

void read_tool_search(const Fields& tool, ResponsesRequest& request) {
  if (tool.string("execution") == "server") return ignore_tool(request.ignored_tools, "tool_search");
  Tool result;
  result.name = "tool_search";
  result.parameters = read_parameters(tool);
  if (result.parameters.empty()) result.parameters = kNoParameters;
  result.schema = function_schema(result.name, tool.string("description").value_or("Search available tools."),
                                  result.parameters);
  add_tool(request, std::move(result), {ToolKind::tool_search, "tool_search", ""});
}

void read_local_shell(ResponsesRequest& request) {
  Tool result;
  result.name = "local_shell";
  result.parameters = kShellParameters;
  result.schema = function_schema(result.name, "Runs a command on the user's machine.", result.parameters);
  add_tool(request, std::move(result), {ToolKind::local_shell, "local_shell", ""});
}

void read_tool(const JsonValue& element, const std::string& path, const std::string& name_space,
               FieldErrors& errors, ResponsesRequest& request);

void read_namespace(const Fields& tool, ResponsesRequest& request) {
  const auto name = read_name(tool);
  const auto tools = tool.array("tools");
  if (!name || !tools) return;
  size_t index = 0;
  for (const JsonValue& element : *tools) {
    read_tool(element, element_path(tool.path_of("tools"), index++), *name, tool.errors(), request);
  }
}

void read_tool(const JsonValue& element, const std::string& path, const std::string& name_space,
               FieldErrors& errors, ResponsesRequest& request) {
  const auto tool = element_fields(element, path, errors);
  if (!tool) return;
  const std::string type = tool->string("type").value_or("function");
  if (const auto function = tool->object("function")) {  // as in chat
    read_function(*function, tool->find("function")->text(), name_space, request);
  } else if (type == "function") {
    read_function(*tool, element.text(), name_space, request);
  } else if (type == "custom") {
    read_custom(*tool, name_space, request);
  } else if (!name_space.empty()) {
    tool->refuse("type", fmt::format("{} is not supported in a namespace", type.substr(0, 40)));
  } else if (type == "namespace") {
    read_namespace(*tool, request);
  } else if (type == "tool_search") {
    read_tool_search(*tool, request);
  } else if (type == "local_shell") {
    read_local_shell(request);
  } else {
    ignore_tool(request.ignored_tools, type);
  }
}

/// The name by which the model knows what the client calls `name`, if it was offered.
std::optional<std::string> offered_name(const Fields& choice, const ResponseTools& tools) {
  std::string type = choice.string("type").value_or("function");
  if (type == "tool_search" || type == "local_shell") {
    if (tools.contains(type)) return type;
    return std::nullopt;
  }
  const auto nested = choice.find("function");
  const Fields holder = nested && nested->is(Kind::object) ? *choice.object("function") : choice;
  const std::string name = holder.string("name").value_or("");
  const std::string name_space = holder.string("namespace").value_or("");
  if (tools.contains(name_space + name)) return name_space + name;
  for (const auto& [known, tool] : tools) {
    if (name_space.empty() && tool.name == name) return known;
  }
  return std::nullopt;
}

/// Only these tools may be called: the others are not offered.
void read_allowed_tools(const Fields& choice, ResponsesRequest& request) {
  const auto tools = choice.array("tools");
  if (!tools) return choice.wrong_value("tools", "must be given");
  std::unordered_set<std::string> allowed;
  size_t index = 0;
  for (const JsonValue& element : *tools) {
    const auto fields =
        element_fields(element, element_path(choice.path_of("tools"), index++), choice.errors());
    if (!fields) return;
    if (auto name = offered_name(*fields, request.tools)) allowed.insert(std::move(*name));
  }
  std::erase_if(request.generation.tools, [&](const Tool& tool) { return !allowed.contains(tool.name); });
  const std::string mode = choice.string("mode").value_or("auto");
  if (mode == "required") {
    request.generation.tool_choice = ToolChoice::required;
    if (request.generation.tools.empty()) choice.wrong_value("tools", "names no tool of this request");
  } else if (mode != "auto") {
    choice.wrong_value("mode", "must be auto or required");
  }
}

void read_chosen(const Fields& choice, ResponsesRequest& request) {
  const std::string type = choice.string("type").value_or("function");
  if (type == "allowed_tools") return read_allowed_tools(choice, request);
  if (type != "function" && type != "custom" && type != "tool_search" && type != "local_shell") {
    return choice.refuse("type", fmt::format("{} is not supported", type.substr(0, 40)));
  }
  auto name = offered_name(choice, request.tools);
  if (!name) return choice.wrong_value("name", "is not the name of a tool of this request");
  request.generation.tool_choice = ToolChoice::named;
  request.generation.tool_choice_name = std::move(*name);
}

}  // namespace

void read_response_tools(const std::vector<JsonValue>& tools, const std::string& path, FieldErrors& errors,
                         ResponsesRequest& request) {
  size_t index = 0;
  for (const JsonValue& tool : tools) {
    if (errors) return;
    read_tool(tool, element_path(path, index++), "", errors, request);
  }
}

void read_response_tool_choice(const Fields& body, ResponsesRequest& request) {
  GenerationRequest& generation = request.generation;
  generation.parallel_tool_calls = body.boolean("parallel_tool_calls").value_or(true);
  const auto choice = body.find("tool_choice");
  if (!choice) return;
  if (choice->is(Kind::object)) return read_chosen(*body.object("tool_choice"), request);
  const std::string word = body.string("tool_choice").value_or("auto");
  if (word == "none") {
    generation.tool_choice = ToolChoice::none;
  } else if (word == "required") {
    generation.tool_choice = ToolChoice::required;
    if (generation.tools.empty()) body.wrong_value("tool_choice", "needs tools that the model can call");
  } else if (word != "auto") {
    body.wrong_value("tool_choice", "must be none, auto, required or a tool");
  }
}

}  // namespace ds4::server::api
