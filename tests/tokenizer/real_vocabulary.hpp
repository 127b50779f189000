// The real vocabulary for tests, which skip without it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "text/test_vocabulary.hpp"

namespace ds4::text {

/// Null if the vocabulary has not been fetched.
inline const Tokenizer* real_tokenizer() {
  static const std::optional<Tokenizer> tokenizer = []() -> std::optional<Tokenizer> {
    const auto json = read_json_file(DS4_REAL_VOCABULARY);
    if (!json.is_object()) return std::nullopt;
    const VocabularyTables tables{boost::json::value_to<std::vector<std::string>>(json.at("tokens")),
                                  boost::json::value_to<std::vector<std::string>>(json.at("merges"))};
    return tables.make().value();
  }();
  return tokenizer ? &*tokenizer : nullptr;
}

class RealVocabulary : public testing::Test {
 protected:
  void SetUp() override {
    if (real_tokenizer() != nullptr) return;
    const std::string reason =
        "no vocabulary at " DS4_REAL_VOCABULARY " (the test real_vocabulary.prepare fetches it)";
    if (std::getenv("CI") != nullptr) FAIL() << reason;
    GTEST_SKIP() << reason;
  }
};

}  // namespace ds4::text
