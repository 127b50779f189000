// The options that the original's quantizer has and this one has not, and the rules that replace them.
#include "original_options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "model/tensor_list.hpp"
#include "recipe.hpp"

namespace ds4::quantize {
namespace {

using ::testing::HasSubstr;

TEST(OriginalOptions, AreNamedWithWhatReplacesThem) {
  for (const char* option : {"--hf",
                             "--template",
                             "--experts",
                             "--routed",
                             "--routed-w1",
                             "--routed-gate",
                             "--routed-w2",
                             "--routed-down",
                             "--routed-w3",
                             "--routed-up",
                             "--attention-proj",
                             "--attn-proj",
                             "--attention",
                             "--shared",
                             "--embedding",
                             "--output",
                             "--dense",
                             "--n-experts",
                             "--compare-tensor",
                             "--compare-gguf",
                             "--dspark-only",
                             "--self-test-dspark-map"})
    EXPECT_NE(instead_of(option), "") << option;
  EXPECT_THAT(std::string(instead_of("--hf=DIR")), HasSubstr("--checkpoint DIR"));
  for (const char* own : {"--out", "--imatrix", "--threads", "--overwrite", "--tensor-type", "experts", ""})
    EXPECT_EQ(instead_of(own), "") << own;
}

TEST(OriginalOptions, TheRulesFitTensors) {
  model::ModelWeights weights;
  const auto slots = list_model_tensors(model::known_shape(model::Variant::flash), weights);
  for (const char* option : {"--experts", "--routed-w1", "--routed-w2", "--routed-w3", "--attention-proj",
                             "--attention", "--shared", "--embedding", "--output", "--dense"}) {
    std::string_view advice = instead_of(option);
    size_t rules = 0;
    for (size_t begin = advice.find('\''); begin != std::string_view::npos; begin = advice.find('\'')) {
      advice.remove_prefix(begin + 1);
      std::string rule(advice.substr(0, advice.find('\'')));
      advice.remove_prefix(rule.size() + 1);
      rule.replace(rule.find("FORMAT"), 6, "bf16");
      Recipe recipe;
      ASSERT_TRUE(recipe.add_rule(rule)) << rule;
      EXPECT_TRUE(recipe.check_rules(slots)) << rule;
      ++rules;
    }
    EXPECT_GT(rules, 0u) << option;
  }
}

}  // namespace
}  // namespace ds4::quantize
