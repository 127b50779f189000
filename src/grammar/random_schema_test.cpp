// What the masks of random schemas allow: valid values only, never a dead end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "ds4/chat.hpp"
#include "grammar/test_grammar.hpp"

namespace ds4::grammar {
namespace {

namespace json = boost::json;

/// A random schema of the supported keywords. Every schema can be obeyed.
class SchemaGenerator {
 public:
  explicit SchemaGenerator(uint64_t seed) : random_(seed) {}

  json::object document() {
    json::object root = container(3);
    root["$defs"] = {{"leaf", scalar()},
                     {"list",
                      {{"type", "object"},
                       {"properties", {{"head", scalar()}, {"tail", {{"$ref", "#/$defs/list"}}}}},
                       {"required", {"head"}}}}};
    return root;
  }

  /// Of the parameters of a tool.
  json::object object(int depth) {
    json::object properties;
    json::array required;
    const int count = below(5);
    for (int i = 0; i < count; ++i) {
      const std::string name = std::vector<std::string>{"a", "ab", "b\"", "naïve", "long name"}[i];
      properties[name] = schema(depth - 1);
      if (below(2) == 0) required.emplace_back(name);
    }
    json::object result{{"type", "object"}, {"properties", properties}, {"required", required}};
    if (below(3) == 0) result["additionalProperties"] = below(2) == 0 ? json::value(false) : schema(0);
    return result;
  }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<uint64_t>(limit)); }

  json::value schema(int depth) {
    if (depth <= 0 || below(3) == 0) return below(5) == 0 ? json::value(json::object{}) : scalar();
    switch (below(6)) {
      case 0:
        return json::object{{"anyOf", {schema(depth - 1), schema(depth - 1)}}};
      case 1:
        return json::object{{"$ref", below(2) == 0 ? "#/$defs/leaf" : "#/$defs/list"}};
      case 2:
        return json::object{{"allOf", {object(depth - 1), {{"properties", {{"z", scalar()}}}}}}};
      default:
        return container(depth);
    }
  }

  json::object container(int depth) {
    if (below(3) != 0) return object(depth);
    json::object result{{"type", "array"}, {"items", schema(depth - 1)}};
    if (below(2) == 0) result["minItems"] = below(3);
    if (below(2) == 0) result["maxItems"] = 2 + below(3);
    if (below(4) == 0) result["prefixItems"] = {schema(depth - 1), schema(depth - 1)};
    return result;
  }

  json::object scalar() {
    switch (below(12)) {
      case 0:
        return {{"type", "null"}};
      case 1:
        return {{"type", "boolean"}};
      case 2:
        return {{"type", "integer"}};
      case 3:
        return {{"type", "integer"}, {"minimum", below(40) - 20}, {"maximum", 20 + below(1000)}};
      case 4:
        return {
            {"type", "number"}, {"exclusiveMinimum", below(40) / 8.0 - 3}, {"maximum", 3 + below(99) / 7.0}};
      case 5:
        return {{"type", "integer"}, {"multipleOf", 1 + below(30)}};
      case 6:
        return {{"type", "string"}, {"minLength", below(4)}, {"maxLength", 4 + below(20)}};
      case 7:
        return {{"type", "string"}, {"pattern", below(2) == 0 ? "^[a-z]+(-[0-9]{2})*$" : "[A-F]x?"}};
      case 8:
        return {{"enum", {"one", "only", 1, 2.5, nullptr, json::array{"x"}}}};
      case 9:
        return {{"const", below(2) == 0 ? json::value("c\n\"") : json::value(17)}};
      case 10:
        return {{"type", {"string", "null"}}};
      default:
        return {{"type", "string"}};
    }
  }

  std::mt19937_64 random_;
};

/// A plain reading of the specification of JSON Schema, for the keywords that the generator uses.
class Validator {
 public:
  explicit Validator(const json::value& root) : root_(root) {}

