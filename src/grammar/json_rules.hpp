// The rules of JSON that every grammar shares: white space, free values, strings, numbers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ds4/error.hpp"
#include "grammar/automaton.hpp"
#include "grammar/dfa.hpp"
#include "grammar/numbers.hpp"

namespace ds4::grammar {

/// White space is one space, or a line break and at most this many spaces and tabs.
inline constexpr uint32_t kMostIndentation = 40;

/// As a pattern: what begins the closing tag of a parameter, and its misspellings that are read as that tag
/// too (docs/chat.md §6.2). No value inside markup may hold it.
inline constexpr std::string_view kClosingTagPattern = "</{1,2}[｜|]{0,2}DSML[｜|]{0,2} {0,2}parameter";

/// Rules are made when they are first asked for. `inside_markup`: the JSON stands in a parameter of a tool
/// call, so that the closing tag may not occur in it (docs/chat.md §5).
class JsonRules {
 public:
  JsonRules(AutomatonBuilder& builder, bool inside_markup);

  AutomatonBuilder& builder() { return builder_; }
  bool inside_markup() const { return inside_markup_; }

  /// Each returns the first state of a rule.
  uint32_t white_space();
  uint32_t free_value(bool with_strings = true);
  uint32_t free_object();
  uint32_t free_array();
  uint32_t free_string(uint32_t least = 0, uint32_t most = kUnlimited);
  uint32_t number(bool integer);

  /// The strings of the Dfa as JSON strings. The set must not be empty.
  uint32_t string(const Dfa& dfa, uint32_t end);
  /// States behind `from` that read this JSON text and lead to `end`.
  void literal(uint32_t from, std::string_view json, uint32_t end);

  /// A state in which every rule may end.
  uint32_t end() const { return end_; }

 private:
  /// Members between brackets, separated by commas: the part of a free container that objects share with
  /// arrays. `item` is the first state of what stands between two commas.
  uint32_t container(char open, char close, uint32_t item, uint32_t item_end);

  AutomatonBuilder& builder_;
  bool inside_markup_;
  Dfa strings_;  // all that a JSON string may hold
  uint32_t end_;
  std::optional<uint32_t> white_space_, object_, array_, number_, integer_;
  std::optional<uint32_t> value_, value_without_strings_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> free_strings_;
};

}  // namespace ds4::grammar
