#include "server/api/thinking_fields.hpp"

#include <gtest/gtest.h>

namespace ds4::server::api {
namespace {

/// "mode", "mode budget" or the error's param.
std::string applied(std::string_view body, std::string_view model = "deepseek-v4-flash",
                    EffortProfile profile = EffortProfile::preview, bool effort_decides = false) {
  FieldErrors errors;
  const auto object = parse_body(body, errors);
  if (!object) return "not JSON";
  const Thinking thinking = read_thinking(Fields(*object, "", errors), model, profile, effort_decides);
  if (errors) return std::string("error ").append(errors.first().param);
  std::string text = name_of(thinking.mode);
  if (thinking.budget_tokens) text.append(" ").append(std::to_string(*thinking.budget_tokens));
  return text;
}

TEST(ReadThinking, EverySpelling) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "high"},
      {R"({"thinking":null})", "high"},
      {R"({"thinking":false})", "none"},
      {R"({"thinking":true})", "high"},
      {R"({"thinking":{"type":"disabled"}})", "none"},
      {R"({"thinking":{"type":"enabled","budget_tokens":1024}})", "high 1024"},
      {R"({"thinking":{"type":"adaptive"}})", "high"},
      {R"({"thinking":{"type":"disabled","budget_tokens":1024}})", "none"},
      {R"({"think":false})", "none"},
      {R"({"think":"max"})", "max"},
      {R"({"enable_thinking":false})", "none"},
      {R"({"chat_template_kwargs":{"enable_thinking":false}})", "none"},
      {R"({"chat_template_kwargs":{"thinking":false}})", "none"},
      {R"({"chat_template_kwargs":{"thinking":true,"reasoning_effort":"max","other":[1]}})", "max"},
      {R"({"reasoning_effort":"none"})", "none"},
      {R"({"reasoning_effort":"minimal"})", "high"},
      {R"({"reasoning_effort":"xhigh"})", "high"},
      {R"({"reasoning_effort":"max"})", "max"},
      {R"({"reasoning_effort":null})", "high"},
      {R"({"reasoning":false})", "none"},
      {R"({"reasoning":{"enabled":false}})", "none"},
      {R"({"reasoning":{"effort":"none"}})", "none"},
      {R"({"reasoning":{"effort":"max","max_tokens":9,"summary":"auto"}})", "max 9"},
      {R"({"output_config":{"effort":"max"}})", "max"},
      {R"({"thinking_budget":1})", "high 1"},
      {R"({"thinking_budget":0})", "none"},
      {R"({"thinking":{"type":"enabled","budget_tokens":0}})", "none"},
      {R"({"reasoning":{"effort":"max","max_tokens":0}})", "none"},
  };
  for (const auto& [body, expected] : cases) EXPECT_EQ(applied(body), expected) << body;
}

TEST(ReadThinking, OffAlwaysWins) {
  EXPECT_EQ(applied(R"({"thinking":{"type":"disabled"},"reasoning_effort":"max"})"), "none");
  EXPECT_EQ(applied(R"({"enable_thinking":true,"reasoning":{"effort":"none"}})"), "none");
  EXPECT_EQ(applied(R"({"think":false,"thinking":true})"), "none");
}

TEST(ReadThinking, ModelNamesDecideOnlyWhenNothingElseDoes) {
  EXPECT_EQ(applied("{}", "deepseek-chat"), "none");
  EXPECT_EQ(applied("{}", "deepseek-reasoner"), "high");
  EXPECT_EQ(applied(R"({"thinking":true})", "deepseek-chat"), "high");
  EXPECT_EQ(applied(R"({"reasoning_effort":"max"})", "deepseek-chat"), "none");
  EXPECT_EQ(applied(R"({"reasoning":{"effort":"max"}})", "deepseek-chat", EffortProfile::preview, true),
            "max");
  EXPECT_EQ(applied(R"({"thinking":false})", "deepseek-reasoner"), "none");
}

TEST(ReadThinking, ErrorsNameTheField) {
  EXPECT_EQ(applied(R"({"thinking":1})"), "error thinking");
  EXPECT_EQ(applied(R"({"thinking":{"type":"maybe"}})"), "error thinking.type");
  EXPECT_EQ(applied(R"({"thinking":{"type":"enabled","budget_tokens":-1}})"), "error thinking.budget_tokens");
  EXPECT_EQ(applied(R"({"think":1})"), "error think");
  EXPECT_EQ(applied(R"({"enable_thinking":"no"})"), "error enable_thinking");
  EXPECT_EQ(applied(R"({"chat_template_kwargs":{"thinking":1}})"), "error chat_template_kwargs.thinking");
  EXPECT_EQ(applied(R"({"reasoning_effort":"huge"})"), "error reasoning_effort");
  EXPECT_EQ(applied(R"({"reasoning":{"effort":"huge"}})"), "error reasoning.effort");
}

TEST(ThinkModeOfEffort, DependsOnTheCheckpoint) {
  const auto mode = [](const char* effort) {
    return think_mode_of_effort(effort, EffortProfile::release_0731);
  };
  for (const char* effort : {"minimal", "low", "medium"}) EXPECT_EQ(mode(effort), ThinkMode::high) << effort;
  for (const char* effort : {"high", "xhigh"}) EXPECT_EQ(mode(effort), ThinkMode::max) << effort;
  EXPECT_EQ(mode("max"), ThinkMode::beyond);
  EXPECT_EQ(mode("none"), ThinkMode::none);
  EXPECT_EQ(mode("High"), std::nullopt);
}

TEST(ThinkingHeader, TellsWhatWasApplied) {
  EXPECT_EQ(thinking_header({ThinkMode::none, std::nullopt}), (http::HeaderList{{"x-ds4-thinking", "none"}}));
}

}  // namespace
}  // namespace ds4::server::api
