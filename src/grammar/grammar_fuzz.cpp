// Fuzzes schemas and the texts written by them: first byte = kind of grammar, then the schema up to a NUL,
// then choices among the tokens that are allowed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/constraint.hpp"
#include "grammar/grammar.hpp"
#include "text/byte_alphabet.hpp"
#include "text/special_tokens.hpp"
#include "text/utf8.hpp"

namespace {

using ds4::Token;
using ds4::grammar::Constraint;
using ds4::grammar::Grammar;
using ds4::grammar::VocabularyIndex;

/// All bytes, and some tokens that cross what a grammar tells apart.
std::shared_ptr<const VocabularyIndex> make_index() {
  std::vector<std::string> tokens;
  const auto add = [&](std::string_view bytes) {
    std::string& token = tokens.emplace_back();
    for (const char byte : bytes) {
      ds4::text::append_utf8(token, ds4::text::kByteAlphabet[static_cast<unsigned char>(byte)]);
    }
  };
  for (const auto& special : ds4::text::kSpecialSpellings) tokens.emplace_back(special.text);
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const char* text :
       {"\"}", "\": ", "\",", "[[",        "]]",    "}}",  "{\"", "\n  ", "\"]}",     "00",
        "-1",  "null", "</",  "parameter", "\">\n", "\\u", "\\n", "é",    "\xF0\x9F", "ab"}) {
    add(text);
  }
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  const auto tokenizer = ds4::Tokenizer::create(views, {}).value();
  return std::make_shared<const VocabularyIndex>(tokenizer);
}

void require(bool condition) {
  if (!condition) std::abort();
}

void write(const std::shared_ptr<const Grammar>& grammar, std::string_view choices) {
  static const std::shared_ptr<const VocabularyIndex> index = make_index();
  Constraint constraint(grammar, index);
  std::vector<uint64_t> mask(index->mask_words());
  for (const char choice : choices.substr(0, 64)) {
    constraint.allowed(mask);
    std::vector<Token> allowed;
    for (size_t token = 0; token < index->vocabulary_size(); ++token) {
      if ((mask[token / 64] >> (token % 64)) & 1) allowed.push_back(static_cast<Token>(token));
    }
    require(!allowed.empty());
    require(constraint.accept(allowed[static_cast<unsigned char>(choice) % allowed.size()]));
    if (constraint.ended()) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t schema_end = std::min(input.find('\0', 1), size);
  const std::string schema(input.substr(1, schema_end - 1));
  const std::string_view choices = input.substr(std::min(schema_end + 1, size));
  const ds4::grammar::ToolSignature tools[] = {{"f", schema}, {"g", ""}};
  const auto grammar = (data[0] & 1) != 0 ? Grammar::tool_calls(tools, (data[0] & 2) != 0)
                                          : Grammar::json_schema(schema, (data[0] & 2) != 0);
  if (grammar) write(*grammar, choices);
  return 0;
}
