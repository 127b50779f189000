#include "grammar/grammar.hpp"

#include <string>
#include <utility>

#include "base/error.hpp"
#include "grammar/automaton.hpp"
#include "grammar/json_rules.hpp"
#include "grammar/schema.hpp"
#include "grammar/schema_compiler.hpp"
#include "grammar/schema_text.hpp"
#include "grammar/tool_rules.hpp"

namespace ds4::grammar {
namespace {

constexpr size_t kMostStates = 300'000;
constexpr size_t kMostNesting = 100;
constexpr size_t kMostTools = 1024;

Result<std::shared_ptr<const Grammar>> finished(const AutomatonBuilder& builder, uint32_t start,
                                                bool uses_dsml, std::string_view field) {
  if (builder.full()) return fail(ErrorCode::unsupported, "{}: the schema is too large", field);
  auto automaton = builder.finish(start);
  if (automaton == nullptr)
    return fail(ErrorCode::invalid_argument, "{}: no value can obey the schema", field);
  automaton->uses_dsml = uses_dsml;
  return std::make_shared<const Grammar>(std::move(automaton));
}

}  // namespace

Result<boost::json::value> parse_schema(std::string_view text, std::string_view field) {
  if (text.size() > kMostSchemaBytes) {
    return fail(ErrorCode::unsupported, "{}: the schema has more than {} bytes", field, kMostSchemaBytes);
  }
  boost::json::parse_options options;
  options.max_depth = kMostNesting;
  boost::system::error_code code;
  boost::json::value schema = boost::json::parse(text, code, {}, options);
  if (code) {
    return fail(ErrorCode::invalid_argument, "{}: the schema is not valid JSON ({})", field, code.message());
  }
  return schema;
}

Grammar::Grammar(std::unique_ptr<const Automaton> automaton) : automaton_(std::move(automaton)) {}
Grammar::~Grammar() = default;

Result<std::shared_ptr<const Grammar>> Grammar::json_object() {
  AutomatonBuilder builder(kMostStates);
  JsonRules rules(builder, false);
  const uint32_t start = rules.free_object();
  return finished(builder, start, false, "response_format");
}

Result<std::shared_ptr<const Grammar>> Grammar::json_schema(std::string_view schema, bool strict,
                                                            std::string_view field) {
  DS4_ASSIGN(const boost::json::value root, parse_schema(schema, field));
  AutomatonBuilder builder(kMostStates);
  JsonRules rules(builder, false);
  SchemaReader reader(root, std::string(field));
  SchemaCompiler compiler(reader, rules, strict);
  const uint32_t start = compiler.value({&root});
  DS4_TRY(compiler.run());
  return finished(builder, start, false, field);
}

Result<std::shared_ptr<const Grammar>> Grammar::tool_calls(std::span<const ToolSignature> tools,
                                                           bool parallel) {
  if (tools.empty()) return fail(ErrorCode::invalid_argument, "tools: there is none to call");
  if (tools.size() > kMostTools) {
    return fail(ErrorCode::unsupported, "tools: there are more than {}", kMostTools);
  }
  AutomatonBuilder builder(kMostStates);
  ToolRules rules(builder);
  DS4_ASSIGN(const uint32_t start, rules.block(tools, parallel));
  return finished(builder, start, true, "tools");
}

}  // namespace ds4::grammar
