// The CUDA backend at the widths of Flash, in the number formats of published files: prefill and decoding
// against an independent implementation in double precision (tests/data/flash-width.json, docs/model.md §16),
// and against each other where the indexer has to choose among hundreds of rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "backend/cuda/cuda_backend.hpp"
#include "support/flash_width.hpp"
#include "support/ops_vectors.hpp"

namespace ds4 {
namespace {

namespace json = boost::json;
using testing::FlashWidthCounts;
using testing::must;

double relative_l2(std::span<const float> ours, std::span<const float> wanted) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    difference += (double{ours[i]} - wanted[i]) * (double{ours[i]} - wanted[i]);
    norm += double{wanted[i]} * wanted[i];
  }
  return std::sqrt(difference / norm);
}

// A random model in a file that goes with it.
class Model {
 public:
  explicit Model(const FlashWidthCounts& counts)
      : path_((std::filesystem::temp_directory_path() / "ds4-flash-width-cuda.gguf").string()) {
    must(testing::write_tiny_model(path_, testing::flash_width_options(counts)));
    cpu_ = std::make_unique<testing::LoadedModel>(path_);
    gpu_ = must(cuda::make_cuda_backend(cpu_->shape, cpu_->weights, nullptr, {}));
    vocabulary_ = cpu_->shape.vocabulary;
  }
  ~Model() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Logits [tokens][V], chunk by chunk.
  std::vector<float> prefill(std::span<const Token> tokens, const std::vector<size_t>& lengths) const {
    const auto sequence = must(gpu_->create_sequence());
    std::vector<float> logits(tokens.size() * vocabulary_);
    size_t begin = 0;
    for (const size_t length : lengths) {
      must(gpu_->prefill(*sequence, tokens.subspan(begin, length), length,
                         std::span(logits).subspan(begin * vocabulary_, length * vocabulary_), {}));
      begin += length;
    }
    EXPECT_EQ(begin, tokens.size());
    return logits;
  }
  std::vector<float> decode(std::span<const Token> tokens) const {
    return prefill(tokens, std::vector<size_t>(tokens.size(), 1));
  }
  size_t vocabulary() const { return vocabulary_; }

 private:
  std::string path_;
  std::unique_ptr<testing::LoadedModel> cpu_;
  std::unique_ptr<backend::Backend> gpu_;
  size_t vocabulary_ = 0;
};

class FlashWidthCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda::available(&why)) GTEST_SKIP() << why;
  }
};

template <class T>
std::vector<T> numbers(const json::value& array) {
  std::vector<T> result;
  for (const auto& value : array.as_array()) result.push_back(value.to_number<T>());
  return result;
}

// Listed logits of some positions; bounds of each and of the mean.
void check_golden(const char* what, const std::vector<float>& logits, size_t vocabulary,
                  const json::array& wanted, double each, double mean) {
  double sum = 0, largest = 0;
  for (const json::value& row : wanted) {
    const float* ours = logits.data() + row.at("position").to_number<size_t>() * vocabulary;
    std::vector<float> listed;
    for (const size_t id : numbers<size_t>(row.at("ids"))) listed.push_back(ours[id]);
    const double distance = relative_l2(listed, numbers<float>(row.at("values")));
    sum += distance;
    largest = std::max(largest, distance);
  }
  sum /= static_cast<double>(wanted.size());
  printf("%s: relative L2 %.1e on average, %.1e at most\n", what, sum, largest);
  EXPECT_LE(largest, each) << what;
  EXPECT_LE(sum, mean) << what;
}

TEST_F(FlashWidthCudaTest, MeetsTheGoldens) {
  const json::value golden = json::parse(test::read_file(DS4_SOURCE_DIR "/tests/data/flash-width.json"));
  const auto count = [&](const char* name) { return golden.at("counts").at(name).to_number<uint32_t>(); };
  const Model model(
      {count("layers"), count("experts"), count("experts_used"), count("index_top_k"), count("vocabulary")});
  const auto tokens = numbers<Token>(golden.at("tokens"));
  const json::array& wanted = golden.at("modes").at("rounded").at("logits").as_array();
  const auto whole = model.prefill(tokens, {tokens.size()});
  check_golden("prefill", whole, model.vocabulary(), wanted, 1e-2, 5e-3);
  check_golden("decode", model.decode(tokens), model.vocabulary(), wanted, 2e-2, 1e-2);
  EXPECT_EQ(model.prefill(tokens, {100, 17, tokens.size() - 117}), whole);
}

// Tokens near a tie in a router or at the indexer's cut may go another way, and are then some percent away
// (docs/model.md §16); all others agree.
TEST_F(FlashWidthCudaTest, PrefillAgreesWithDecoding) {
  const Model model({4, 8, 3, 512, 512});
  const auto tokens = testing::flash_width_tokens(2500, 512);
  const auto prefilled = model.prefill(tokens, {tokens.size()}), decoded = model.decode(tokens);
  std::vector<double> distances;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const size_t at = t * model.vocabulary();
    distances.push_back(relative_l2(std::span(prefilled).subspan(at, model.vocabulary()),
                                    std::span(decoded).subspan(at, model.vocabulary())));
  }
  std::sort(distances.begin(), distances.end());
  const double median = distances[distances.size() / 2], most = distances[distances.size() * 95 / 100];
  printf("relative L2: median %.1e, 95 %% within %.1e, largest %.1e\n", median, most, distances.back());
  EXPECT_LE(median, 1.5e-2);
  EXPECT_LE(most, 3e-2);
  EXPECT_LE(distances.back(), 0.3);
  EXPECT_EQ(model.prefill(tokens, {1001, 1200, 299}), prefilled);
}

}  // namespace
}  // namespace ds4