  bool valid(const json::value& schema, const json::value& value) const {
    if (schema.is_bool()) return schema.get_bool();
    for (const auto& member : schema.get_object()) {
      if (!obeys(member.key(), member.value(), schema.get_object(), value)) return false;
    }
    return true;
  }

 private:
  static bool has_type(std::string_view type, const json::value& value) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_bool();
    if (type == "string") return value.is_string();
    if (type == "array") return value.is_array();
    if (type == "object") return value.is_object();
    if (!value.is_number()) return false;
    return type == "number" || number(value) == std::floor(number(value));
  }
  static double number(const json::value& value) { return value.to_number<double>(); }
  static size_t length(const json::value& value) {
    const json::string& text = value.get_string();
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
  }

  bool obeys(std::string_view keyword, const json::value& rule, const json::object& schema,
             const json::value& value) const {
    const auto all_of = [&](auto predicate) {
      return std::all_of(rule.get_array().begin(), rule.get_array().end(), predicate);
    };
    const auto any_of = [&](auto predicate) {
      return std::any_of(rule.get_array().begin(), rule.get_array().end(), predicate);
    };
    if (keyword == "type") {
      if (rule.is_string()) return has_type(rule.get_string(), value);
      return any_of([&](const json::value& type) { return has_type(type.get_string(), value); });
    }
    if (keyword == "enum") return any_of([&](const json::value& item) { return item == value; });
    if (keyword == "const") return rule == value;
    if (keyword == "$ref")
      return valid(root_.at_pointer(std::string_view(rule.get_string()).substr(1)), value);
    if (keyword == "anyOf") return any_of([&](const json::value& item) { return valid(item, value); });
    if (keyword == "allOf") return all_of([&](const json::value& item) { return valid(item, value); });
    if (value.is_number()) {
      if (keyword == "minimum") return number(value) >= number(rule);
      if (keyword == "maximum") return number(value) <= number(rule);
      if (keyword == "exclusiveMinimum") return number(value) > number(rule);
      if (keyword == "multipleOf")
        return value.is_double() || number(value) / number(rule) == std::floor(number(value) / number(rule));
    }
    if (value.is_string()) {
      if (keyword == "minLength") return length(value) >= rule.to_number<size_t>();
      if (keyword == "maxLength") return length(value) <= rule.to_number<size_t>();
      if (keyword == "pattern") {
        return std::regex_search(std::string(value.get_string()), std::regex(std::string(rule.get_string())));
      }
    }
    if (value.is_array()) return obeys_array(keyword, rule, schema, value.get_array());
    if (value.is_object()) return obeys_object(keyword, rule, schema, value.get_object());
    return true;
  }

  bool obeys_array(std::string_view keyword, const json::value& rule, const json::object& schema,
                   const json::array& items) const {
    if (keyword == "minItems") return items.size() >= rule.to_number<size_t>();
    if (keyword == "maxItems") return items.size() <= rule.to_number<size_t>();
    const json::value* first = schema.if_contains("prefixItems");
    const size_t first_count = first == nullptr ? 0 : first->get_array().size();
    for (size_t i = 0; i < items.size(); ++i) {
      if (keyword == "prefixItems" && i < first_count && !valid(rule.get_array()[i], items[i])) return false;
      if (keyword == "items" && i >= first_count && !valid(rule, items[i])) return false;
    }
    return true;
  }

  bool obeys_object(std::string_view keyword, const json::value& rule, const json::object& schema,
                    const json::object& members) const {
    if (keyword == "required") {
      return std::all_of(rule.get_array().begin(), rule.get_array().end(),
                         [&](const json::value& name) { return members.contains(name.get_string()); });
    }
    for (const auto& member : members) {
      const json::value* properties = schema.if_contains("properties");
      const json::value* own =
          properties == nullptr ? nullptr : properties->get_object().if_contains(member.key());
      if (keyword == "properties" && own != nullptr && !valid(*own, member.value())) return false;
      if (keyword == "additionalProperties" && own == nullptr && !valid(rule, member.value())) return false;
    }
    return true;
  }

  const json::value& root_;
};

