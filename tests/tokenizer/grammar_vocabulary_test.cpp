// Masks of constrained decoding (docs/structured-output.md) over the whole vocabulary.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/chat.hpp"
#include "grammar/constraint.hpp"
#include "grammar/grammar.hpp"
#include "real_vocabulary.hpp"

namespace ds4::grammar {
namespace {

class GrammarVocabulary : public text::RealVocabulary {
 protected:
  void SetUp() override {
    RealVocabulary::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    tokenizer = text::real_tokenizer();
    index = std::make_shared<const VocabularyIndex>(*tokenizer);
    mask.resize(index->mask_words());
  }

  bool allows(Token token) const {
    return ((mask[static_cast<size_t>(token) / 64] >> (static_cast<size_t>(token) % 64)) & 1) != 0;
  }

  /// Every token is allowed in its place, and so is EOS behind the last.
  void expect_allowed(const std::shared_ptr<const Grammar>& grammar, const std::vector<Token>& tokens) {
    Constraint constraint(grammar, index);
    std::string text;
    for (const Token token : tokens) {
      constraint.allowed(mask);
      ASSERT_TRUE(allows(token)) << "'" << tokenizer->decode(token) << "' behind " << text;
      ASSERT_TRUE(constraint.accept(token));
      text += tokenizer->decode(token);
    }
    constraint.allowed(mask);
    EXPECT_TRUE(allows(index->eos())) << text;
  }

  /// A token has its bit exactly if it is accepted.
  void expect_exact(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
    Constraint constraint(grammar, index);
    ASSERT_TRUE(constraint.accept_bytes(text)) << text;
    constraint.allowed(mask);
    for (size_t id = 0; id < index->vocabulary_size(); ++id) {
      const auto token = static_cast<Token>(id);
      const bool allowed = allows(token);
      // Nearly all others fail at their first byte.
      ASSERT_EQ(Constraint(constraint).accept(token), allowed)
          << "'" << index->bytes(token) << "' behind " << text;
    }
  }

  const Tokenizer* tokenizer = nullptr;
  std::shared_ptr<const VocabularyIndex> index;
  std::vector<uint64_t> mask;
};

TEST_F(GrammarVocabulary, TextsInTheirOwnTokens) {
  const auto object = Grammar::json_object().value();
  for (const std::string_view text :
       {R"({"name":"Zoë 😀 中文","list":[1,-2.5e+10,true,null],"nested":{"empty":{},"quote":"a \"b\"\n"}})",
        "{\n  \"name\": \"x\",\n  \"items\": [\n    {\n      \"a\": 1\n    },\n    []\n  ]\n}", "{}"}) {
    expect_allowed(object, tokenizer->encode_plain(text));
  }
  const ToolSignature tool{"read_file", R"({"type":"object","properties":{"path":{"type":"string"},
      "lines":{"type":"array","items":{"type":"integer"}}},"required":["path"]})"};
  const std::string calls = render_tool_calls(
      {{"", "read_file", R"({"path":"/a b/ü.txt","lines":[1,20]})"}, {"", "read_file", R"({"path":""})"}});
  expect_allowed(Grammar::tool_calls({&tool, 1}, true).value(), tokenizer->encode_rendered(calls));
}

TEST_F(GrammarVocabulary, MasksAreWhatIsAccepted) {
  const auto object = Grammar::json_object().value();
  for (const std::string_view text :
       {"", "{", "{\"a", "{\"a\\", "{\"\xE4", "{\"a\": ", "{\"a\": 12", "{\"a\": [[\"b\""}) {
    expect_exact(object, text);
  }
  const auto schema =
      Grammar::json_schema(R"({"type":"object","properties":{"a":{"type":"string","maxLength":5},
      "b":{"enum":["north","northwest"]},"c":{"type":"string","pattern":"^[a-z]+$"}}})",
                           true)
          .value();
  for (const std::string_view text : {R"({"a":"xy)", R"({"a":"", "b":")", R"({"a":"","b":"north","c":"ab)"}) {
    expect_exact(schema, text);
  }
  const ToolSignature tool{"f", R"({"type":"object","properties":{"t":{"type":"string"}},"required":["t"]})"};
  const auto tools = Grammar::tool_calls({&tool, 1}, true).value();
  const std::string value =
      "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"t\" string=\"true\">";
  for (const std::string& text :
       {std::string(), value, value + "a <", value + "</", value + "x</｜DSML｜parameter>"}) {
    expect_exact(tools, text);
  }
}

}  // namespace
}  // namespace ds4::grammar
