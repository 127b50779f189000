#include "options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "option_table.hpp"

namespace ds4::cli {
namespace {

using testing::HasSubstr;

Result<Options> parse(std::vector<const char*> arguments) {
  return parse_options(arguments);
}

std::string error_of(std::vector<const char*> arguments) {
  const auto result = parse(std::move(arguments));
  return result ? "" : result.error().message;
}

TEST(Options, Defaults) {
  const auto o = parse({});
  ASSERT_TRUE(o);
  EXPECT_EQ(o->prompt_source, PromptSource::none);
  EXPECT_EQ(o->system, "You are a helpful assistant");
  EXPECT_EQ(o->think, ThinkMode::high);
  EXPECT_EQ(o->context_tokens, 32768u);
  EXPECT_EQ(o->max_tokens, 50000u);
  EXPECT_EQ(o->prefill_chunk_tokens, 4096u);
  EXPECT_EQ(o->sampling.temperature, 1.0f);
  EXPECT_EQ(o->sampling.top_p, 1.0f);
  EXPECT_EQ(o->sampling.top_k, 0);
  EXPECT_EQ(o->sampling.min_p, 0.05f);
  EXPECT_EQ(o->logprobs_top_k, 20u);
}

TEST(Options, ValuesAreTakenAsTheyAre) {
  const auto o = parse({"-p", "--nothink", "-sys", "", "--temp", "0", "-n", "2147483647"});
  ASSERT_TRUE(o) << o.error().message;
  EXPECT_EQ(o->prompt, "--nothink");
  EXPECT_EQ(o->system, "");
  EXPECT_EQ(o->think, ThinkMode::high);
  EXPECT_EQ(o->sampling.temperature, 0.0f);
  EXPECT_EQ(o->max_tokens, 2147483647u);
  for (const char* odd : {"{}", "[a,b]", "=", "a\nb", " "}) EXPECT_EQ(parse({"-p", odd})->prompt, odd);
}

TEST(Options, TheLastOccurrenceWins) {
  const auto o =
      parse({"--nothink", "--think-max", "-c", "5", "--ctx", "7", "--seed", "18446744073709551615"});
  ASSERT_TRUE(o) << o.error().message;
  EXPECT_EQ(o->think, ThinkMode::max);
  EXPECT_EQ(o->context_tokens, 7u);
  EXPECT_EQ(o->seed, 18446744073709551615u);
}

TEST(Options, OnePromptOnly) {
  EXPECT_THAT(error_of({"-p", "a", "--prompt-file", "b"}), HasSubstr("one prompt only"));
  EXPECT_THAT(error_of({"-p", "a", "-p", "b"}), HasSubstr("one prompt only"));
  EXPECT_THAT(error_of({"-p", ""}), HasSubstr("empty"));
  EXPECT_THAT(error_of({"-p", "a", "--perplexity-file", "b"}), HasSubstr("--perplexity-file"));
}

TEST(Options, DashMeansStandardInput) {
  EXPECT_EQ(parse({"-p", "-"})->prompt_source, PromptSource::standard_input);
  EXPECT_EQ(parse({"--prompt-file", "-"})->prompt_source, PromptSource::file);
}

TEST(Options, IntegersAreStrict) {
  for (const char* option : {"-n", "-c", "-t", "--prefill-chunk", "--logprobs-top-k", "--seed"}) {
    for (const char* value : {"0", "-1", "+1", " 1", "1 ", "1x", "", "1.0", "0x10", "99999999999999999999"}) {
      EXPECT_THAT(error_of({option, value}), HasSubstr("needs a whole number"))
          << option << " '" << value << "'";
    }
    EXPECT_EQ(error_of({option, "12"}), "");
  }
  EXPECT_NE(error_of({"-n", "2147483648"}), "");
  EXPECT_EQ(error_of({"--top-k", "0"}), "");
  EXPECT_NE(error_of({"--top-k", "1025"}), "");
}

TEST(Options, FloatsAreStrict) {
  for (const char* option : {"--temp", "--top-p", "--min-p"}) {
    for (const char* value : {"-0.1", "nan", "inf", "1e99", "", " 1", "1f", "0,5", "100.1"}) {
      EXPECT_THAT(error_of({option, value}), HasSubstr("needs a number")) << option << " '" << value << "'";
    }
    for (const char* value : {"0", "1", "0.5", "1e-3"}) EXPECT_EQ(error_of({option, value}), "");
  }
  EXPECT_EQ(error_of({"--temp", "100"}), "");
  EXPECT_NE(error_of({"--top-p", "1.01"}), "");
}

TEST(Options, UnknownAndIncomplete) {
  EXPECT_THAT(error_of({"--no-such"}), HasSubstr("unknown option '--no-such'"));
  EXPECT_THAT(error_of({"--temp=1"}), HasSubstr("unknown option '--temp=1'"));
  EXPECT_THAT(error_of({"word"}), HasSubstr("unexpected argument 'word'"));
  EXPECT_THAT(error_of({"-p"}), HasSubstr("-p needs a value"));
  EXPECT_THAT(error_of({"--server", "x"}), HasSubstr("unknown option"));
  EXPECT_THAT(error_of({"--backend", "metal"}), HasSubstr("no backend 'metal'"));
}

TEST(Options, LogprobsTopKIsClamped) {
  EXPECT_EQ(parse({"--logprobs-top-k", "500"})->logprobs_top_k, 128u);
}

TEST(Options, SteeringScales) {
  const auto scales = [](std::vector<const char*> arguments, Component made_from) {
    return steering_scales(*parse(std::move(arguments)), made_from).value_or({-1000, -1000});
  };
  constexpr Component attention = Component::attention, feed_forward = Component::feed_forward;
  EXPECT_EQ(scales({"--dir-steering-file", "d"}, feed_forward).feed_forward, 1);
  EXPECT_EQ(scales({"--dir-steering-file", "d"}, feed_forward).attention, 0);
  EXPECT_EQ(scales({"--dir-steering-file", "d"}, attention).feed_forward, 0);
  EXPECT_EQ(scales({"--dir-steering-file", "d"}, attention).attention, 1);
  // A scale that is given stands alone, wherever the directions come from.
  for (const Component made_from : {attention, feed_forward}) {
    const SteeringScales given = scales({"--dir-steering-file", "d", "--dir-steering-attn", "-2"}, made_from);
    EXPECT_EQ(given.attention, -2);
    EXPECT_EQ(given.feed_forward, 0);
    EXPECT_EQ(scales({"--dir-steering-file", "d", "--dir-steering-ffn", "0"}, made_from).attention, 0);
  }
  EXPECT_EQ(scales({"--dir-steering-ffn", "0"}, feed_forward).feed_forward, 0);
  EXPECT_THAT(error_of({"--dir-steering-ffn", "1"}), HasSubstr("--dir-steering-ffn needs a direction"));
}

TEST(Options, HelpTakesAnOptionalTopic) {
  EXPECT_EQ(parse({"--help"})->help_topic, "");
  EXPECT_EQ(parse({"-h", "sampling"})->help_topic, "sampling");
  EXPECT_EQ(parse({"-h", "-m", "x"})->help_topic, "");
  EXPECT_TRUE(parse({"-p", "x", "-h"})->help);
}

TEST(Help, EveryOptionIsOnTheAllPage) {
  const std::string page = help_page("all", false);
  for (const Row& row : option_table()) EXPECT_THAT(page, HasSubstr(row.name));
  EXPECT_THAT(page, HasSubstr("/read FILE"));
  EXPECT_THAT(page, testing::Not(HasSubstr("\x1b")));
  EXPECT_THAT(help_page("all", true), HasSubstr("\x1b[38;5;81m"));
}

TEST(Help, TopicsShowTheirSectionOnly) {
  EXPECT_THAT(help_page("sampling", false), HasSubstr("--min-p"));
  EXPECT_THAT(help_page("sampling", false), testing::Not(HasSubstr("--ctx")));
  EXPECT_THAT(help_page("commands", false), HasSubstr("/nothink"));
  EXPECT_THAT(help_page("nonsense", false), HasSubstr("no help topic 'nonsense'"));
  EXPECT_THAT(help_page("nonsense", false), HasSubstr("usage:"));
}

}  // namespace
}  // namespace ds4::cli
