// For tests: a vocabulary, and whether a grammar takes a text.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "grammar/constraint.hpp"
#include "grammar/grammar.hpp"
#include "text/test_vocabulary.hpp"

namespace ds4::grammar {

inline std::shared_ptr<const VocabularyIndex> nano_index() {
  static const auto index = std::make_shared<const VocabularyIndex>(text::nano_tokenizer());
  return index;
}

inline std::shared_ptr<const Grammar> schema_grammar(std::string_view schema, bool strict = false) {
  auto grammar = Grammar::json_schema(schema, strict);
  EXPECT_TRUE(grammar) << schema << ": " << (grammar ? "" : grammar.error().message);
  return grammar ? *grammar : nullptr;
}

/// The whole text belongs to the grammar.
inline bool takes(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  if (grammar == nullptr) return false;
  Constraint constraint(grammar, nano_index());
  return constraint.accept_bytes(text) && constraint.complete();
}

/// How many bytes of the text may be written.
inline size_t taken_bytes(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Constraint constraint(grammar, nano_index());
  size_t taken = 0;
  while (taken < text.size() && constraint.accept_bytes(text.substr(taken, 1))) ++taken;
  return taken;
}

}  // namespace ds4::grammar
