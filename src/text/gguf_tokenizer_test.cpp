#include "text/gguf_tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "format/gguf_writer.hpp"
#include "text/test_vocabulary.hpp"

namespace ds4::text {
namespace {

class GgufTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    path_ =
        testing::TempDir() + "ds4_" + testing::UnitTest::GetInstance()->current_test_info()->name() + ".gguf";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  /// A file with these tables; an empty one is left out.
  format::GgufFile file_with(const VocabularyTables& tables, const std::string& pre) {
    format::GgufWriter writer(path_);
    writer.add_string("general.architecture", "deepseek4");
    if (!tables.tokens.empty()) writer.add_string_array("tokenizer.ggml.tokens", tables.tokens);
    if (!tables.merges.empty()) writer.add_string_array("tokenizer.ggml.merges", tables.merges);
    if (!pre.empty()) writer.add_string("tokenizer.ggml.pre", pre);
    const auto finished = writer.finish();
    EXPECT_TRUE(finished);
    return format::GgufFile::open(path_).value();
  }

  std::string path_;
};

TEST_F(GgufTokenizer, LoadsTheTables) {
  const auto file = file_with(nano_vocabulary(), "joyai-llm");
  std::string notice = "untouched";
  const auto tokenizer = load_tokenizer(file, &notice);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(notice, "untouched");
  EXPECT_EQ(tokenizer->encode_rendered("<｜User｜>Hi there, 世界"),
            nano_tokenizer().encode_rendered("<｜User｜>Hi there, 世界"));
}

TEST_F(GgufTokenizer, TellsOfOtherCuttingRules) {
  std::string notice;
  EXPECT_TRUE(load_tokenizer(file_with(nano_vocabulary(), "gpt-2"), &notice));
  EXPECT_THAT(notice, testing::HasSubstr("gpt-2"));
  notice.clear();
  EXPECT_TRUE(load_tokenizer(file_with(nano_vocabulary(), ""), &notice));
  EXPECT_THAT(notice, testing::HasSubstr("tokenizer.ggml.pre"));
}

TEST_F(GgufTokenizer, ErrorsNameTheKey) {
  VocabularyTables tables = nano_vocabulary();
  tables.merges.clear();
  const auto without_merges = load_tokenizer(file_with(tables, "joyai-llm"));
  ASSERT_FALSE(without_merges);
  EXPECT_THAT(without_merges.error().message, testing::HasSubstr("tokenizer.ggml.merges"));

  tables = nano_vocabulary();
  tables.merges[17] = "abc";
  const auto bad_merge = load_tokenizer(file_with(tables, "joyai-llm"));
  ASSERT_FALSE(bad_merge);
  EXPECT_THAT(bad_merge.error().message, testing::HasSubstr("tokenizer.ggml.merges"));
  EXPECT_THAT(bad_merge.error().message, testing::HasSubstr("merge 17 "));

  tables = nano_vocabulary();
  tables.tokens.pop_back();
  const auto without_dsml = load_tokenizer(file_with(tables, "joyai-llm"));
  ASSERT_FALSE(without_dsml);
  EXPECT_THAT(without_dsml.error().message, testing::HasSubstr("｜DSML｜"));
  EXPECT_THAT(without_dsml.error().message, testing::HasSubstr("tokenizer.ggml.tokens"));

  tables.tokens.clear();
  const auto without_tokens = load_tokenizer(file_with(tables, "joyai-llm"));
  ASSERT_FALSE(without_tokens);
  EXPECT_THAT(without_tokens.error().message, testing::HasSubstr("tokenizer.ggml.tokens"));
}

}  // namespace
}  // namespace ds4::text
