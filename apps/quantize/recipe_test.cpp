#include "recipe.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ds4::quantize {
namespace {

using format::TensorType;
using model::TensorRole;
using ::testing::HasSubstr;

bool fits(std::string_view pattern, std::string_view name) {
  const auto result = matches_pattern(pattern, name);
  EXPECT_TRUE(result) << pattern;
  return result.value_or(false);
}

TEST(Pattern, StarsAndNumbers) {
  EXPECT_TRUE(fits("output.weight", "output.weight"));
  EXPECT_FALSE(fits("output.weight", "output.weights"));
  EXPECT_TRUE(fits("*", "anything"));
  EXPECT_TRUE(fits("*", ""));
  EXPECT_TRUE(fits("blk.*.ffn_*_exps.weight", "blk.12.ffn_down_exps.weight"));
  EXPECT_FALSE(fits("blk.*.ffn_*_exps.weight", "blk.12.ffn_down_shexp.weight"));
  EXPECT_TRUE(fits("blk.{37-42}.*", "blk.42.x"));
  EXPECT_FALSE(fits("blk.{37-42}.*", "blk.43.x"));
  EXPECT_FALSE(fits("blk.{37-42}.*", "blk.4.x"));
  EXPECT_FALSE(fits("blk.{7}.*", "blk.37.x"));
  EXPECT_FALSE(fits("*{7}.*", "blk.37.x"));
  EXPECT_TRUE(fits("*{1,3,10-20}*", "blk.15.x"));
  EXPECT_TRUE(fits("a*b*c", "a.b.b.c.c"));
  EXPECT_FALSE(fits("a*b*c", "a.b.b.c.c.d"));
  EXPECT_TRUE(fits("**x", "x"));
  const std::string hostile = std::string(2000, '*') + "b", name(2000, 'a');
  EXPECT_FALSE(fits(hostile, name));
}

TEST(Pattern, MistakesAreErrors) {
  for (const char* pattern :
       {"", "{", "{}", "}", "{1", "{a}", "{1-}", "{5-3}", "{1,}", "{-1}", "{99999999999}"})
    EXPECT_FALSE(matches_pattern(pattern, "x")) << pattern;
}

TEST(Recipe, PresetsGiveExpertsTheirFormats) {
  struct Case {
    const char* name;
    TensorType gate, down, last_gate, drafter;
  };
  constexpr auto q8 = TensorType::q8_0, q4 = TensorType::q4_k, q2 = TensorType::q2_k,
                 iq2 = TensorType::iq2_xxs, mx = TensorType::mxfp4;
  for (const Case& c : {Case{"q8", q8, q8, q8, q8}, Case{"mxfp4", mx, mx, mx, mx}, Case{"q4", q4, q4, q4, q4},
                        Case{"q2", iq2, q2, iq2, q4}, Case{"q2-q4", iq2, q2, q4, q4}}) {
    const auto recipe = Recipe::named(c.name);
    ASSERT_TRUE(recipe);
    EXPECT_EQ(recipe->name(), c.name);
    constexpr auto gate_role = TensorRole::gate_up_expert, down_role = TensorRole::down_expert;
    EXPECT_EQ(recipe->type_for("blk.36.ffn_gate_exps.weight", gate_role, 43), c.gate) << c.name;
    EXPECT_EQ(recipe->type_for("blk.36.ffn_down_exps.weight", down_role, 43), c.down) << c.name;
    for (const char* layer : {"blk.37.ffn_up_exps.weight", "blk.42.ffn_up_exps.weight"})
      EXPECT_EQ(recipe->type_for(layer, gate_role, 43), c.last_gate) << c.name << layer;
    EXPECT_EQ(recipe->type_for("mtp.0.ffn_gate_exps.weight", gate_role, 43), c.drafter) << c.name;
    EXPECT_EQ(recipe->type_for("output.weight", TensorRole::output, 43), q8) << c.name;
    EXPECT_EQ(recipe->type_for("token_embd.weight", TensorRole::embedding, 43), TensorType::f16) << c.name;
    EXPECT_EQ(recipe->type_for("blk.0.ffn_norm.weight", TensorRole::vector, 43), TensorType::f32) << c.name;
  }
  EXPECT_FALSE(Recipe::named("q3"));
}

TEST(Recipe, TheFirstRuleThatFitsDecides) {
  const auto recipe = Recipe::parse(
      "# a mixed file\n"
      "base q2\n"
      "\n"
      "blk.{0-2}.ffn_*_exps.weight  Q4_K   # the first layers\r\n"
      "blk.*.ffn_down_exps.weight\tq4-k\n"
      "*.hc_*_fn.weight iq2xxs\n"
      "* f16",
      "mixed.txt");
  ASSERT_TRUE(recipe) << recipe.error().message;
  EXPECT_EQ(recipe->name(), "q2 + 4 rules");
  const auto type = [&](const char* name, TensorRole role) { return recipe->type_for(name, role, 6); };
  EXPECT_EQ(type("blk.2.ffn_gate_exps.weight", TensorRole::gate_up_expert), TensorType::q4_k);
  EXPECT_EQ(type("blk.3.ffn_gate_exps.weight", TensorRole::gate_up_expert), TensorType::f16);
  EXPECT_EQ(type("blk.3.ffn_down_exps.weight", TensorRole::down_expert), TensorType::q4_k);
  EXPECT_EQ(type("blk.3.hc_attn_fn.weight", TensorRole::mixer), TensorType::f16);
  EXPECT_EQ(type("blk.3.attn_norm.weight", TensorRole::vector), TensorType::f32);
  EXPECT_EQ(type("blk.0.ffn_gate_tid2eid.weight", TensorRole::table), TensorType::i32);
}

TEST(Recipe, AByteOrderMarkIsNoPartOfIt) {
  const auto recipe = Recipe::parse(
      "\xef\xbb\xbf"
      "base q2\r\noutput.weight f16\r\n",
      "r.txt");
  ASSERT_TRUE(recipe) << recipe.error().message;
  EXPECT_EQ(recipe->name(), "q2 + 1 rule");
}

TEST(Recipe, OptionsComeBeforeTheFile) {
  auto recipe = Recipe::parse("output.weight f16\n", "file");
  ASSERT_TRUE(recipe);
  ASSERT_TRUE(recipe->add_rule("output.weight=bf16"));
  ASSERT_TRUE(recipe->add_rule("output.*=f32"));
  EXPECT_EQ(recipe->type_for("output.weight", TensorRole::output, 6), TensorType::bf16);
  EXPECT_FALSE(recipe->add_rule("output.weight"));
  EXPECT_FALSE(recipe->add_rule("output.weight=q5_k"));
}

TEST(Recipe, MistakesNameTheLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"base q8\nbase q2\n", "r.txt:2: base was said before"},
      {"base q3", "r.txt:1: there is no recipe \"q3\""},
      {"\n\noutput.weight", "r.txt:3: a line is"},
      {"output.weight q8_0 f16", "r.txt:1: a line is"},
      {"output.weight q5_k", "r.txt:1: there is no format \"q5_k\""},
      {"blk.{2-1}.x q8_0", "r.txt:1: \"blk.{2-1}.x\" is no pattern"},
      {"\x01\xff q8_0\x02", "r.txt:1: there is no format"},
  };
  for (const auto& [text, message] : cases) {
    const auto result = Recipe::parse(text, "r.txt");
    ASSERT_FALSE(result) << text;
    EXPECT_THAT(result.error().message, HasSubstr(message));
  }
}

TEST(Recipe, ARuleWithoutATensorIsAnError) {
  model::ModelShape shape = model::known_shape(model::Variant::nano);
  model::ModelWeights weights;
  const auto slots = list_model_tensors(shape, weights);
  EXPECT_TRUE(Recipe::parse("blk.{0-2}.ffn_*_exps.weight q4_k", "r")->check_rules(slots));
  for (const char* text : {"blk.{40-50}.* q8_0", "blk.0.attn_norm.weight f16", "*.hc_attn_fn.weight q8_0"}) {
    const auto result = Recipe::parse(text, "r")->check_rules(slots);
    ASSERT_FALSE(result) << text;
    EXPECT_THAT(result.error().message, HasSubstr("r:1: no tensor that"));
  }
}

}  // namespace
}  // namespace ds4::quantize
