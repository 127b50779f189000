// The keywords of JSON Schema, one schema after another, merged into one Branch.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "ds4/error.hpp"
#include "grammar/schema.hpp"

namespace ds4::grammar {

class BranchReader {
 public:
  explicit BranchReader(SchemaReader& schemas) : schemas_(schemas) {}

  /// Nothing if no value can obey all of them. `objects` are schemas; $ref, allOf, anyOf and oneOf have been
  /// followed already.
  Result<std::optional<Branch>> read(const std::vector<const boost::json::value*>& objects);

 private:
  using Value = boost::json::value;

  Result<void> read_keyword(std::string_view keyword, const Value& value);
  Result<void> read_type(const Value& value);
  Result<void> read_values(const Value& value);
  Result<void> read_constant(const Value& value);
  Result<void> read_pattern(const Value& value);
  Result<void> read_format(const Value& value);
  Result<void> read_multiple_of(const Value& value);
  Result<void> read_bound(std::string_view keyword, const Value& value);
  Result<void> read_count(std::string_view keyword, const Value& value);
  Result<void> read_properties(const Value& value);
  Result<void> read_required(const Value& value);
  Result<void> read_property_names(const Value& value);
  Result<void> read_items(std::string_view keyword, const Value& value);
  Result<void> read_only_if(std::string_view keyword, const Value& value, bool harmless);

  Result<void> join_properties(const std::vector<const Value*>& objects);
  Result<void> join_more_properties(const std::vector<const Value*>& objects);
  Result<void> join_items(const std::vector<const Value*>& objects);
  /// The pattern of the property names that patternProperties speaks of; null for none.
  Result<std::shared_ptr<const Dfa>> pattern_of_names(const Value& schema);
  Result<std::optional<Dfa>> names_allowed(const Value& schema);
  Result<bool> keep_values();
  void narrow_types(unsigned types);

  /// The error that a keyword's value has the wrong form.
  Error wrong(std::string_view keyword, std::string_view expected) const;
  Error unsupported(std::string_view keyword) const;

  SchemaReader& schemas_;
  const Value* place_ = nullptr;  // the schema being read
  Branch branch_;
  unsigned implied_types_ = 0;  // what the keywords speak of, if no type is named
  bool typed_ = false;
  std::vector<std::string> required_;
};

}  // namespace ds4::grammar
