#include "grammar/schema.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.hpp"
#include "grammar/branch_reader.hpp"
#include "grammar/regex.hpp"

namespace ds4::grammar {
namespace {

namespace json = boost::json;

constexpr size_t kMostBranches = 256;
constexpr size_t kMostPatternStates = 50000;  // of all patterns of a schema
constexpr int kMostChain = 100;  // references and alternatives one behind another without a character written

std::string escaped_pointer_part(std::string_view key) {
  std::string result;
  for (const char c : key) {
    if (c == '~') {
      result += "~0";
    } else if (c == '/') {
      result += "~1";
    } else {
      result.push_back(c);
    }
  }
  return result;
}

/// The JSON pointer of a value inside a document; recursion is bounded by the parser's limit of depth.
std::optional<std::string> pointer_of(const json::value& document, const json::value& wanted) {
  if (&document == &wanted) return std::string();
  if (const json::object* object = document.if_object()) {
    for (const auto& member : *object) {
      if (auto rest = pointer_of(member.value(), wanted)) {
        return fmt::format("/{}{}", escaped_pointer_part(member.key()), *rest);
      }
    }
  }
  if (const json::array* array = document.if_array()) {
    for (size_t i = 0; i < array->size(); ++i) {
      if (auto rest = pointer_of((*array)[i], wanted)) return fmt::format("/{}{}", i, *rest);
    }
  }
  return std::nullopt;
}

/// "%41" becomes "A", as in the fragment of a URI.
std::string percent_decoded(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size()) {
      const std::string digits(text.substr(i + 1, 2));
      char* end = nullptr;
      value = static_cast<unsigned>(std::strtoul(digits.c_str(), &end, 16));
      if (end == digits.c_str() + 2) {
        result.push_back(static_cast<char>(value));
        i += 2;
        continue;
      }
    }
    result.push_back(text[i]);
  }
  return result;
}

}  // namespace

SchemaReader::SchemaReader(const json::value& root, std::string field)
    : root_(root), field_(std::move(field)) {}

Error SchemaReader::error(std::string_view problem) const {
  return fail(ErrorCode::unsupported, "{}: {}", field_, problem);
}

Error SchemaReader::error_at(const json::value& place, std::string_view problem) const {
  const auto pointer = pointer_of(root_, place);
  const std::string where = !pointer || pointer->empty() ? "the top" : *pointer;
  return fail(ErrorCode::unsupported, "{}: {} at {}", field_, problem, where);
}

Result<const json::value*> SchemaReader::resolve(const json::value& schema, std::string_view reference) {
  boost::system::error_code code;
  const json::value* target = nullptr;
  if (reference == "#" || reference.starts_with("#/")) {
    target = root_.find_pointer(percent_decoded(reference.substr(1)), code);
  }
  if (target == nullptr) {
    return error_at(schema, fmt::format("the reference '{}' leads nowhere in this schema", reference));
  }
  return target;
}

/// What a schema requires besides itself before anything is written: its reference and the members of allOf.
Result<std::vector<const json::value*>> SchemaReader::unconditional(const json::value& schema) {
  std::vector<const json::value*> result;
  const json::object& object = schema.get_object();
  if (const json::value* reference = object.if_contains("$ref")) {
    if (!reference->is_string()) return error_at(schema, "'$ref' is not a string");
    DS4_ASSIGN(const json::value* target, resolve(schema, reference->get_string()));
    result.push_back(target);
  }
  if (const json::value* all = object.if_contains("allOf")) {
    if (!all->is_array()) return error_at(schema, "'allOf' is not an array");
    for (const json::value& member : all->get_array()) result.push_back(&member);
  }
  return result;
}

