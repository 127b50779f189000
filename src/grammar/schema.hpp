// JSON Schema as it is read: keywords checked, references followed, conjunctions merged.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "ds4/error.hpp"
#include "grammar/automaton.hpp"
#include "grammar/dfa.hpp"
#include "grammar/numbers.hpp"

namespace ds4::grammar {

/// Schemas that a value must obey all at once. Empty: any value.
using Conjunction = std::vector<const boost::json::value*>;

enum TypeBit : uint8_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kNumber = 8,  // those that are no integers; "number" is both
  kString = 16,
  kArray = 32,
  kObject = 64,
};
inline constexpr unsigned kAllTypes = kNull | kBoolean | kInteger | kNumber | kString | kArray | kObject;

struct Property {
  std::string name;
  Conjunction schemas;
  bool required = false;
};

/// One way to obey a schema: all keywords of schemas without alternatives, put together.
struct Branch {
  unsigned types = kAllTypes;
  bool any = true;                                        // no keyword restricts the value
  std::optional<std::vector<boost::json::value>> values;  // enum and const

  uint32_t least_length = 0, most_length = kUnlimited;
  std::vector<std::shared_ptr<const Dfa>> string_sets;  // patterns and formats: all of them must match
  NumberRules numbers;

  std::vector<Property> properties;
  bool more_properties = false;   // besides those named
  Conjunction more_schemas;       // of their values
  std::optional<Dfa> more_names;  // all, if nothing
  uint32_t least_properties = 0, most_properties = kUnlimited;

  std::vector<Conjunction> first_items;
  bool more_items = true;
  Conjunction item_schemas;
  uint32_t least_items = 0, most_items = kUnlimited;
};

/// Reads one schema document. Error messages begin with `field`.
class SchemaReader {
 public:
  SchemaReader(const boost::json::value& root, std::string field);

  /// All ways to obey these schemas; none if they contradict each other.
  Result<std::vector<Branch>> read(const Conjunction& schemas);

  const boost::json::value& root() const { return root_; }
  /// As dfa_of_pattern, but every pattern is worked out once, and all of them together are bounded.
  Result<std::shared_ptr<const Dfa>> pattern(std::string_view text);
  /// "FIELD: PROBLEM at POINTER".
  Error error_at(const boost::json::value& place, std::string_view problem) const;
  Error error(std::string_view problem) const;

 private:
  using Objects = std::vector<const boost::json::value*>;  // schemas with their alternatives chosen

  Result<void> expand(std::vector<const boost::json::value*> pending, Objects chosen, int depth,
                      std::vector<Objects>& results);
  Result<const boost::json::value*> resolve(const boost::json::value& schema, std::string_view reference);
  Result<void> check_progress(const boost::json::value& schema);
  Result<std::vector<const boost::json::value*>> unconditional(const boost::json::value& schema);

  const boost::json::value& root_;
  std::string field_;
  std::map<std::string, std::shared_ptr<const Dfa>, std::less<>> patterns_;
  size_t pattern_states_ = 0;
  std::set<const boost::json::value*> progressing_;  // no reference leads back to these at once
};

}  // namespace ds4::grammar
