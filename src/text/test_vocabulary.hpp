// For tests: tokenizers and cases from JSON files.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "ds4/tokenizer.hpp"

namespace ds4::text {

/// The file as JSON; null if it cannot be read.
inline boost::json::value read_json_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  boost::system::error_code error;
  boost::json::value value = boost::json::parse(content, error);
  return error ? boost::json::value() : value;
}

inline std::string test_data(const std::string& name) {
  return DS4_SOURCE_DIR "/tests/data/" + name;
}

inline std::vector<Token> token_list(const boost::json::value& json) {
  return boost::json::value_to<std::vector<Token>>(json);
}

/// The vocabulary of a tokenizer.json with a "BPE" model and added tokens.
struct VocabularyTables {
  std::vector<std::string> tokens;
  std::vector<std::string> merges;

  Result<Tokenizer> make() const {
    const std::vector<std::string_view> token_views(tokens.begin(), tokens.end());
    const std::vector<std::string_view> merge_views(merges.begin(), merges.end());
    return Tokenizer::create(token_views, merge_views);
  }
};

inline VocabularyTables nano_vocabulary() {
  const boost::json::value json = read_json_file(test_data("nano/tokenizer.json"));
  VocabularyTables tables;
  const auto put = [&](const boost::json::value& id, std::string_view string) {
    const auto index = id.to_number<size_t>();
    if (tables.tokens.size() <= index) tables.tokens.resize(index + 1);
    tables.tokens[index] = string;
  };
  for (const auto& [string, id] : json.at("model").at("vocab").as_object()) put(id, string);
  for (const auto& added : json.at("added_tokens").as_array())
    put(added.at("id"), added.at("content").as_string());
  for (const auto& merge : json.at("model").at("merges").as_array()) {
    tables.merges.emplace_back(merge.as_string());
  }
  return tables;
}

inline const Tokenizer& nano_tokenizer() {
  static const Tokenizer tokenizer = nano_vocabulary().make().value();
  return tokenizer;
}

}  // namespace ds4::text
