#include "options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace ds4::bench {
namespace {

using testing::HasSubstr;

Result<Options> parse(std::vector<const char*> arguments) {
  return parse_options(arguments);
}

std::string error_of(std::vector<const char*> arguments) {
  const auto result = parse(std::move(arguments));
  return result ? "" : result.error().message;
}

TEST(BenchOptions, Defaults) {
  const auto o = parse({});
  ASSERT_TRUE(o);
  EXPECT_EQ(o->prompt_kind(), PromptKind::builtin);
  EXPECT_EQ(o->system, "You are a helpful assistant.");
  EXPECT_EQ(o->steps.first, 2048u);
  EXPECT_EQ(o->steps.last, 32768u);
  EXPECT_EQ(o->steps.increment, 2048u);
  EXPECT_EQ(o->steps.multiplier, 1.0);
  EXPECT_EQ(o->gen_tokens, 128u);
  EXPECT_EQ(o->context_tokens, 32768u + 128 + 1);
  EXPECT_EQ(o->prefill_chunk_tokens, 4096u);
}

TEST(BenchOptions, TheProbeHasThreeNames) {
  for (const char* name : {"-n", "--tokens", "--gen-tokens"}) {
    EXPECT_EQ(parse({name, "0"})->gen_tokens, 0u);
    EXPECT_EQ(parse({name, "64"})->gen_tokens, 64u);
    EXPECT_THAT(error_of({name, "-1"}), HasSubstr("needs a whole number"));
  }
}

TEST(BenchOptions, OnePromptOnly) {
  EXPECT_EQ(parse({"--prompt-file", "a"})->prompt_kind(), PromptKind::raw_file);
  EXPECT_EQ(parse({"--chat-prompt-file", "a"})->prompt_kind(), PromptKind::chat_file);
  EXPECT_THAT(error_of({"--prompt-file", "a", "--chat-prompt-file", "b"}), HasSubstr("not both"));
}

TEST(BenchOptions, FrontiersMustMakeSense) {
  EXPECT_THAT(error_of({"--ctx-start", "9", "--ctx-max", "8"}), HasSubstr("larger than --ctx-max 8"));
  EXPECT_EQ(error_of({"--ctx-start", "8", "--ctx-max", "8"}), "");
  EXPECT_THAT(error_of({"--ctx-start", "0"}), HasSubstr("needs a whole number"));
  EXPECT_THAT(error_of({"--step-mul", "0.99"}), HasSubstr("--step-mul needs a number"));
  EXPECT_THAT(error_of({"--step-mul", "inf"}), HasSubstr("--step-mul needs a number"));
  EXPECT_THAT(error_of({"--step-mul", "nan"}), HasSubstr("--step-mul needs a number"));
  EXPECT_THAT(error_of({"--step-incr", "0"}), HasSubstr("never advances"));
  EXPECT_EQ(error_of({"--step-incr", "0", "--step-mul", "2"}), "");
  EXPECT_NE(error_of({"--step-incr", "-5"}), "");
}

TEST(BenchOptions, TheContextHoldsTheLastProbe) {
  EXPECT_THAT(error_of({"--ctx-max", "2147483600"}), HasSubstr("more than 2147483646 tokens"));
  EXPECT_EQ(error_of({"--ctx-max", "2147483518"}), "");  // 2^31 - 1 - 128 - 1
  EXPECT_NE(error_of({"--ctx-max", "2147483519"}), "");
  EXPECT_THAT(error_of({"--ctx-max", "4096", "--ctx-alloc", "4224"}), HasSubstr("need 4225 at least"));
  EXPECT_EQ(parse({"--ctx-max", "4096", "--ctx-alloc", "4225"})->context_tokens, 4225u);
}

TEST(BenchOptions, TheDiskCacheIsNotMeasuredUnlessAskedFor) {
  EXPECT_EQ(parse({})->kv_folder, "");
  EXPECT_EQ(parse({"--kv-disk-dir", "cache"})->kv_folder, "cache");
  EXPECT_THAT(error_of({"--kv-disk-dir"}), HasSubstr("--kv-disk-dir"));
  EXPECT_THAT(error_of({"--kv-disk-dir", ""}), HasSubstr("--kv-disk-dir"));
}

TEST(BenchOptions, WhatThisBuildCannotDoIsRefusedNotIgnored) {
  for (const char* name : {"--role", "--layers", "--listen", "--coordinator", "--dist-prefill-chunk"}) {
    const auto result = parse({name, "x"});
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::unsupported);
    EXPECT_THAT(result.error().message, HasSubstr("one machine"));
  }
  for (const char* name : {"--ssd-streaming", "--ssd-streaming-cold", "--ssd-streaming-cache-experts"}) {
    const auto result = parse({name});
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::unsupported);
    EXPECT_THAT(result.error().message, HasSubstr("stream experts from disk"));
  }
  for (const char* name : {"--power", "--metal", "--simulate-used-memory", "--seed"}) {
    const auto result = parse({name, "1"});
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(result.error().message, HasSubstr("unknown option"));
  }
}

TEST(BenchHelp, ShowsWhatThereIs) {
  const std::string page = help_page("", false);
  for (const Row& row : option_table()) {
    if (row.section == Section::refused) continue;
    EXPECT_THAT(page, HasSubstr(row.name));
  }
  EXPECT_THAT(page, testing::Not(HasSubstr("--role")));
  EXPECT_THAT(help_page("runtime", false), testing::Not(HasSubstr("--ctx-start")));
  EXPECT_THAT(help_page("nonsense", false), HasSubstr("no help topic 'nonsense'"));
}

}  // namespace
}  // namespace ds4::bench
