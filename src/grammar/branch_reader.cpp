#include "grammar/branch_reader.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "grammar/json_values.hpp"
#include "grammar/regex.hpp"

namespace ds4::grammar {
namespace {

namespace json = boost::json;

const json::value kFalse(false);

struct TypeName {
  std::string_view name;
  unsigned types;
};
constexpr std::array<TypeName, 7> kTypeNames{{{"null", kNull},
                                              {"boolean", kBoolean},
                                              {"integer", kInteger},
                                              {"number", kInteger | kNumber},
                                              {"string", kString},
                                              {"array", kArray},
                                              {"object", kObject}}};

/// Annotations, and keywords that are followed before a schema gets here.
constexpr std::array<std::string_view, 26> kIgnored{"$comment",
                                                    "$defs",
                                                    "$id",
                                                    "$ref",
                                                    "$schema",
                                                    "allOf",
                                                    "anyOf",
                                                    "oneOf",
                                                    "contentSchema",
                                                    "default",
                                                    "contentMediaType",
                                                    "contentEncoding",
                                                    "example",
                                                    "examples",
                                                    "definitions",
                                                    "deprecated",
                                                    "description",
                                                    "discriminator",
                                                    "readOnly",
                                                    "writeOnly",
                                                    "title",
                                                    "externalDocs",
                                                    "enumNames",
                                                    "enumDescriptions",
                                                    "xml",
                                                    "markdownDescription"};

/// Formats that only say how a program stores a number.
constexpr std::array<std::string_view, 8> kNumberFormats{"int32",  "int64",  "uint",  "uint8",
                                                         "uint32", "uint64", "float", "double"};

template <class List>
bool holds(const List& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

std::optional<uint32_t> count_of(const json::value& value) {
  double number = -1;
  if (value.is_int64()) number = static_cast<double>(value.get_int64());
  if (value.is_uint64()) number = static_cast<double>(value.get_uint64());
  if (value.is_double()) number = value.get_double();
  if (!(number >= 0) || number != std::floor(number)) return std::nullopt;
  return static_cast<uint32_t>(std::min(number, 1e9));
}

}  // namespace

Error BranchReader::wrong(std::string_view keyword, std::string_view expected) const {
  return schemas_.error_at(*place_, fmt::format("the schema keyword '{}' must be {}", keyword, expected));
}

Error BranchReader::unsupported(std::string_view keyword) const {
  return schemas_.error_at(*place_, fmt::format("the schema keyword '{}' is not supported", keyword));
}

void BranchReader::narrow_types(unsigned types) {
  branch_.types &= types;
  typed_ = true;
}

Result<std::optional<Branch>> BranchReader::read(const std::vector<const Value*>& objects) {
  for (const Value* object : objects) {
    place_ = object;
    for (const auto& member : object->get_object()) {
      DS4_TRY(read_keyword(member.key(), member.value()));
    }
  }
  DS4_TRY(join_properties(objects));
  DS4_TRY(join_more_properties(objects));
  DS4_TRY(join_items(objects));
  if (!typed_ && !branch_.values && implied_types_ != 0) branch_.types = implied_types_;
  branch_.any = !typed_ && !branch_.values && implied_types_ == 0;
  if (branch_.values) {
    DS4_ASSIGN(const bool some, keep_values());
    if (!some) return std::optional<Branch>();
  }
  if (branch_.least_length > branch_.most_length) branch_.types &= ~unsigned{kString};
  if (branch_.least_items > branch_.most_items) branch_.types &= ~unsigned{kArray};
  if (branch_.types == 0) return std::optional<Branch>();
  return std::optional<Branch>(std::move(branch_));
}

Result<void> BranchReader::read_keyword(std::string_view keyword, const Value& value) {
  if (holds(kIgnored, keyword) || keyword.starts_with("x-")) return {};
  if (keyword == "type") return read_type(value);
  if (keyword == "enum") return read_values(value);
  if (keyword == "const") return read_constant(value);
  if (keyword == "nullable") {
    if (!value.is_bool()) return wrong(keyword, "true or false");
    return {};  // read together with 'type'
  }
  if (keyword == "pattern") return read_pattern(value);
  if (keyword == "format") return read_format(value);
  if (keyword == "minimum" || keyword == "maximum" || keyword == "exclusiveMinimum" ||
      keyword == "exclusiveMaximum") {
    return read_bound(keyword, value);
  }
  if (keyword == "multipleOf") return read_multiple_of(value);
  if (keyword == "minLength" || keyword == "maxLength" || keyword == "minItems" || keyword == "maxItems" ||
      keyword == "minProperties" || keyword == "maxProperties") {
    return read_count(keyword, value);
  }
  if (keyword == "properties") return read_properties(value);
  if (keyword == "required") return read_required(value);
  if (keyword == "propertyNames") return read_property_names(value);
  if (keyword == "additionalProperties" || keyword == "patternProperties") {
    implied_types_ |= kObject;
    return {};  // see join_more_properties
  }
  if (keyword == "items" || keyword == "prefixItems" || keyword == "additionalItems") {
    return read_items(keyword, value);
  }
  if (keyword == "unevaluatedProperties" || keyword == "unevaluatedItems") {
    return read_only_if(keyword, value, value.is_bool());
  }
  if (keyword == "uniqueItems") return read_only_if(keyword, value, value == Value(false));
  return unsupported(keyword);
}

Result<void> BranchReader::read_only_if(std::string_view keyword, const Value& value, bool harmless) {
  if (!harmless || value.is_null()) return unsupported(keyword);
  return {};
}

Result<void> BranchReader::read_type(const Value& value) {
  unsigned types = 0;
  const auto add = [&](const Value& name) {
    if (!name.is_string()) return false;
    for (const TypeName& known : kTypeNames) {
      if (known.name != std::string_view(name.get_string())) continue;
      types |= known.types;
      return true;
    }
    return false;
  };
  bool good = true;
  if (const json::array* names = value.if_array()) {
    for (const Value& name : *names) good = good && add(name);
  } else {
    good = add(value);
  }
  if (!good) return wrong("type", "the name of a type or an array of such names");
  const Value* nullable = place_->get_object().if_contains("nullable");
  if (nullable != nullptr && nullable->is_bool() && nullable->get_bool()) types |= kNull;
  narrow_types(types);
  return {};
}

Result<void> BranchReader::read_values(const Value& value) {
  if (!value.is_array() || value.get_array().empty()) return wrong("enum", "an array that is not empty");
  std::vector<Value> values(value.get_array().begin(), value.get_array().end());
  const Value* nullable = place_->get_object().if_contains("nullable");
  if (nullable != nullptr && nullable->is_bool() && nullable->get_bool()) values.emplace_back(nullptr);
  if (branch_.values) {
    std::erase_if(*branch_.values, [&](const Value& old) {
      return std::find(values.begin(), values.end(), old) == values.end();
    });
  } else {
    branch_.values = std::move(values);
  }
  return {};
}

Result<void> BranchReader::read_constant(const Value& value) {
  json::array list;
  list.push_back(value);
  return read_values(list);
}

Result<void> BranchReader::read_pattern(const Value& value) {
  if (!value.is_string()) return wrong("pattern", "a string");
  implied_types_ |= kString;
  auto dfa = schemas_.pattern(value.get_string());
  if (!dfa) {
    return schemas_.error_at(
        *place_, fmt::format("the schema keyword 'pattern' is not supported with {}", dfa.error().message));
  }
  branch_.string_sets.push_back(std::move(dfa).value());
  return {};
}

Result<void> BranchReader::read_format(const Value& value) {
  if (!value.is_string()) return wrong("format", "a string");
  const std::string_view name = value.get_string();
  if (holds(kNumberFormats, name)) return {};
  implied_types_ |= kString;
  auto dfa = dfa_of_format(name);
  if (!dfa) {
    return schemas_.error_at(*place_,
                             fmt::format("the schema keyword 'format' is not supported with '{}'", name));
  }
  branch_.string_sets.push_back(std::make_shared<const Dfa>(*std::move(dfa)));
  return {};
}

Result<void> BranchReader::read_multiple_of(const Value& value) {
  const auto divisor = count_of(value);
  if (!divisor || *divisor == 0 || *divisor > kMostDivisor) {
    return schemas_.error_at(
        *place_, fmt::format("the schema keyword 'multipleOf' is supported with integers from 1 to {} only",
                             kMostDivisor));
  }
  implied_types_ |= kInteger | kNumber;
  // Multiples of an integer are integers, so that numbers need not be written otherwise.
  branch_.types &= ~unsigned{kNumber};
  uint64_t joined = *divisor;
  if (const auto other = branch_.numbers.multiple_of) joined = std::lcm(joined, uint64_t{*other});
  if (joined > kMostDivisor) return unsupported("multipleOf");
  branch_.numbers.multiple_of = static_cast<uint32_t>(joined);
  return {};
}

Result<void> BranchReader::read_bound(std::string_view keyword, const Value& value) {
  const bool lower = keyword.ends_with("inimum");
  const std::string_view plain = lower ? "minimum" : "maximum";
  bool exclusive = keyword != plain;
  if (exclusive && value.is_bool()) return {};  // the form of draft 4, read with the plain keyword
  if (!value.is_number()) return wrong(keyword, "a number");
  const auto decimal = decimal_text(value);
  if (!decimal) return wrong(keyword, "a finite number");
  implied_types_ |= kInteger | kNumber;
  if (!exclusive) {
    const Value* flag = place_->get_object().if_contains(lower ? "exclusiveMinimum" : "exclusiveMaximum");
    exclusive = flag != nullptr && flag->is_bool() && flag->get_bool();
  }
  (lower ? branch_.numbers.least : branch_.numbers.most).push_back({*decimal, exclusive});
  return {};
}

Result<void> BranchReader::read_count(std::string_view keyword, const Value& value) {
  const auto count = count_of(value);
  if (!count) return wrong(keyword, "a number of things");
  const bool lower = keyword.starts_with("min");
  uint32_t* bound = nullptr;
  if (keyword.ends_with("Length")) {
    implied_types_ |= kString;
    bound = lower ? &branch_.least_length : &branch_.most_length;
  } else if (keyword.ends_with("Items")) {
    implied_types_ |= kArray;
    bound = lower ? &branch_.least_items : &branch_.most_items;
  } else {
    implied_types_ |= kObject;
    bound = lower ? &branch_.least_properties : &branch_.most_properties;
  }
  *bound = lower ? std::max(*bound, *count) : std::min(*bound, *count);
  return {};
}

Result<void> BranchReader::read_properties(const Value& value) {
  if (!value.is_object()) return wrong("properties", "an object");
  implied_types_ |= kObject;
  return {};
}

Result<void> BranchReader::read_required(const Value& value) {
  if (value.is_bool()) return {};  // of a property, in draft 3
  if (!value.is_array()) return wrong("required", "an array of names");
  for (const Value& name : value.get_array()) {
    if (!name.is_string()) return wrong("required", "an array of names");
    if (!holds(required_, std::string_view(name.get_string()))) {
      required_.emplace_back(name.get_string());
    }
  }
  implied_types_ |= kObject;
  return {};
}

Result<void> BranchReader::read_property_names(const Value& value) {
  DS4_ASSIGN(auto names, names_allowed(value));
  implied_types_ |= kObject;
  if (!names) return {};
  auto joined = branch_.more_names ? intersect(*branch_.more_names, *names) : names;
  if (!joined) return unsupported("propertyNames");
  branch_.more_names = std::move(joined);
  return {};
}

/// The strings that a schema allows; nothing for all of them.
Result<std::optional<Dfa>> BranchReader::names_allowed(const Value& schema) {
  BranchReader reader(schemas_);
  if (schema.is_bool() && schema.get_bool()) return std::optional<Dfa>();
  if (!schema.is_object()) return unsupported("propertyNames");
  for (const std::string_view keyword : {"$ref", "allOf", "anyOf", "oneOf"}) {
    if (schema.get_object().contains(keyword)) return unsupported("propertyNames");
  }
  DS4_ASSIGN(const std::optional<Branch> branch, reader.read({&schema}));
  if (!branch) return std::optional<Dfa>(Dfa{});
  auto names = strings_of(*branch);
  if (!names) return unsupported("propertyNames");
  return names;
}

Result<void> BranchReader::read_items(std::string_view keyword, const Value& value) {
  implied_types_ |= kArray;
  if (keyword == "prefixItems" && !value.is_array()) return wrong(keyword, "an array of schemas");
  return {};
}

Result<std::shared_ptr<const Dfa>> BranchReader::pattern_of_names(const Value& schema) {
  const Value* patterns = schema.get_object().if_contains("patternProperties");
  if (patterns == nullptr) return std::shared_ptr<const Dfa>();
  if (!patterns->is_object()) return wrong("patternProperties", "an object");
  if (patterns->get_object().empty()) return std::shared_ptr<const Dfa>();
  if (patterns->get_object().size() > 1) return unsupported("patternProperties");
  auto dfa = schemas_.pattern(patterns->get_object().begin()->key());
  if (!dfa) return unsupported("patternProperties");
  return dfa;
}

Result<void> BranchReader::join_properties(const std::vector<const Value*>& objects) {
  std::vector<std::string_view> names;
  std::set<std::string_view> known;
  const auto add = [&](std::string_view name) {
    if (known.insert(name).second) names.push_back(name);
  };
  for (const Value* object : objects) {
    const Value* properties = object->get_object().if_contains("properties");
    if (properties == nullptr) continue;
    for (const auto& member : properties->get_object()) add(member.key());
  }
  const std::set<std::string_view> required(required_.begin(), required_.end());
  for (const std::string& name : required_) add(name);
  for (const std::string_view name : names) {
    Property property{.name = std::string(name), .required = required.contains(name)};
    for (const Value* object : objects) {
      place_ = object;
      const Value* properties = object->get_object().if_contains("properties");
      const Value* own = properties == nullptr ? nullptr : properties->get_object().if_contains(name);
      if (own != nullptr) property.schemas.push_back(own);
      bool matched = own != nullptr;
      DS4_ASSIGN(const auto pattern, pattern_of_names(*object));
      if (pattern != nullptr && pattern->matches(name)) {
        property.schemas.push_back(
            &object->get_object().at("patternProperties").get_object().begin()->value());
        matched = true;
      }
      const Value* others = object->get_object().if_contains("additionalProperties");
      if (!matched && others != nullptr) property.schemas.push_back(others);
    }
    if (branch_.more_names && !branch_.more_names->matches(name)) property.schemas.push_back(&kFalse);
    branch_.properties.push_back(std::move(property));
  }
  return {};
}

Result<void> BranchReader::join_more_properties(const std::vector<const Value*>& objects) {
  bool said = false;
  bool named = false;
  bool closed = false;
  for (const Value* object : objects) {
    place_ = object;
    const json::object& schema = object->get_object();
    const Value* others = schema.if_contains("additionalProperties");
    const Value* patterns = schema.if_contains("patternProperties");
    named = named || schema.contains("properties");
    closed = closed || schema.contains("unevaluatedProperties");
    DS4_ASSIGN(const auto names, pattern_of_names(*object));
    if (names != nullptr) {
      if (others != nullptr && *others != Value(false) && *others != Value(true)) {
        return unsupported("patternProperties");
      }
      auto joined = branch_.more_names ? intersect(*branch_.more_names, *names) : *names;
      if (!joined) return unsupported("patternProperties");
      branch_.more_names = std::move(joined);
      branch_.more_schemas.push_back(&patterns->get_object().begin()->value());
      said = true;
    } else if (others != nullptr) {
      if (!others->is_bool() && !others->is_object()) return wrong("additionalProperties", "a schema");
      said = true;
      closed = closed || *others == Value(false);
      if (others->is_object()) branch_.more_schemas.push_back(others);
    }
  }
  // A list of properties is taken as complete unless the schema speaks of others.
  branch_.more_properties = !closed && (said || !named);
  return {};
}

Result<void> BranchReader::join_items(const std::vector<const Value*>& objects) {
  struct Items {
    const json::array* first = nullptr;
    const Value* rest = nullptr;
  };
  std::vector<Items> all;
  size_t most_first = 0;
  for (const Value* object : objects) {
    place_ = object;
    const json::object& schema = object->get_object();
    Items items;
    const Value* first = schema.if_contains("prefixItems");
    items.rest = schema.if_contains("items");
    if (items.rest != nullptr && items.rest->is_array()) {  // the form of older drafts
      first = items.rest;
      items.rest = schema.if_contains("additionalItems");
    }
    if (first != nullptr) items.first = &first->get_array();
    if (items.rest != nullptr && !items.rest->is_bool() && !items.rest->is_object()) {
      return wrong("items", "a schema");
    }
    if (items.first != nullptr) most_first = std::max(most_first, items.first->size());
    all.push_back(items);
  }
  if (most_first > 1000) return unsupported("prefixItems");
  for (size_t i = 0; i < most_first; ++i) {
    Conjunction& schemas = branch_.first_items.emplace_back();
    for (const Items& items : all) {
      if (items.first != nullptr && i < items.first->size()) {
        schemas.push_back(&(*items.first)[i]);
      } else if (items.rest != nullptr) {
        schemas.push_back(items.rest);
      }
    }
  }
  for (const Items& items : all) {
    if (items.rest == nullptr) continue;
    branch_.item_schemas.push_back(items.rest);
    branch_.more_items = branch_.more_items && *items.rest != Value(false);
  }
  return {};
}

/// Of the values listed, those that obey the other keywords, as far as these speak of types, strings and
/// numbers. False if none does.
Result<bool> BranchReader::keep_values() {
  if (!typed_) branch_.types = kAllTypes;
  std::optional<Dfa> numbers;
  if (!branch_.numbers.free()) {
    numbers = dfa_of_numbers(branch_.numbers);
    if (!numbers) return schemas_.error_at(*place_, "the bounds of a number are too complex");
  }
  std::erase_if(*branch_.values, [&](const Value& value) {
    if ((type_of(value) & branch_.types) == 0) return true;
    if (value.is_number()) return numbers && !numbers->matches(canonical_json(value));
    if (!value.is_string()) return false;
    const std::string_view text = value.get_string();
    const size_t length = character_count(text);
    if (length < branch_.least_length || length > branch_.most_length) return true;
    return std::any_of(branch_.string_sets.begin(), branch_.string_sets.end(),
                       [&](const std::shared_ptr<const Dfa>& set) { return !set->matches(text); });
  });
  return !branch_.values->empty();
}

}  // namespace ds4::grammar
