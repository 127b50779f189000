// Every way to bring a sequence to the same tokens, on a GPU: one token at a time and as a prompt, a prompt
// cut anywhere, a restored snapshot, any batch, and the same again.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nano_pair.hpp"

namespace ds4 {
namespace {

using testing::best;
using testing::bundled;
using testing::margin;
using testing::must;
using testing::NanoPair;
using testing::random_tokens;
using testing::relative_l2;

constexpr size_t chunk = 4096;  // tokens of a prompt that are evaluated together
constexpr std::array<size_t, 25> lengths{1,    3,    4,    5,    127,  128,  129,  255,  256,
                                         257,  511,  512,  513,  1023, 1024, 1025, 2047, 2048,
                                         2049, 4095, 4096, 4097, 4098, 4099, 4100};
constexpr std::array<size_t, 10> cuts{1, 3, 4, 5, 127, 128, 129, chunk - 1, chunk, chunk + 1};

// Decoding rounds activations to 8 bits, prefill to F16: that far apart may their logits be. At 3 in 100
// positions of random tokens rounding reaches further, since it sends a token to another expert. The tokens
// of these tests are such that at every compared position the CPU's logits with 8-bit and with F32
// activations differ by less than half of this.
constexpr double rounding_bound = 0.1;
// Where the two best tokens are further apart than this, rounding must not exchange them.
constexpr float safe_margin = 0.5f;

// Up to 16 tokens, also at the end of a longer prompt, are evaluated as decoding does it.
bool ends_as_decoding(size_t tokens) {
  return (tokens - 1) % chunk < backend::max_decode_rows;
}

class NanoCudaPathsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (cuda::available(nullptr)) model_ = std::make_unique<NanoPair>(bundled);
  }
  static void TearDownTestSuite() { model_.reset(); }
  void SetUp() override {
    std::string why;
    if (!cuda::available(&why)) GTEST_SKIP() << why;
  }

  static const NanoPair& model() { return *model_; }
  static size_t vocabulary() { return model().cpu.shape.vocabulary; }

  static void expect_close(std::span<const float> ours, std::span<const float> theirs,
                           const std::string& what) {
    EXPECT_LE(relative_l2(ours, theirs), rounding_bound) << what;
    EXPECT_TRUE(best(ours) == best(theirs) || margin(theirs) <= safe_margin) << what;
  }

 private:
  static inline std::unique_ptr<NanoPair> model_;
};

TEST_F(NanoCudaPathsTest, DecodeAndPrefillAgreeAtEveryLength) {
  const auto tokens = random_tokens(lengths.back(), 54);
  auto cpu = model().cpu.sequence();
  const auto all = model().cpu.prefill(*cpu, tokens, tokens.size());
  auto single = model().sequence();
  double worst = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool listed = std::find(lengths.begin(), lengths.end(), i + 1) != lengths.end();
    const backend::DecodeRow row{single.get(), tokens[i]};
    std::vector<float> decoded(listed ? vocabulary() : 0);
    must(model().gpu->decode({&row, 1}, decoded));
    if (!listed) continue;
    const std::string what = std::to_string(i + 1) + " tokens";
    auto whole = model().sequence();
    const auto prefilled = model().prefill(*whole, {tokens.data(), i + 1});
    ASSERT_EQ(whole->position(), i + 1);
    const std::span<const float> theirs(all.data() + i * vocabulary(), vocabulary());
    worst = std::max(worst, relative_l2(prefilled, decoded));
    EXPECT_LE(relative_l2(prefilled, decoded), rounding_bound) << what;
    expect_close(prefilled, theirs, what + ", prefill and CPU");
    expect_close(decoded, theirs, what + ", decoding and CPU");
    EXPECT_TRUE(i >= backend::max_decode_rows || prefilled == decoded) << what;
  }
  printf("prefill and decoding: relative L2 up to %.2e\n", worst);
}

// Equal bits where both sides take the same kernels, else equal up to their rounding; and the token after the
// prompt likewise.
TEST_F(NanoCudaPathsTest, PrefillMayBeCutAnywhere) {
  const auto tokens = random_tokens(chunk + 201, 57);
  for (const size_t length : {130ul, 257ul, 513ul, 1025ul, 2049ul, chunk + 17, chunk + 200}) {
    const std::span<const Token> prompt(tokens.data(), length);
    auto whole = model().sequence();
    const auto expected = model().prefill(*whole, prompt);
    const auto follow = model().decode(*whole, tokens[length]);
    for (const size_t cut : cuts) {
      if (cut >= length) continue;
      const std::string what = std::to_string(length) + " tokens, cut after " + std::to_string(cut);
      auto sequence = model().sequence();
      must(model().gpu->prefill(*sequence, prompt.first(cut), 0, {}, {}));
      const auto logits = model().prefill(*sequence, prompt.subspan(cut));
      const auto next = model().decode(*sequence, tokens[length]);
      if (ends_as_decoding(cut) || ends_as_decoding(length - cut)) {
        expect_close(logits, expected, what);
        expect_close(next, follow, what + ", next token");
      } else {
        EXPECT_EQ(logits, expected) << what;
        EXPECT_EQ(next, follow) << what << ", next token";
      }
    }
  }
}