/// A token of the mask, drawn at random; with `hurry` one that ends the text soon.
Token draw(const std::vector<uint64_t>& mask, std::mt19937_64& random, bool hurry) {
  std::vector<Token> allowed;
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint64_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      allowed.push_back(static_cast<Token>(word * 64 + static_cast<size_t>(std::countr_zero(bits))));
    }
  }
  if (allowed.empty()) return -1;
  if (hurry) {
    const Token eos = nano_index()->eos();
    if (std::find(allowed.begin(), allowed.end(), eos) != allowed.end()) return eos;
    for (const std::string_view text : {"\"", "}", "]", "null", "0", "</", "</｜DSML｜parameter>"}) {
      for (const Token token : allowed) {
        if (nano_index()->bytes(token) == text && random() % 4 != 0) return token;
      }
    }
  }
  return allowed[random() % allowed.size()];
}

/// Writes a text as the masks allow. Nothing if there was a dead end.
std::optional<std::string> random_text(const std::shared_ptr<const Grammar>& grammar,
                                       std::mt19937_64& random) {
  Constraint constraint(grammar, nano_index());
  std::vector<uint64_t> mask(nano_index()->mask_words());
  std::string text;
  const size_t patience = random() % 60;
  for (size_t step = 0; step < 3000; ++step) {
    constraint.allowed(mask);
    const Token token = draw(mask, random, step > patience);
    if (token < 0) return std::nullopt;
    if (!constraint.accept(token)) {
      ADD_FAILURE() << "allowed but not accepted: '" << nano_index()->bytes(token) << "' behind " << text;
      return std::nullopt;
    }
    if (constraint.ended()) return text;
    text += nano_index()->bytes(token);
  }
  return "";  // did not find an end in time
}

TEST(RandomSchemas, WhatIsWrittenIsValid) {
  std::mt19937_64 random(1);
  size_t finished = 0;
  for (uint64_t seed = 0; seed < 80; ++seed) {
    const json::value schema = SchemaGenerator(seed).document();
    const std::string text = json::serialize(schema);
    const auto grammar = schema_grammar(text);
    ASSERT_NE(grammar, nullptr);
    for (int walk = 0; walk < 4; ++walk) {
      const auto written = random_text(grammar, random);
      ASSERT_TRUE(written) << "dead end: " << text;
      if (written->empty()) continue;
      boost::system::error_code code;
      const json::value value = json::parse(*written, code);
      ASSERT_FALSE(code) << *written;
      EXPECT_TRUE(Validator(schema).valid(schema, value)) << *written << "\n" << text;
      ++finished;
    }
  }
  EXPECT_GT(finished, 250u);
}

// Wherever a text is, its shortest end makes it whole, and is seldom out of reach.
TEST(RandomSchemas, ShortestEndsMakeTextsWhole) {
  std::mt19937_64 random(4);
  std::vector<uint64_t> mask(nano_index()->mask_words());
  size_t ended = 0, not_found = 0;
  for (uint64_t seed = 0; seed < 80; ++seed) {
    const json::value schema = SchemaGenerator(seed).document();
    const auto grammar = schema_grammar(json::serialize(schema));
    ASSERT_NE(grammar, nullptr);
    Constraint constraint(grammar, nano_index());
    std::string text;
    for (int step = 0; step < 40 && !constraint.ended(); ++step) {
      Constraint copy = constraint;
      std::string whole = text;
      const auto end = copy.shortest_end(2000);
      if (end) {
        for (const Token token : *end) {
          ASSERT_TRUE(copy.accept(token)) << whole;
          whole += nano_index()->bytes(token);
        }
        ASSERT_TRUE(copy.complete()) << whole;
        boost::system::error_code code;
        const json::value value = json::parse(whole, code);
        ASSERT_FALSE(code) << whole;
        EXPECT_TRUE(Validator(schema).valid(schema, value)) << whole << "\n" << schema;
      }
      ++(end ? ended : not_found);
      constraint.allowed(mask);
      const Token token = draw(mask, random, step > 30);
      ASSERT_TRUE(constraint.accept(token));
      text += nano_index()->bytes(token);
    }
  }
  EXPECT_GT(ended, 800u);
  EXPECT_LT(not_found, ended / 50);
}

