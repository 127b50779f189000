// The parsers of recorded replies: what is shipped reads, and damage of any kind is one sentence.
#include "recorded_reply.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model_check.hpp"

namespace ds4::vectors {
namespace {

using ::testing::HasSubstr;

const std::string small =
    "# comment\n"
    "case a 4096 2 some/where/a.txt\n"
    "step 0 416461 2\n"
    "top 416461 -0.5\n"
    "top 20 -1.25e1\n"
    "\n"
    "step 1 0a 0\n"
    "end\n";

std::string error_of(const std::string& text) {
  const auto cases = parse_cases(text, "x.vec");
  return cases ? "" : cases.error().message;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  std::string result = text;
  return result.replace(result.find(from), from.size(), to);
}

void expect_one_sentence(const Error& error) {
  EXPECT_EQ(error.code, ErrorCode::format);
  EXPECT_FALSE(error.message.empty());
  EXPECT_LT(error.message.size(), 400u);
  for (const unsigned char c : error.message) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << error.message;
}

TEST(RecordedCases, Read) {
  const auto cases = parse_cases(small, "x.vec");
  ASSERT_TRUE(cases) << cases.error().message;
  ASSERT_EQ(cases->size(), 1u);
  const RecordedCase& recorded = cases->front();
  EXPECT_EQ(recorded.id, "a");
  EXPECT_EQ(recorded.context, 4096u);
  EXPECT_EQ(recorded.prompt_file, "a.txt");
  ASSERT_EQ(recorded.steps.size(), 2u);
  EXPECT_EQ(recorded.steps[0].selected, "Ada");
  ASSERT_EQ(recorded.steps[0].top.size(), 2u);
  EXPECT_EQ(recorded.steps[0].top[1].bytes, " ");
  EXPECT_EQ(recorded.steps[0].top[1].logprob, -12.5f);
  EXPECT_EQ(recorded.steps[1].selected, "\n");
}

TEST(RecordedCases, DamageIsTold) {
  const std::pair<std::pair<const char*, const char*>, const char*> cases[] = {
      {{"case a", "kase a"}, "x.vec:2: \"kase\" where 'case' should be"},
      {{" some/where/a.txt", ""}, "'case' has 4 values, not 3"},
      {{"some/where/a.txt", "some/"}, "not the name of a prompt"},
      {{"some/where/a.txt", "x/.."}, "not the name of a prompt"},
      {{"case a", "case ../a"}, "not the name of a case"},
      {{"4096", "1"}, "not a number from 2 to"},
      {{"4096", "99999999999999999999"}, "not a number"},
      {{"4096 2", "4096 17"}, "not a number from 1 to 16"},
      {{"4096 2", "4096 1"}, "\"step\" where 'end' should be"},
      {{"4096 2", "4096 3"}, "\"end\" where 'step' should be"},
      {{"step 1", "step 2"}, "x.vec:7: step 2 where step 1 should be"},
      {{"416461 2", "416461 1"}, "\"top\" where 'step' should be"},
      {{"416461 2", "416461 33"}, "not a number from 0 to 32"},
      {{"416461 2", "41646 2"}, "hexadecimal"},
      {{"416461 2", "4164zz 2"}, "not hexadecimal"},
      {{"-0.5", "0.5"}, "not the logarithm of a probability"},
      {{"-0.5", "nan"}, "not the logarithm of a probability"},
      {{"-0.5", "-0.5x"}, "not the logarithm of a probability"},
      {{"end\n", ""}, "the file ends where 'end' should be"},
      {{"end\n", "end now\n"}, "'end' has 0 values, not 1"},
  };
  for (const auto& [edit, told] : cases) {
    EXPECT_THAT(error_of(replaced(small, edit.first, edit.second)), HasSubstr(told)) << edit.first;
  }
  EXPECT_THAT(error_of(small + small), HasSubstr("two cases 'a'"));
  EXPECT_THAT(error_of("# nothing\n"), HasSubstr("no case"));
  EXPECT_THAT(error_of(replaced(small, "416461 2", std::string(258, '4') + " 2")),
              HasSubstr("1 to 128 bytes"));
}

TEST(RecordedCases, CutOrChangedAnywhereTheyAreReadOrRefused) {
  size_t refused = 0;
  for (size_t i = 0; i < small.size(); ++i) {
    std::string changed = small;
    changed[i] = '\xff';
    for (const std::string& text : {small.substr(0, i), changed}) {
      const auto cases = parse_cases(text, "x.vec");
      if (cases) continue;
      ++refused;
      expect_one_sentence(cases.error());
    }
  }
  EXPECT_GT(refused, small.size());
}

const std::string small_reply =
    R"({"schema":"ds4-official-logprobs-v1","id":"a","prompt":"Who?","request":{"temperature":0,)"
    R"("thinking":{"type":"disabled"},"messages":[{"role":"user","content":"Who?"}]},)"
    R"("usage":{"prompt_tokens":5},"message":{"content":"Ada\n"},"steps":[)"
    R"({"step":0,"token":{"text":"Ada","bytes":[65,100,97]},"top_logprobs":[)"
    R"({"token":{"text":"Ada","bytes":[65,100,97]},"logprob":-0.5},)"
    R"({"token":{"text":" ","bytes":[32]},"logprob":-12.5},)"
    R"({"token":{"text":"x","bytes":[120]},"logprob":-9999}]},)"
    R"({"step":1,"token":{"text":"\n","bytes":[10]},"top_logprobs":[]}]})";

TEST(RecordedReplies, Read) {
  const auto reply = parse_reply(small_reply, "x.json");
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->prompt, "Who?");
  EXPECT_EQ(reply->prompt_tokens, 5u);
  EXPECT_EQ(reply->content, "Ada\n");
  ASSERT_EQ(reply->steps.size(), 2u);
  ASSERT_EQ(reply->steps[0].top.size(), 3u);
  EXPECT_EQ(reply->steps[0].top[2].bytes, "x");
}

TEST(RecordedReplies, DamageIsTold) {
  const std::pair<std::pair<const char*, const char*>, const char*> cases[] = {
      {{"-v1", "-v2"}, "x.json: unknown schema \"ds4-official-logprobs-v2\""},
      {{"\"id\":\"a\"", "\"id\":1"}, "x.json.id: not a string"},
      {{"\"usage\"", "\"use\""}, "there is no \"usage\""},
      {{"\"prompt_tokens\":5", "\"prompt_tokens\":-5"}, "x.json.usage.prompt_tokens: not a number"},
      {{"\"temperature\":0", "\"temperature\":1"}, "x.json.request.temperature: not a number"},
      {{"disabled", "enabled"}, "\"enabled\", not \"disabled\""},
      {{"\"content\":\"Who?\"", "\"content\":\"Who\""}, "x.json.request.messages[0]: not the prompt"},
      {{"\"step\":1", "\"step\":0"}, "x.json.steps[1]: step 0 where step 1 should be"},
      {{"[65,100,97]", "[65,100]"}, "the text \"Ada\" does not have these bytes"},
      {{"[65,100,97]", "[65,100,256]"}, "x.json.steps[0].token.bytes[2]: not a byte"},
      {{"[65,100,97]", "7"}, "not an array of 1 to 128 elements"},
      {{"-0.5", "0.5"}, "not the logarithm of a probability"},
      {{"Ada\\n", "Ada"}, "do not make up the message"},
  };
  for (const auto& [edit, told] : cases) {
    const auto reply = parse_reply(replaced(small_reply, edit.first, edit.second), "x.json");
    ASSERT_FALSE(reply) << edit.first;
    EXPECT_THAT(reply.error().message, HasSubstr(told));
    expect_one_sentence(reply.error());
  }
  for (size_t i = 0; i < small_reply.size(); ++i) {
    const auto reply = parse_reply(small_reply.substr(0, i), "x.json");
    ASSERT_FALSE(reply) << i;
    expect_one_sentence(reply.error());
  }
}

TEST(RecordedReplies, AgreeWithTheirCase) {
  const RecordedReply reply = parse_reply(small_reply, "x.json").value();
  const auto told = [&](const std::string& cases, const std::string& prompt) {
    const auto same = check_agreement(parse_cases(cases, "x.vec").value().front(), reply, prompt);
    return same ? "" : same.error().message;
  };
  EXPECT_EQ(told(small, "Who?"), "");
  EXPECT_THAT(told(small, "Who"), HasSubstr("the prompt is not the same"));
  EXPECT_THAT(told(replaced(small, "case a", "case b"), "Who?"), HasSubstr("the id"));
  EXPECT_THAT(told(replaced(small, "416461 2", "416462 2"), "Who?"), HasSubstr("the token of step 0"));
  EXPECT_THAT(told(replaced(small, "-0.5", "-0.25"), "Who?"), HasSubstr("what step 0 lists"));
  EXPECT_THAT(told(replaced(small, "top 416461 -0.5\n", "top 416461 -0.5\ntop 21 -1\n")
                       .replace(small.find("416461 2"), 8, "416461 3"),
                   "Who?"),
              HasSubstr("what step 0 lists"));
  EXPECT_THAT(told(replaced(replaced(small, "4096 2", "4096 1"), "step 1 0a 0\n", ""), "Who?"),
              HasSubstr("the number of steps"));
}

TEST(RecordedReplies, ShippedOnesReadAndAgree) {
  const auto vectors = read_vectors(DS4_SOURCE_DIR "/tests/data/official-vectors");
  ASSERT_TRUE(vectors) << vectors.error().message;
  ASSERT_EQ(vectors->size(), 5u);
  size_t steps = 0, alternatives = 0;
  for (const Vector& vector : *vectors) {
    EXPECT_TRUE(vector.has_reply) << vector.recorded.id;
    steps += vector.recorded.steps.size();
    for (const RecordedStep& step : vector.reply.steps) alternatives += step.top.size();
  }
  EXPECT_EQ(steps, 17u);
  EXPECT_EQ(alternatives, 340u);
}

}  // namespace
}  // namespace ds4::vectors