/// Depth-first through everything that a schema leads to without a character being written.
Result<void> SchemaReader::check_progress(const json::value& schema) {
  struct Visit {
    const json::value* schema;
    std::vector<const json::value*> next;
  };
  std::vector<Visit> path;
  std::set<const json::value*> on_path;
  const auto visit = [&](const json::value* place) -> Result<void> {
    if (progressing_.contains(place) || !place->is_object()) return {};
    if (!on_path.insert(place).second) {
      return error_at(*place, "the schema refers to itself without anything between");
    }
    if (path.size() > kMostChain) return error_at(*place, "the schema's references are chained too deeply");
    DS4_ASSIGN(auto next, unconditional(*place));
    for (const std::string_view keyword : {"anyOf", "oneOf"}) {
      const json::value* branches = place->get_object().if_contains(keyword);
      if (branches == nullptr || !branches->is_array()) continue;
      for (const json::value& branch : branches->get_array()) next.push_back(&branch);
    }
    path.push_back({place, std::move(next)});
    return {};
  };
  DS4_TRY(visit(&schema));
  while (!path.empty()) {
    Visit& top = path.back();
    if (!top.next.empty()) {
      const json::value* next = top.next.back();
      top.next.pop_back();
      DS4_TRY(visit(next));
      continue;
    }
    progressing_.insert(top.schema);
    on_path.erase(top.schema);
    path.pop_back();
  }
  return {};
}

Result<void> SchemaReader::expand(std::vector<const json::value*> pending, Objects chosen, int depth,
                                  std::vector<Objects>& results) {
  if (depth > kMostChain) return error("the schema's alternatives are nested too deeply");
  while (!pending.empty()) {
    const json::value* schema = pending.front();
    pending.erase(pending.begin());
    if (schema->is_bool()) {
      if (!schema->get_bool()) return {};
      continue;
    }
    if (!schema->is_object()) return error_at(*schema, "a schema is neither an object nor a boolean");
    if (std::find(chosen.begin(), chosen.end(), schema) != chosen.end()) continue;
    chosen.push_back(schema);
    if (chosen.size() > kMostBranches) return error("the schema joins too many others");
    DS4_ASSIGN(const auto others, unconditional(*schema));
    pending.insert(pending.begin(), others.begin(), others.end());
    std::vector<const json::array*> choices;
    for (const std::string_view keyword : {"anyOf", "oneOf"}) {
      const json::value* branches = schema->get_object().if_contains(keyword);
      if (branches == nullptr) continue;
      if (!branches->is_array()) return error_at(*schema, fmt::format("'{}' is not an array", keyword));
      choices.push_back(&branches->get_array());
    }
    if (choices.empty()) continue;
    for (const json::value& branch : *choices.front()) {
      std::vector<std::vector<const json::value*>> ways{{&branch}};
      if (choices.size() == 2) {
        ways.clear();
        for (const json::value& other : *choices.back()) ways.push_back({&branch, &other});
      }
      for (auto& way : ways) {
        way.insert(way.end(), pending.begin(), pending.end());
        DS4_TRY(expand(way, chosen, depth + 1, results));
      }
    }
    return {};
  }
  results.push_back(std::move(chosen));
  if (results.size() > kMostBranches) {
    return error(fmt::format("the schema has more than {} alternatives in one place", kMostBranches));
  }
  return {};
}

Result<std::shared_ptr<const Dfa>> SchemaReader::pattern(std::string_view text) {
  auto known = patterns_.find(text);
  if (known != patterns_.end()) return known->second;
  DS4_ASSIGN(Dfa dfa, dfa_of_pattern(text));
  pattern_states_ += dfa.states.size();
  if (pattern_states_ > kMostPatternStates) {
    return fail(ErrorCode::unsupported, "so many and so complex patterns in one schema");
  }
  auto made = std::make_shared<const Dfa>(std::move(dfa));
  patterns_.emplace(text, made);
  return made;
}

Result<std::vector<Branch>> SchemaReader::read(const Conjunction& schemas) {
  for (const json::value* schema : schemas) DS4_TRY(check_progress(*schema));
  std::vector<Objects> ways;
  DS4_TRY(expand(schemas, {}, 0, ways));
  std::vector<Branch> branches;
  for (const Objects& objects : ways) {
    BranchReader reader(*this);
    DS4_ASSIGN(std::optional<Branch> branch, reader.read(objects));
    if (branch) branches.push_back(*std::move(branch));
  }
  return branches;
}

}  // namespace ds4::grammar
