#include "options.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace ds4::steer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<Options> parse(std::vector<const char*> arguments) {
  return parse_options(arguments);
}

Result<Options> build(std::vector<const char*> more) {
  std::vector<const char*> arguments{"build", "--good", "g", "--bad", "b", "-o", "n"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return parse_options(arguments);
}

Result<Options> sweep(std::vector<const char*> more) {
  std::vector<const char*> arguments{"sweep", "--direction", "d.f32", "--prompts", "p"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return parse_options(arguments);
}

std::string message(const Result<Options>& result) {
  return result ? "" : result.error().message;
}

TEST(SteerOptions, BuildDefaults) {
  const auto o = build({});
  ASSERT_TRUE(o) << o.error().message;
  EXPECT_EQ(o->command, Command::build);
  EXPECT_EQ(o->good_path, "g");
  EXPECT_EQ(o->bad_path, "b");
  EXPECT_EQ(o->out, "n");
  EXPECT_EQ(o->component, Component::feed_forward);
  EXPECT_EQ(o->system, "You are a helpful assistant.");
  EXPECT_EQ(o->think, ThinkMode::none);
  EXPECT_FALSE(o->orthogonalize || o->pair_normalize || o->positions.all);
  EXPECT_EQ(o->positions.last, 1u);
  EXPECT_EQ(o->first_layer, 0u);
  EXPECT_FALSE(o->last_layer);
  EXPECT_EQ(o->context_tokens, 4096u);
  EXPECT_EQ(o->steering_path, "");  // nothing is steered while directions are found
}

TEST(SteerOptions, SweepDefaults) {
  const auto o = sweep({});
  ASSERT_TRUE(o) << o.error().message;
  EXPECT_EQ(o->command, Command::sweep);
  EXPECT_EQ(o->direction_path, "d.f32");
  EXPECT_EQ(o->steering_path, "d.f32");
  EXPECT_EQ(o->prompts_path, "p");
  EXPECT_THAT(o->scales, ElementsAre(-2, -1, -0.5f, 0, 0.5f, 1, 2));
  EXPECT_EQ(o->max_tokens, 160u);
  EXPECT_EQ(o->attention_scale, 0);
  EXPECT_FALSE(o->show);
}

TEST(SteerOptions, WhatIsMissingIsNamed) {
  EXPECT_THAT(message(parse({})), HasSubstr("build or sweep"));
  EXPECT_THAT(message(parse({"--good", "g"})), HasSubstr("build or sweep"));
  EXPECT_THAT(message(parse({"learn"})), HasSubstr("'learn'"));
  EXPECT_THAT(message(parse({"build"})), HasSubstr("--good is missing"));
  EXPECT_THAT(message(parse({"build", "--good", "g"})), HasSubstr("--bad is missing"));
  EXPECT_THAT(message(parse({"build", "--good", "g", "--bad", "b"})), HasSubstr("--out is missing"));
  EXPECT_THAT(message(parse({"sweep"})), HasSubstr("--direction is missing"));
  EXPECT_THAT(message(parse({"sweep", "--direction", "d"})), HasSubstr("--prompts is missing"));
  EXPECT_THAT(message(build({"--good"})), HasSubstr("--good needs a value"));
  EXPECT_TRUE(parse({"--help"}));
  EXPECT_TRUE(parse({"build", "--help"}));
  EXPECT_TRUE(parse({"--version"}));
}

TEST(SteerOptions, Components) {
  for (const char* name : {"ffn", "ffn_out"})
    EXPECT_EQ(build({"--component", name})->component, Component::feed_forward);
  for (const char* name : {"attn", "attn_out"})
    EXPECT_EQ(build({"--component", name})->component, Component::attention);
  EXPECT_THAT(message(build({"--component", "both"})), HasSubstr("no component 'both'"));
}

TEST(SteerOptions, Positions) {
  EXPECT_EQ(build({"--positions", "4"})->positions.last, 4u);
  EXPECT_TRUE(build({"--positions", "all"})->positions.all);
  EXPECT_FALSE(build({"--positions", "all", "--positions", "2"})->positions.all);
  for (const char* text : {"0", "-1", "1025", "some", ""})
    EXPECT_THAT(message(build({"--positions", text})), HasSubstr("--positions")) << text;
}

TEST(SteerOptions, Layers) {
  const auto range = build({"--layers", "2-4"});
  EXPECT_EQ(range->first_layer, 2u);
  EXPECT_EQ(range->last_layer, 4u);
  const auto one = build({"--layers", "3"});
  EXPECT_EQ(one->first_layer, 3u);
  EXPECT_EQ(one->last_layer, 3u);
  for (const char* text : {"", "-", "4-2", "x", "1-", "-1", "1-2-3", "1001"})
    EXPECT_THAT(message(build({"--layers", text})), HasSubstr("--layers")) << text;
}

TEST(SteerOptions, ScalesAreSortedAndUnique) {
  EXPECT_THAT(sweep({"--scales", "1,-2,0.5,1"})->scales, ElementsAre(-2, 0.5f, 1));
  EXPECT_THAT(sweep({"--scales", "3"})->scales, ElementsAre(3));
  for (const char* text : {"", "1,", ",1", "1,,2", "x", "101", "-100.5", "nan"})
    EXPECT_THAT(message(sweep({"--scales", text})), HasSubstr("--scales")) << text;
  std::string many = "0";
  for (int i = 1; i <= 64; ++i) many += fmt::format(",{}", i);
  EXPECT_THAT(message(sweep({"--scales", many.c_str()})), HasSubstr("at most 64"));
}

TEST(SteerOptions, ExtensionsOfResultsAreLeftOut) {
  EXPECT_EQ(build({"-o", "dir/x.f32"})->out, "dir/x");
  EXPECT_EQ(build({"-o", "dir/x.json"})->out, "dir/x");
  EXPECT_EQ(build({"-o", "x.csv"})->out, "x.csv");
  EXPECT_EQ(build({"-o", ".f32"})->out, ".f32");
  EXPECT_EQ(sweep({"-o", "x.svg"})->out, "x");
  EXPECT_EQ(sweep({"-o", "x.csv"})->out, "x");
  EXPECT_EQ(sweep({"-o", "x.f32"})->out, "x.f32");
}

TEST(SteerOptions, TheHelpNamesEveryOption) {
  const std::string page = help_page("", false);
  std::set<std::string> names;
  for (const Row& row : option_table()) {
    EXPECT_THAT(page, HasSubstr(row.name));
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
  }
  EXPECT_THAT(help_page("x", false), HasSubstr("no help topic 'x'"));
  EXPECT_EQ(page.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace ds4::steer
