// JSON Schema to rules of an automaton.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "grammar/automaton.hpp"
#include "grammar/json_rules.hpp"
#include "grammar/schema.hpp"

namespace ds4::grammar {

/// The ways to write a value, sorted by what begins them.
struct ValueForms {
  bool any = false;                // every value
  std::vector<std::string> words;  // JSON texts of constants that are no strings
  std::vector<NumberRules> numbers;
  std::vector<Branch> objects, arrays;
  bool free_strings = false;
  std::vector<std::pair<uint32_t, uint32_t>> string_lengths;  // strings of which only the length is asked
  std::vector<Dfa> strings;

  bool has_strings() const { return any || free_strings || !string_lengths.empty() || !strings.empty(); }
  bool has_others() const {
    return any || !words.empty() || !numbers.empty() || !objects.empty() || !arrays.empty();
  }
};

/// Compiles what one document's schemas describe. Rules are made once per set of schemas, so references back
/// to a schema make recursive rules.
class SchemaCompiler {
 public:
  /// `strict`: optional properties are written too.
  SchemaCompiler(SchemaReader& reader, JsonRules& rules, bool strict)
      : reader_(reader), rules_(rules), builder_(rules.builder()), strict_(strict) {}

  /// The first state of a rule; its states are made by run().
  uint32_t value(const Conjunction& schemas);
  Result<void> run();

  Result<ValueForms> forms(const Conjunction& schemas);
  /// States behind `start` that write a value of these forms as JSON; the rule ends there.
  Result<void> emit(const ValueForms& forms, uint32_t start, bool with_strings);

  /// Names that a free property may have: all but those listed in the branch.
  Result<Dfa> more_names(const Branch& object) const;

 private:
  Result<void> emit_strings(const ValueForms& forms, uint32_t start);
  Result<void> emit_numbers(const ValueForms& forms, uint32_t start);
  Result<void> emit_object(const Branch& object, uint32_t start);
  Result<void> emit_array(const Branch& array, uint32_t start);
  Result<void> add_branch(Branch branch, ValueForms& forms) const;

  struct MemberStates {     // of an object being written
    uint32_t none_yet = 0;  // behind the opening brace and its white space
    uint32_t some = 0;      // behind a member
  };
  void emit_property(const Property& property, const MemberStates& from, uint32_t behind);
  Result<void> emit_more_properties(const Branch& object, const MemberStates& from, uint32_t least);

  SchemaReader& reader_;
  JsonRules& rules_;
  AutomatonBuilder& builder_;
  bool strict_;
  std::map<Conjunction, uint32_t> values_;
  std::vector<Conjunction> unfinished_;
};

}  // namespace ds4::grammar