TEST(RandomSchemas, CallsAreReadBackAndValid) {
  std::mt19937_64 random(2);
  size_t finished = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    json::object parameters = SchemaGenerator(seed).object(3);
    parameters["$defs"] = {{"leaf", {{"type", "integer"}}}, {"list", {{"type", "array"}}}};
    const json::value schema = parameters;
    const std::vector<ToolSignature> tools{{"one", json::serialize(schema)}, {"two", ""}};
    const auto grammar = Grammar::tool_calls(tools, true);
    ASSERT_TRUE(grammar) << tools[0].parameters;
    for (int walk = 0; walk < 4; ++walk) {
      const auto written = random_text(*grammar, random);
      ASSERT_TRUE(written) << "dead end: " << tools[0].parameters;
      if (written->empty()) continue;
      const ParsedReply reply = parse_reply(*written, false, true);
      EXPECT_FALSE(reply.malformed_tools) << *written;
      EXPECT_TRUE(reply.content.empty()) << *written;
      ASSERT_FALSE(reply.tool_calls.empty()) << *written;
      for (const ToolCall& call : reply.tool_calls) {
        boost::system::error_code code;
        const json::value value = json::parse(call.arguments, code);
        ASSERT_FALSE(code) << *written;
        if (call.name == "two") {
          EXPECT_EQ(call.arguments, "{}");
        } else {
          EXPECT_EQ(call.name, "one");
          EXPECT_TRUE(Validator(schema).valid(schema, value)) << call.arguments << "\n"
                                                              << *written << "\n"
                                                              << tools[0].parameters;
        }
      }
      ++finished;
    }
  }
  EXPECT_GT(finished, 150u);
}

TEST(RandomSchemas, MasksAreWhatIsAccepted) {
  std::mt19937_64 random(3);
  std::vector<uint64_t> mask(nano_index()->mask_words());
  const auto check = [&](const std::shared_ptr<const Grammar>& grammar, const std::string& name) {
    Constraint constraint(grammar, nano_index());
    std::string text;
    for (int step = 0; step < 25 && !constraint.ended(); ++step) {
      constraint.allowed(mask);
      for (size_t id = 0; id < nano_index()->vocabulary_size(); ++id) {
        Constraint copy = constraint;
        const bool allowed = ((mask[id / 64] >> (id % 64)) & 1) != 0;
        ASSERT_EQ(copy.accept(static_cast<Token>(id)), allowed)
            << "'" << nano_index()->bytes(static_cast<Token>(id)) << "' behind " << text << "\n"
            << name;
      }
      const Token token = draw(mask, random, step > 12);
      ASSERT_TRUE(constraint.accept(token));
      text += nano_index()->bytes(token);
    }
  };
  check(Grammar::json_object().value(), "any object");
  for (uint64_t seed = 1000; seed < 1012; ++seed) {
    const std::string schema = json::serialize(SchemaGenerator(seed).document());
    check(schema_grammar(schema), schema);
    const std::vector<ToolSignature> tools{{"one", json::serialize(SchemaGenerator(seed).object(1))},
                                           {"two", ""}};
    if (tools[0].parameters.find("$ref") == std::string::npos) {
      check(Grammar::tool_calls(tools, true).value(), tools[0].parameters);
    }
  }
}

}  // namespace
}  // namespace ds4::grammar
