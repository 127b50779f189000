#include "server/constraint_cache.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"

namespace ds4::server {
namespace {

constexpr size_t most_known = 32;

}  // namespace

Result<std::optional<grammar::Constraint>> ConstraintCache::json_object() {
  return get("object", [] { return grammar::Grammar::json_object(); });
}

Result<std::optional<grammar::Constraint>> ConstraintCache::json_schema(std::string_view schema, bool strict,
                                                                        std::string_view field) {
  return get(fmt::format("schema {} {}", strict, schema),
             [&] { return grammar::Grammar::json_schema(schema, strict, field); });
}

Result<std::optional<grammar::Constraint>> ConstraintCache::tool_calls(
    std::span<const grammar::ToolSignature> tools, bool parallel) {
  std::string key = fmt::format("tools {}", parallel);
  for (const grammar::ToolSignature& tool : tools) {
    key += fmt::format(" {} {} {} {}", tool.name.size(), tool.name, tool.parameters.size(), tool.parameters);
  }
  return get(std::move(key), [&] { return grammar::Grammar::tool_calls(tools, parallel); });
}

Result<std::optional<grammar::Constraint>> ConstraintCache::get(std::string key, const MakeGrammar& make) {
  {
    const std::lock_guard lock(mutex_);
    const auto known =
        std::find_if(known_.begin(), known_.end(), [&](const auto& entry) { return entry.first == key; });
    if (known != known_.end()) {
      known_.splice(known_.begin(), known_, known);
      return std::optional(known->second);
    }
    if (vocabulary_ == nullptr) vocabulary_ = std::make_shared<const grammar::VocabularyIndex>(tokenizer_);
  }
  DS4_ASSIGN(auto grammar, make());  // may take long: not under the lock
  const std::lock_guard lock(mutex_);
  known_.emplace_front(std::move(key), grammar::Constraint(std::move(grammar), vocabulary_));
  if (known_.size() > most_known) known_.pop_back();
  return std::optional(known_.front().second);
}

size_t ConstraintCache::size() const {
  const std::lock_guard lock(mutex_);
  return known_.size();
}

}  // namespace ds4::server
