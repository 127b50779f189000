#include "grammar/json_rules.hpp"

#include "grammar/lowering.hpp"
#include "grammar/regex.hpp"
#include "text/dsml.hpp"
#include "text/string_edit.hpp"

namespace ds4::grammar {

JsonRules::JsonRules(AutomatonBuilder& builder, bool inside_markup)
    : builder_(builder), inside_markup_(inside_markup), strings_(any_string()), end_(builder.add_state()) {
  builder_.set_final(end_);
  if (inside_markup) {
    const auto closing_tag = dfa_of_pattern(kClosingTagPattern);
    const auto others = closing_tag ? complement(*closing_tag) : std::nullopt;
    strings_ = others.value_or(Dfa{});
  }
}

uint32_t JsonRules::white_space() {
  if (white_space_) return *white_space_;
  white_space_ = builder_.add_state();
  const uint32_t indentation = builder_.add_state();
  builder_.set_final(*white_space_);
  builder_.set_final(indentation);
  builder_.add_byte(*white_space_, ' ', end_);
  builder_.add_byte(*white_space_, '\n', indentation);
  builder_.set_counter_range(indentation, 0, kMostIndentation);
  for (const uint8_t byte : {' ', '\t'}) {
    builder_.add_edge(indentation, {.target = indentation,
                                    .limit = kMostIndentation,
                                    .first = byte,
                                    .last = byte,
                                    .guard = Guard::below});
  }
  return *white_space_;
}

uint32_t JsonRules::free_value(bool with_strings) {
  std::optional<uint32_t>& rule = with_strings ? value_ : value_without_strings_;
  if (rule) return *rule;
  const uint32_t start = builder_.add_state();
  rule = start;
  for (const std::string_view word : {"null", "true", "false"}) builder_.add_text_to(start, word, end_);
  builder_.add_jump(start, {.target = number(false)});
  if (with_strings) builder_.add_jump(start, {.target = free_string()});
  builder_.add_jump(start, {.target = free_object(), .only_shallow = true});
  builder_.add_jump(start, {.target = free_array(), .only_shallow = true});
  return start;
}

uint32_t JsonRules::container(char open, char close, uint32_t item, uint32_t item_end) {
  const uint32_t start = builder_.add_state();
  const uint32_t opened = builder_.add_state();
  const uint32_t first = builder_.add_state();
  const uint32_t comma = builder_.add_state();
  const uint32_t closing = builder_.add_state();
  builder_.add_byte(start, open, opened);
  builder_.call(opened, white_space(), first);
  builder_.add_byte(first, close, end_);
  builder_.add_jump(first, {.target = item});
  builder_.add_byte(item_end, ',', comma);
  builder_.call(comma, white_space(), item);
  builder_.call(item_end, white_space(), closing);
  builder_.add_byte(closing, close, end_);
  return start;
}

uint32_t JsonRules::free_object() {
  if (object_) return *object_;
  const uint32_t key = builder_.add_state();
  const uint32_t colon = builder_.add_state();
  const uint32_t space = builder_.add_state();
  const uint32_t value = builder_.add_state();
  const uint32_t behind = builder_.add_state();
  object_ = container('{', '}', key, behind);
  builder_.call(key, free_string(), colon);
  builder_.add_byte(colon, ':', space);
  builder_.call(space, white_space(), value);
  builder_.add_jump(value, {.target = free_value(), .return_to = behind, .deeper = true});
  return *object_;
}

uint32_t JsonRules::free_array() {
  if (array_) return *array_;
  const uint32_t item = builder_.add_state();
  const uint32_t behind = builder_.add_state();
  array_ = container('[', ']', item, behind);
  builder_.add_jump(item, {.target = free_value(), .return_to = behind, .deeper = true});
  return *array_;
}

uint32_t JsonRules::free_string(uint32_t least, uint32_t most) {
  const auto [place, is_new] = free_strings_.try_emplace({least, most}, 0);
  if (!is_new) return place->second;
  const uint32_t start = builder_.add_state();
  place->second = start;
  const StringForm form{
      .escapes = StringForm::Escapes::any, .terminator = "\"", .least = least, .most = most};
  builder_.add_byte(start, '"', lower(builder_, strings_, form, end_));
  return start;
}

uint32_t JsonRules::number(bool integer) {
  std::optional<uint32_t>& rule = integer ? integer_ : number_;
  if (!rule) {
    const auto dfa = dfa_of_numbers({.integer = integer});
    rule = dfa ? lower(builder_, *dfa, {}, end_) : builder_.add_state();
  }
  return *rule;
}

uint32_t JsonRules::string(const Dfa& dfa, uint32_t end) {
  const uint32_t start = builder_.add_state();
  const auto writable = inside_markup_ ? intersect(dfa, strings_) : dfa;
  if (!writable || writable->empty()) return start;
  const StringForm form{.escapes = StringForm::Escapes::needed, .terminator = "\""};
  builder_.add_byte(start, '"', lower(builder_, *writable, form, end));
  return start;
}

void JsonRules::literal(uint32_t from, std::string_view json, uint32_t end) {
  if (!inside_markup_) {
    builder_.add_text_to(from, json, end);
    return;
  }
  builder_.add_text_to(from, text::replace_all(json, text::kParameterEnd, "\\u003c/｜DSML｜parameter>"), end);
}

}  // namespace ds4::grammar
