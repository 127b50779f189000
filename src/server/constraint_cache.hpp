// Grammars of earlier requests: agents send the same schemas again and again.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "ds4/tokenizer.hpp"
#include "grammar/constraint.hpp"
#include "grammar/grammar.hpp"
#include "grammar/vocabulary_index.hpp"

namespace ds4::server {

/// Constraints at their beginning, the 32 last used; copies share the masks that were worked out.
/// Thread-safe. Errors are those of grammar::Grammar.
class ConstraintCache {
 public:
  /// `tokenizer` must outlive it.
  explicit ConstraintCache(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Result<std::optional<grammar::Constraint>> json_object();
  /// `field`: what error messages begin with.
  Result<std::optional<grammar::Constraint>> json_schema(std::string_view schema, bool strict,
                                                         std::string_view field = "response_format");
  Result<std::optional<grammar::Constraint>> tool_calls(std::span<const grammar::ToolSignature> tools,
                                                        bool parallel);
  size_t size() const;

 private:
  using MakeGrammar = std::function<Result<std::shared_ptr<const grammar::Grammar>>()>;
  Result<std::optional<grammar::Constraint>> get(std::string key, const MakeGrammar& make);

  const Tokenizer& tokenizer_;
  mutable std::mutex mutex_;
  std::shared_ptr<const grammar::VocabularyIndex> vocabulary_;    // made when first needed
  std::list<std::pair<std::string, grammar::Constraint>> known_;  // most recently used first
};

}  // namespace ds4::server
