#include "grammar/schema_compiler.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "grammar/json_values.hpp"
#include "grammar/lowering.hpp"
#include "text/json_text.hpp"

namespace ds4::grammar {

uint32_t SchemaCompiler::value(const Conjunction& schemas) {
  const auto [place, is_new] = values_.try_emplace(schemas, 0);
  if (is_new) {
    place->second = builder_.add_state();
    unfinished_.push_back(schemas);
  }
  return place->second;
}

Result<void> SchemaCompiler::run() {
  while (!unfinished_.empty()) {
    const Conjunction schemas = std::move(unfinished_.back());
    unfinished_.pop_back();
    DS4_ASSIGN(const ValueForms found, forms(schemas));
    DS4_TRY(emit(found, values_.at(schemas), true));
    if (builder_.full()) return reader_.error("the schema is too large");
  }
  return {};
}

Result<ValueForms> SchemaCompiler::forms(const Conjunction& schemas) {
  ValueForms result;
  DS4_ASSIGN(std::vector<Branch> branches, reader_.read(schemas));
  for (Branch& branch : branches) DS4_TRY(add_branch(std::move(branch), result));
  return result;
}

Result<void> SchemaCompiler::add_branch(Branch branch, ValueForms& forms) const {
  if (branch.any) {
    forms.any = true;
    return {};
  }
  if (branch.values) {
    for (const boost::json::value& constant : *branch.values) {
      if (!constant.is_string()) forms.words.push_back(canonical_json(constant));
    }
  } else {
    if (branch.types & kNull) forms.words.emplace_back("null");
    if (branch.types & kBoolean) forms.words.insert(forms.words.end(), {"false", "true"});
    if (branch.types & (kNumber | kInteger)) {
      branch.numbers.integer = (branch.types & kNumber) == 0;
      forms.numbers.push_back(branch.numbers);
    }
  }
  if (branch.types & kString) {
    const bool listed = branch.values.has_value();
    if (!listed && branch.string_sets.empty()) {
      if (branch.least_length == 0 && branch.most_length == kUnlimited) {
        forms.free_strings = true;
      } else {
        forms.string_lengths.emplace_back(branch.least_length, branch.most_length);
      }
    } else {
      auto strings = strings_of(branch);
      if (!strings) return reader_.error("the strings of the schema are too complex");
      if (!strings->empty()) forms.strings.push_back(*std::move(strings));
    }
  }
  if (branch.values) return {};
  if (branch.types & kObject) forms.objects.push_back(branch);
  if (branch.types & kArray) forms.arrays.push_back(std::move(branch));
  return {};
}

Result<void> SchemaCompiler::emit(const ValueForms& forms, uint32_t start, bool with_strings) {
  if (forms.any) {
    builder_.add_jump(start, {.target = rules_.free_value(with_strings)});
    return {};
  }
  std::vector<std::string> words = forms.words;
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  for (const std::string& word : words) rules_.literal(start, word, rules_.end());
  DS4_TRY(emit_numbers(forms, start));
  if (with_strings) DS4_TRY(emit_strings(forms, start));
  for (const Branch& object : forms.objects) DS4_TRY(emit_object(object, start));
  for (const Branch& array : forms.arrays) DS4_TRY(emit_array(array, start));
  return {};
}

Result<void> SchemaCompiler::emit_numbers(const ValueForms& forms, uint32_t start) {
  std::vector<Dfa> bounded;
  bool integers = false;
  for (const NumberRules& rules : forms.numbers) {
    if (rules.free() && !rules.integer) {
      builder_.add_jump(start, {.target = rules_.number(false)});
      return {};
    }
    integers = integers || rules.free();
    if (rules.free()) continue;
    auto dfa = dfa_of_numbers(rules);
    if (!dfa) return reader_.error("the bounds of a number are too complex");
    if (!dfa->empty()) bounded.push_back(*std::move(dfa));
  }
  if (integers) builder_.add_jump(start, {.target = rules_.number(true)});
  if (bounded.empty()) return {};
  const auto all = unite(bounded);
  if (!all) return reader_.error("the bounds of a number are too complex");
  builder_.add_jump(start, {.target = lower(builder_, *all, {}, rules_.end())});
  return {};
}

Result<void> SchemaCompiler::emit_strings(const ValueForms& forms, uint32_t start) {
  if (forms.free_strings) {
    builder_.add_jump(start, {.target = rules_.free_string()});
    return {};
  }
  for (const auto& [least, most] : forms.string_lengths) {
    builder_.add_jump(start, {.target = rules_.free_string(least, most)});
  }
  if (forms.strings.empty()) return {};
  const auto all = unite(forms.strings);
  if (!all) return reader_.error("the strings of the schema are too complex");
  builder_.add_jump(start, {.target = rules_.string(*all, rules_.end())});
  return {};
}

Result<Dfa> SchemaCompiler::more_names(const Branch& object) const {
  std::vector<std::string> listed;
  listed.reserve(object.properties.size());
  for (const Property& property : object.properties) listed.push_back(property.name);
  std::optional<Dfa> names = object.more_names ? object.more_names : any_string();
  if (!listed.empty()) {
    const auto own = one_of(listed);
    const auto others = own ? complement(*own) : std::nullopt;
    names = others ? intersect(*names, *others) : std::nullopt;
  }
  if (!names) return reader_.error("the names of the schema's properties are too complex");
  return *std::move(names);
}

/// A member with this name, from both states, to `behind`.
void SchemaCompiler::emit_property(const Property& property, const MemberStates& from, uint32_t behind) {
  const uint32_t name = builder_.add_state();
  const uint32_t comma = builder_.add_state();
  builder_.add_jump(from.none_yet, {.target = name});
  builder_.add_byte(from.some, ',', comma);
  builder_.call(comma, rules_.white_space(), name);
  const uint32_t colon = builder_.add_state();
  rules_.literal(name, text::json_quote(property.name).append(":"), colon);
  const uint32_t before_value = builder_.add_state();
  builder_.call(colon, rules_.white_space(), before_value);
  builder_.add_jump(before_value, {.target = value(property.schemas), .return_to = behind, .deeper = true});
}

/// Members of free names, which come behind the named ones and are counted; `least` of them at least.
Result<void> SchemaCompiler::emit_more_properties(const Branch& object, const MemberStates& from,
                                                  uint32_t least) {
  const auto listed = static_cast<uint32_t>(object.properties.size());
  const uint32_t most = object.most_properties == kUnlimited ? kUnlimited
                        : object.most_properties > listed    ? object.most_properties - listed
                                                             : 0;
  DS4_ASSIGN(const Dfa names, more_names(object));
  if (most == 0 || names.empty()) return {};
  const bool counts = least > 0 || most != kUnlimited;
  const uint32_t comma = builder_.add_state();
  const uint32_t name = builder_.add_state();
  const uint32_t colon = builder_.add_state();
  const uint32_t space = builder_.add_state();
  const uint32_t before_value = builder_.add_state();
  const Guard guard = counts ? Guard::below : Guard::none;
  builder_.add_jump(from.none_yet, {.target = name, .limit = most, .guard = guard});
  builder_.add_edge(from.some, {.target = comma, .limit = most, .first = ',', .last = ',', .guard = guard});
  for (const uint32_t state : {from.none_yet, from.some}) {
    if (counts) builder_.set_counter_range(state, least, most);
  }
  builder_.call(comma, rules_.white_space(), name);
  const bool any_name = object.properties.empty() && !object.more_names;
  builder_.call(name, any_name ? rules_.free_string() : rules_.string(names, rules_.end()), colon);
  builder_.add_byte(colon, ':', space);
  builder_.call(space, rules_.white_space(), before_value);
  builder_.add_jump(before_value,
                    {.target = value(object.more_schemas), .return_to = from.some, .deeper = true});
  return {};
}

Result<void> SchemaCompiler::emit_object(const Branch& object, uint32_t start) {
  const bool free = object.properties.empty() && object.more_properties && object.more_schemas.empty() &&
                    !object.more_names && object.least_properties == 0 &&
                    object.most_properties == kUnlimited;
  if (free) {
    builder_.add_jump(start, {.target = rules_.free_object()});
    return {};
  }
  size_t required = 0;
  for (const Property& property : object.properties) required += property.required || strict_ ? 1 : 0;
  uint32_t least_more = 0;
  bool may_be_empty = true;
  if (object.least_properties > required) {
    if (object.more_properties) {
      least_more = object.least_properties - static_cast<uint32_t>(required);
    } else if (object.least_properties == 1) {
      may_be_empty = false;
    } else {
      return reader_.error("the schema keyword 'minProperties' is not supported with optional properties");
    }
  }
  if (object.most_properties < object.properties.size() && object.most_properties < required) return {};
  if (object.most_properties < object.properties.size()) {
    return reader_.error("the schema keyword 'maxProperties' is not supported with optional properties");
  }
  const uint32_t opened = builder_.add_state();
  builder_.add_byte(start, '{', opened);
  MemberStates at{.none_yet = builder_.add_state(), .some = builder_.add_state()};
  builder_.call(opened, rules_.white_space(), at.none_yet);
  for (const Property& property : object.properties) {
    const MemberStates next{.none_yet = builder_.add_state(), .some = builder_.add_state()};
    emit_property(property, at, next.some);
    if (!property.required && !strict_) {
      builder_.add_jump(at.none_yet, {.target = next.none_yet});
      builder_.add_jump(at.some, {.target = next.some});
    }
    at = next;
    if (builder_.full()) return reader_.error("the schema is too large");
  }
  if (object.more_properties) DS4_TRY(emit_more_properties(object, at, least_more));
  const uint32_t closing = builder_.add_state();
  const Guard guard = least_more > 0 ? Guard::at_least : Guard::none;
  builder_.add_jump(
      at.some, {.target = rules_.white_space(), .return_to = closing, .limit = least_more, .guard = guard});
  builder_.add_byte(closing, '}', rules_.end());
  if (may_be_empty && least_more == 0) builder_.add_byte(at.none_yet, '}', rules_.end());
  return {};
}

Result<void> SchemaCompiler::emit_array(const Branch& array, uint32_t start) {
  const bool free = array.first_items.empty() && array.more_items && array.item_schemas.empty() &&
                    array.least_items == 0 && array.most_items == kUnlimited;
  if (free) {
    builder_.add_jump(start, {.target = rules_.free_array()});
    return {};
  }
  const auto first_count = static_cast<uint32_t>(array.first_items.size());
  const uint32_t most = array.more_items ? array.most_items : std::min(array.most_items, first_count);
  if (array.least_items > most) return {};
  const uint32_t opened = builder_.add_state();
  uint32_t before_item = builder_.add_state();
  const uint32_t closing = builder_.add_state();
  builder_.add_byte(start, '[', opened);
  builder_.call(opened, rules_.white_space(), before_item);
  builder_.add_byte(closing, ']', rules_.end());
  if (array.least_items == 0) builder_.add_byte(before_item, ']', rules_.end());
  for (uint32_t i = 0; i < std::min(first_count, most); ++i) {
    const uint32_t behind = builder_.add_state();
    builder_.add_jump(before_item,
                      {.target = value(array.first_items[i]), .return_to = behind, .deeper = true});
    if (i + 1 >= array.least_items) builder_.call(behind, rules_.white_space(), closing);
    if (i + 1 == most) return {};
    const uint32_t comma = builder_.add_state();
    before_item = builder_.add_state();
    builder_.add_byte(behind, ',', comma);
    builder_.call(comma, rules_.white_space(), before_item);
  }
  if (most == 0) return {};
  // Of the rest, the commas are counted.
  const uint32_t least_commas = array.least_items > first_count + 1 ? array.least_items - first_count - 1 : 0;
  const uint32_t most_commas = most == kUnlimited ? kUnlimited : most - first_count - 1;
  const uint32_t behind = builder_.add_state();
  const uint32_t comma = builder_.add_state();
  const bool counts = least_commas > 0 || most_commas != kUnlimited;
  if (counts) builder_.set_counter_range(behind, least_commas, most_commas);
  const uint32_t item = builder_.add_state();
  builder_.add_jump(before_item, {.target = item});
  builder_.add_jump(item, {.target = value(array.item_schemas), .return_to = behind, .deeper = true});
  builder_.add_edge(behind, {.target = comma,
                             .limit = most_commas,
                             .first = ',',
                             .last = ',',
                             .guard = counts ? Guard::below : Guard::none});
  builder_.call(comma, rules_.white_space(), item);
  builder_.add_jump(behind, {.target = rules_.white_space(),
                             .return_to = closing,
                             .limit = least_commas,
                             .guard = counts ? Guard::at_least : Guard::none});
  return {};
}

}  // namespace ds4::grammar
