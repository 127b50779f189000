// What the backend refuses, and what it gives back.
#include "backend/cpu/cpu_backend.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "support/loaded_model.hpp"
#include "support/tiny_model.hpp"

namespace ds4::cpu {
namespace {

using testing::must;

class CpuBackendTest : public ::testing::Test {
 protected:
  static std::string write(uint64_t max_context) {
    const std::string path =
        ::testing::TempDir() + "backend-" + std::to_string(getpid()) + "-" + std::to_string(max_context);
    testing::TinyModelOptions options;
    options.shape.max_context = max_context;
    must(testing::write_tiny_model(path, options));
    return path;
  }
  ~CpuBackendTest() override { std::remove(path_.c_str()); }

  const std::string path_ = write(20);
  const testing::LoadedModel model_{path_};
};

TEST_F(CpuBackendTest, TokensBeyondTheModelsContextAreRefusedAndChangeNothing) {
  const backend::Backend& backend = *model_.backend;
  auto sequence = model_.sequence();
  const std::vector<Token> tokens(21, 7);
  const auto refused = [&](const Result<void>& result) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::context_full);
    EXPECT_NE(result.error().message.find("more than the 20"), std::string::npos) << result.error().message;
  };
  refused(backend.prefill(*sequence, tokens, 0, {}, {}));
  EXPECT_EQ(sequence->position(), 0u);
  const auto logits = model_.prefill(*sequence, std::span(tokens).first(18));
  refused(backend.prefill(*sequence, std::span(tokens).first(3), 0, {}, {}));
  refused(backend.verify(*sequence, std::span(tokens).first(3)));
  EXPECT_EQ(sequence->position(), 18u);
  std::vector<float> kept(logits.size());
  must(backend.logits(*sequence, kept));
  EXPECT_EQ(kept, logits);

  must(backend.verify(*sequence, std::span(tokens).first(2)));
  auto other = model_.sequence();
  const backend::DecodeRow rows[] = {{other.get(), 7}, {sequence.get(), 7}};
  refused(backend.decode(rows, {}));
  EXPECT_EQ(other->position(), 0u);
  EXPECT_EQ(sequence->position(), 20u);
}

TEST_F(CpuBackendTest, ClearGivesUpRowsAndLogits) {
  auto sequence = model_.sequence();
  const std::vector<Token> tokens(20, 7);
  const auto logits = model_.prefill(*sequence, tokens);
  const size_t full = sequence->state_bytes();
  sequence->clear();
  EXPECT_EQ(sequence->position(), 0u);
  EXPECT_EQ(sequence->logit_summary(), nullptr);
  // At least the logits and a page of 64 rows of a layer that compresses four tokens into one.
  EXPECT_LE(sequence->state_bytes() + logits.size() * sizeof(float) + 64 * 512, full);
  EXPECT_EQ(model_.prefill(*sequence, tokens), logits);
}

}  // namespace
}  // namespace ds4::cpu
