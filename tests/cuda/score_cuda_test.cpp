// Session::score() on a GPU against an independent implementation, and from run to run.
#include "backend/cuda/cuda_backend.hpp"
#include "support/score_golden.hpp"

namespace ds4 {
namespace {

class ScoreCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda::available(&why)) GTEST_SKIP() << why;
  }
  static Engine open() {
    return testing::must(Engine::open(
        {.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf", .backend = BackendChoice::cuda}));
  }
};

TEST_F(ScoreCudaTest, IsThatOfTheIndependentImplementation) {
  test::check_scores(open(), {5e-3, 0.4});
}

TEST_F(ScoreCudaTest, IsTheSameAgain) {
  const auto ids = test::nano_goldens("qat").back().ids();
  const Engine engine = open();
  std::vector<TokenScore> scores[2];
  for (auto& run : scores) {
    Session session = testing::must(engine.create_session(ids.size()));
    testing::must(session.sync(std::span(ids).first(1)));
    run = testing::must(session.score(std::span(ids).subspan(1)));
  }
  ASSERT_EQ(scores[0].size(), scores[1].size());
  for (size_t i = 0; i < scores[0].size(); ++i) {
    EXPECT_EQ(scores[0][i].logprob, scores[1][i].logprob) << i;
    EXPECT_EQ(scores[0][i].likeliest, scores[1][i].likeliest) << i;
  }
}

}  // namespace
}  // namespace ds4