// At ends of windows, of pages and of a chunk; into a sequence that held more tokens; continued as a prompt
// and token by token, twice, since the image must survive what its first user appends.
TEST_F(NanoCudaPathsTest, RestoredSnapshotContinuesExactly) {
  const auto tokens = random_tokens(chunk + 200, 33), other = random_tokens(chunk + 300, 34);
  auto restored = model().sequence();
  must(model().gpu->prefill(*restored, other, 0, {}, {}));
  for (const size_t length : {1ul, 3ul, 127ul, 128ul, 256ul, 1025ul, 2048ul, chunk - 1, chunk, chunk + 1}) {
    auto sequence = model().sequence();
    const auto last = model().prefill(*sequence, {tokens.data(), length});
    const auto image = must(model().gpu->snapshot(*sequence));
    const std::span<const Token> more(tokens.data() + length, 40);
    const auto expected = model().prefill(*sequence, more, more.size());
    std::vector<std::vector<float>> steps;
    for (size_t i = 0; i < 20; ++i) steps.push_back(model().decode(*sequence, tokens[i]));
    for (int round = 0; round < 2; ++round) {
      must(model().gpu->restore(*restored, *image));
      ASSERT_EQ(restored->position(), length);
      std::vector<float> kept(vocabulary());
      must(model().gpu->logits(*restored, kept));
      EXPECT_EQ(kept, last) << length;
      EXPECT_EQ(model().prefill(*restored, more, more.size()), expected) << length;
      for (size_t i = 0; i < steps.size(); ++i) {
        ASSERT_EQ(model().decode(*restored, tokens[i]), steps[i]) << length << " + 40 + " << i;
      }
    }
  }
}

// Batches of every size and composition. Some sequences see more compressed rows than the indexer keeps (from
// 256 tokens on), some none, some begin to within the test.
TEST_F(NanoCudaPathsTest, BatchDoesNotMatter) {
  constexpr std::array<size_t, backend::max_decode_rows> prompts{1,   2,   3,   4,   5,   60,  126, 127,
                                                                 128, 129, 250, 255, 256, 300, 511, 1030};
  std::vector<std::unique_ptr<backend::Sequence>> together, alone;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto prompt = random_tokens(prompts[i], 41 + i);
    together.push_back(model().sequence());
    alone.push_back(model().sequence());
    must(model().gpu->prefill(*together.back(), prompt, 0, {}, {}));
    must(model().gpu->prefill(*alone.back(), prompt, 0, {}, {}));
  }
  size_t first = 0;
  for (size_t step = 0; step < 48; ++step) {
    const size_t count = 1 + step % prompts.size();
    const auto tokens = random_tokens(count, 100 + step);
    std::vector<backend::DecodeRow> rows;
    std::vector<size_t> which;
    for (size_t row = 0; row < count; ++row) {
      which.push_back((first + 5 * row) % prompts.size());  // 5 and 16 have no common divisor
      rows.push_back({together[which.back()].get(), tokens[row]});
    }
    first += 3;
    std::vector<float> logits(count * vocabulary());
    must(model().gpu->decode(rows, logits));
    for (size_t row = 0; row < count; ++row) {
      const auto expected = model().decode(*alone[which[row]], tokens[row]);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                             logits.begin() + static_cast<ptrdiff_t>(row * vocabulary())))
          << "step " << step << ", row " << row << " of " << count << ", prompt of " << prompts[which[row]];
    }
  }
}

// A prompt does not notice what the device did before, for whom, or in which backend.
TEST_F(NanoCudaPathsTest, SameBitsAgain) {
  const auto tokens = random_tokens(chunk + 400, 35);
  const auto run = [&](const NanoPair& pair) {
    auto sequence = pair.sequence();
    std::vector<std::vector<float>> logits{pair.prefill(*sequence, {tokens.data(), chunk + 300}, 32)};
    for (size_t i = chunk + 300; i < tokens.size(); ++i) logits.push_back(pair.decode(*sequence, tokens[i]));
    return logits;
  };
  const auto expected = run(model());
  for (int round = 0; round < 2; ++round) {
    auto other = model().sequence();
    must(model().gpu->prefill(*other, random_tokens(1000 + 777 * static_cast<size_t>(round), 36), 0, {}, {}));
    EXPECT_TRUE(run(model()) == expected) << "run " << round + 2;
  }
  EXPECT_TRUE(run(NanoPair(bundled)) == expected) << "another backend";
}

}  // namespace
}  // namespace ds4
