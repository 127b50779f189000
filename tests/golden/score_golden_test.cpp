// Session::score() on the CPU against an independent implementation.
#include "support/score_golden.hpp"

namespace ds4 {
namespace {

Engine open(const std::string& path) {
  return testing::must(Engine::open(
      {.model_path = path, .backend = BackendChoice::cpu, .threads = 2, .exact_activations = true}));
}

TEST(ScoreGoldenTest, RoundedF32) {
  test::check_scores(open(DS4_NANO_DIR "/nano-f32.gguf"), {1e-3, 0.05});
}
TEST(ScoreGoldenTest, BundledQ8) {
  test::check_scores(open(DS4_SOURCE_DIR "/models/nano/nano.gguf"), {3e-3, 0.3});
}

}  // namespace
}  // namespace ds4
