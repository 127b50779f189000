// The nano model in every recipe of ds4-quantize: what the engine decodes, how far it is from the source, and
// what it costs in likelihood.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "format/gguf.hpp"
#include "format/number_formats.hpp"
#include "model/weights.hpp"
#include "scalar_decoders.hpp"
#include "support/loaded_model.hpp"
#include "support/nano_goldens.hpp"

namespace ds4 {
namespace {

using format::TensorType;
using testing::must;

const std::string kFolder = DS4_NANO_DIR "/nano-";

std::vector<float> values_of(const format::GgufTensor& tensor) {
  std::vector<float> values(tensor.elements());
  const uint64_t rows = values.size() / tensor.dims[0], bytes = tensor.size_bytes / rows;
  for (uint64_t row = 0; row < rows; ++row)
    format::decode_row(tensor.type, tensor.data + row * bytes, tensor.dims[0],
                       values.data() + row * tensor.dims[0]);
  return values;
}

bool is_expert(std::string_view name) {
  return name.find("_exps.") != std::string_view::npos;
}

TEST(QuantizedNano, DecodesAsTheFormatsSay) {
  for (const char* recipe : {"q8", "bf16", "mxfp4", "q4", "q2-q4", "q2"}) {
    for (const char* part : {"", "-mtp"}) {
      const auto file = must(format::GgufFile::open(kFolder + recipe + part + ".gguf"));
      for (const auto& tensor : file.tensors()) {
        if (tensor.type == TensorType::i32) continue;
        const auto expected =
            test::decode_again(tensor.type, reinterpret_cast<const uint8_t*>(tensor.data), tensor.elements());
        ASSERT_EQ(values_of(tensor), expected) << recipe << part << " " << tensor.name;
      }
    }
  }
}

TEST(QuantizedNano, ExpertsHaveTheFormatsOfTheRecipe) {
  struct Case {
    const char* recipe;
    TensorType gate, down, last_gate, last_down, drafter;
  };
  constexpr auto q8 = TensorType::q8_0, mx = TensorType::mxfp4, q4 = TensorType::q4_k, q2 = TensorType::q2_k,
                 iq2 = TensorType::iq2_xxs;
  for (const Case& c :
       {Case{"q8", q8, q8, q8, q8, q8}, Case{"mxfp4", mx, mx, mx, mx, mx}, Case{"q4", q4, q4, q4, q4, q4},
        Case{"q2-q4", iq2, q2, q4, q4, q4}, Case{"q2", iq2, q2, iq2, q2, q4}}) {
    const auto file = must(format::GgufFile::open(kFolder + c.recipe + ".gguf"));
    const auto drafter = must(format::GgufFile::open(kFolder + c.recipe + "-mtp.gguf"));
    EXPECT_EQ(file.find_tensor("blk.4.ffn_gate_exps.weight")->type, c.gate) << c.recipe;
    EXPECT_EQ(file.find_tensor("blk.4.ffn_up_exps.weight")->type, c.gate) << c.recipe;
    EXPECT_EQ(file.find_tensor("blk.4.ffn_down_exps.weight")->type, c.down) << c.recipe;
    EXPECT_EQ(file.find_tensor("blk.5.ffn_gate_exps.weight")->type, c.last_gate) << c.recipe;
    EXPECT_EQ(file.find_tensor("blk.5.ffn_down_exps.weight")->type, c.last_down) << c.recipe;
    EXPECT_EQ(drafter.find_tensor("mtp.0.ffn_up_exps.weight")->type, c.drafter) << c.recipe;
  }
}

// Errors of trained weights are those of normal values in docs/quantize.md.
TEST(QuantizedNano, ExpertsStayNearTheSource) {
  const auto source = must(format::GgufFile::open(kFolder + "f32.gguf"));
  const std::map<TensorType, double> bounds = {{TensorType::q8_0, 0.008},
                                               {TensorType::mxfp4, 0.13},
                                               {TensorType::q4_k, 0.08},
                                               {TensorType::q2_k, 0.36},
                                               {TensorType::iq2_xxs, 0.44}};
  for (const char* recipe : {"q8", "mxfp4", "q4", "q2"}) {
    const auto file = must(format::GgufFile::open(kFolder + recipe + ".gguf"));
    std::map<TensorType, double> largest;
    for (const auto& tensor : file.tensors()) {
      if (!is_expert(tensor.name)) continue;
      const auto expected = values_of(*source.find_tensor(tensor.name)), got = values_of(tensor);
      double error = 0, energy = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        error += std::pow(double{got[i]} - expected[i], 2);
        energy += std::pow(double{expected[i]}, 2);
      }
      const double relative = std::sqrt(error / energy);
      EXPECT_LT(relative, bounds.at(tensor.type)) << recipe << " " << tensor.name;
      largest[tensor.type] = std::max(largest[tensor.type], relative);
    }
    for (const auto& [type, error] : largest)
      std::printf("%s: experts in %s, largest relative error %.4f\n", recipe,
                  std::string(format::type_name(type)).c_str(), error);
  }
}

/// Mean negative log-likelihood of the tokens after the first 32 of the longer prompts.
double mean_nll(const std::string& path) {
  const Engine engine = must(Engine::open({.model_path = path, .backend = BackendChoice::cpu, .threads = 2}));
  double nll = 0;
  size_t count = 0;
  for (const test::NanoGolden& prompt : test::nano_goldens("qat")) {
    const auto ids = prompt.ids();
    if (ids.size() < 100) continue;
    Session session = must(engine.create_session(ids.size()));
    must(session.sync(std::span(ids).first(32)));
    for (const auto& score : must(session.score(std::span(ids).subspan(32)))) nll -= score.logprob, ++count;
  }
  EXPECT_GT(count, 2000u);
  return nll / static_cast<double>(count);
}

TEST(QuantizedNano, LikelihoodOfEveryRecipe) {
  const double reference = mean_nll(kFolder + "f16.gguf");
  // Largest change of the mean NLL, in percent.
  const std::pair<const char*, double> bounds[] = {
      {"q8", 0.5}, {"mxfp4", 2}, {"q4", 1}, {"q2-q4", 5}, {"q2", 5}};
  std::printf("f16    mean NLL %.6f\n", reference);
  for (const auto& [recipe, percent] : bounds) {
    const double nll = mean_nll(kFolder + recipe + ".gguf"), change = 100 * (nll / reference - 1);
    std::printf("%-6s mean NLL %.6f, %+.3f %%\n", recipe, nll, change);
    EXPECT_LT(std::fabs(change), percent) << recipe;
  }
}

}  // namespace
}  // namespace ds4
