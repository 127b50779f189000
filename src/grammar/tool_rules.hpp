// The markup of tool calls (docs/chat.md §5) as rules of an automaton.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "ds4/error.hpp"
#include "grammar/automaton.hpp"
#include "grammar/grammar.hpp"
#include "grammar/json_rules.hpp"
#include "grammar/schema_compiler.hpp"

namespace ds4::grammar {

/// A block of calls of these tools from its two newlines to its end.
class ToolRules {
 public:
  explicit ToolRules(AutomatonBuilder& builder);

  Result<uint32_t> block(std::span<const ToolSignature> tools, bool parallel);

 private:
  struct Tool;  // the one whose rules are being made

  Result<void> emit_tool(const ToolSignature& tool, uint32_t start, uint32_t end);
  /// Parameters are written in the order of the schema, each once.
  Result<void> emit_arguments(const Branch& object, Tool& tool, uint32_t start, uint32_t end);
  Result<void> emit_more(const Branch& object, Tool& tool, uint32_t from);
  /// `named`: behind the name and its closing quote. Ends behind the line.
  Result<void> emit_value(const Conjunction& schemas, Tool& tool, uint32_t named, uint32_t end);
  Result<void> emit_raw(const ValueForms& forms, Tool& tool, uint32_t opened, uint32_t end);
  uint32_t free_raw(uint32_t least, uint32_t most);
  void call_line(uint32_t from, uint32_t rule, uint32_t end);

  AutomatonBuilder& builder_;
  JsonRules json_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> free_raws_;
};

}  // namespace ds4::grammar
