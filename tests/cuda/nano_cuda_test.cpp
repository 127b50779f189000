// The nano model on a GPU: against the reference values, against the CPU, and against itself along other
// paths.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.hpp"
#include "nano_pair.hpp"
#include "support/damaged_model.hpp"
#include "support/nano_goldens.hpp"

namespace ds4 {
namespace {

using test::nano_goldens;
using testing::best;
using testing::bundled;
using testing::margin;
using testing::must;
using testing::NanoPair;
using testing::random_tokens;
using testing::relative_l2;

class NanoCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda::available(&why)) GTEST_SKIP() << why;
  }

  using Pair = NanoPair;

  static void check_goldens(const Pair& model, double bound) {
    const size_t vocabulary = model.cpu.shape.vocabulary;
    size_t equal = 0, listed = 0;
    for (const auto& golden : nano_goldens("qat")) {
      const auto ids = golden.ids();
      const size_t rows = std::min<size_t>(16, ids.size());
      auto state = model.sequence();
      auto logits = model.prefill(*state, ids, rows);
      std::vector<float> last(logits.end() - static_cast<ptrdiff_t>(vocabulary), logits.end());
      const double distance = relative_l2(last, golden.floats("logits_last"));
      printf("%-16s relative L2 %.2e\n", golden.id().c_str(), distance);
      EXPECT_LE(distance, bound) << golden.id();
      const auto top = golden.ints("top20_ids");
      const auto scores = golden.floats("top20_logprobs");
      for (size_t row = 0; row < rows; ++row) {
        const bool same =
            best({logits.data() + row * vocabulary, vocabulary}) == static_cast<size_t>(top[row * 20]);
        ++listed;
        equal += same;
        EXPECT_TRUE(same || scores[row * 20] - scores[row * 20 + 1] <= 0.5f)
            << golden.id() << ", row " << row;
      }
      for (const Token expected : golden.greedy()) {
        if (best(last) != static_cast<size_t>(expected)) {
          EXPECT_LE(margin(last), 0.5f) << golden.id();
          break;
        }
        last = model.decode(*state, expected);
      }
    }
    printf("top-1 equal at %zu of %zu listed positions\n", equal, listed);
  }
};

// Here the weights are rounded too, which alone moves the logits of the shortest prompt by a tenth.
TEST_F(NanoCudaTest, BundledQ8MeetsTheGoldens) {
  check_goldens(Pair(bundled), 0.15);
}

TEST_F(NanoCudaTest, Bf16MeetsTheGoldens) {
  check_goldens(Pair(DS4_NANO_DIR "/nano-bf16.gguf"), 3e-2);
}

TEST_F(NanoCudaTest, AgreesWithTheCpu) {
  const Pair model(bundled);
  const auto tokens = random_tokens(700, 1);
  for (const size_t length :
       {1ul, 3ul, 4ul, 5ul, 16ul, 17ul, 127ul, 128ul, 129ul, 255ul, 256ul, 257ul, 513ul, 700ul}) {
    auto gpu = model.sequence();
    auto cpu = model.cpu.sequence();
    const auto ours = model.prefill(*gpu, {tokens.data(), length});
    const auto theirs = model.cpu.prefill(*cpu, {tokens.data(), length});
    printf("%4zu tokens: relative L2 %.2e\n", length, relative_l2(ours, theirs));
    EXPECT_LE(relative_l2(ours, theirs), 1e-1) << length;
    EXPECT_TRUE(best(ours) == best(theirs) || margin(theirs) <= 0.5f) << length;
  }
}

// Up to 16 tokens take the kernels of decoding, more take kernels of their own: equal bits within each, equal
// up to rounding between them.
TEST_F(NanoCudaTest, PathsAgree) {
  const Pair model(bundled);
  const auto tokens = random_tokens(600, 2);
  const auto pieces = [&](const std::vector<size_t>& lengths) {
    auto state = model.sequence();
    std::vector<float> logits;
    size_t begin = 0;
    for (const size_t length : lengths) {
      logits = model.prefill(*state, {tokens.data() + begin, length});
      begin += length;
    }
    EXPECT_EQ(begin, 520u);
    for (size_t i = 520; i < 560; ++i) logits = model.decode(*state, tokens[i]);
    return logits;
  };
  const auto single = pieces(std::vector<size_t>(520, 1));
  EXPECT_EQ(pieces(std::vector<size_t>(65, 8)), single);
  EXPECT_EQ(pieces(std::vector<size_t>(104, 5)), single);
  const auto whole = pieces({520});
  for (const auto& cuts : std::vector<std::vector<size_t>>{
           {256, 264}, {257, 263}, {17, 503}, {18, 19, 21, 63, 64, 65, 127, 143}, {129, 255, 136}}) {
    EXPECT_EQ(pieces(cuts), whole) << cuts.front() << " tokens first";
  }
  for (const auto& logits : {whole, pieces({1, 3, 4, 5, 127, 128, 129, 123}), pieces({256, 256, 8})}) {
    printf("relative L2 to one token at a time: %.2e\n", relative_l2(logits, single));
    EXPECT_LE(relative_l2(logits, single), 0.1);
    EXPECT_TRUE(best(logits) == best(single) || margin(single) <= 0.5f);
  }
}

// More than one chunk, far beyond what the indexer keeps.
TEST_F(NanoCudaTest, LongPromptsAgreeWithTheCpu) {
  const Pair model(bundled);
  const auto tokens = random_tokens(5100, 4);
  auto gpu = model.sequence(), cut = model.sequence();
  auto cpu = model.cpu.sequence();
  const auto ours = model.prefill(*gpu, {tokens.data(), 5000}, 20);
  const auto theirs = model.cpu.prefill(*cpu, {tokens.data(), 5000});
  const std::span<const float> last(ours.end() - static_cast<ptrdiff_t>(theirs.size()), ours.end());
  printf("5000 tokens: relative L2 %.2e\n", relative_l2(last, theirs));
  EXPECT_LE(relative_l2(last, theirs), 1e-1);
  EXPECT_TRUE(best(last) == best(theirs) || margin(theirs) <= 0.5f);
  model.prefill(*cut, {tokens.data(), 1777});
  model.prefill(*cut, {tokens.data() + 1777, 3000});
  EXPECT_EQ(model.prefill(*cut, {tokens.data() + 4777, 223}, 20), ours);
  for (size_t i = 5000; i < 5100; ++i) {
    ASSERT_EQ(model.decode(*gpu, tokens[i]), model.decode(*cut, tokens[i])) << "after " << i << " tokens";
  }
}

TEST_F(NanoCudaTest, SameBitsAgain) {
  const Pair model(bundled);
  const auto tokens = random_tokens(300, 3);
  auto a = model.sequence(), b = model.sequence();
  EXPECT_EQ(model.prefill(*a, tokens, 300), model.prefill(*b, tokens, 300));
}

TEST_F(NanoCudaTest, BatchPlaceDoesNotMatter) {
  const Pair model(bundled);
  const size_t vocabulary = model.cpu.shape.vocabulary;
  std::vector<std::unique_ptr<backend::Sequence>> together, alone;
  for (size_t i = 0; i < backend::max_decode_rows; ++i) {
    const auto prompt = random_tokens(1 + 41 * i, 11 + i);
    together.push_back(model.sequence());
    alone.push_back(model.sequence());
    model.prefill(*together.back(), prompt);
    model.prefill(*alone.back(), prompt);
  }
  std::vector<float> logits(together.size() * vocabulary);
  for (size_t step = 0; step < 8; ++step) {
    const auto tokens = random_tokens(together.size(), 100 + step);
    std::vector<backend::DecodeRow> rows;
    rows.reserve(together.size());
    for (size_t i = 0; i < together.size(); ++i) rows.push_back({together[i].get(), tokens[i]});
    must(model.gpu->decode(rows, logits));
    for (size_t i = 0; i < together.size(); ++i) {
      const auto expected = model.decode(*alone[i], tokens[i]);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                             logits.begin() + static_cast<ptrdiff_t>(i * vocabulary)))
          << "row " << i << ", step " << step;
    }
  }
}

TEST_F(NanoCudaTest, RestoredSnapshotContinuesExactly) {
  const Pair model(bundled);
  const auto tokens = random_tokens(600, 5);
  for (const size_t length : {1ul, 3ul, 4ul, 127ul, 128ul, 129ul, 300ul, 511ul}) {
    auto sequence = model.sequence();
    model.prefill(*sequence, {tokens.data(), length});
    const auto image = must(model.gpu->snapshot(*sequence));
    std::vector<std::vector<float>> expected;
    for (size_t i = length; i < length + 70; ++i) expected.push_back(model.decode(*sequence, tokens[i]));
    auto restored = model.sequence();
    for (int round = 0; round < 2; ++round) {
      must(model.gpu->restore(*restored, *image));
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(model.decode(*restored, tokens[length + i]), expected[i]) << length << " + " << i;
      }
    }
  }
}

// What a call left behind on the device is what it would have written to the host, whatever ran since.
TEST_F(NanoCudaTest, LogitsStayWithTheirSequence) {
  const Pair model(bundled);
  const size_t vocabulary = model.cpu.shape.vocabulary;
  const auto kept = [&](const backend::Sequence& sequence) {
    std::vector<float> logits(vocabulary);
    must(model.gpu->logits(sequence, logits));
    return logits;
  };
  const auto tokens = random_tokens(400, 21);
  auto a = model.sequence(), b = model.sequence(), restored = model.sequence();
  std::vector<float> none(vocabulary);
  EXPECT_EQ(model.gpu->logits(*a, none).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(model.gpu->sample(*a, {}, 0.5f, 0).error().code, ErrorCode::invalid_argument);
  must(model.gpu->prefill(*a, {tokens.data(), 300}, 0, {}, {}));
  const auto after_prompt = kept(*a);
  EXPECT_EQ(after_prompt, model.prefill(*b, {tokens.data(), 300}));
  EXPECT_EQ(kept(*b), after_prompt);
  const auto image = must(model.gpu->snapshot(*a));
  std::vector<std::vector<float>> expected;
  for (size_t i = 300; i < 310; ++i) expected.push_back(model.decode(*b, tokens[i]));
  EXPECT_EQ(kept(*a), after_prompt);
  for (size_t i = 300; i < 310; ++i) {
    const std::vector<backend::DecodeRow> rows{{a.get(), tokens[i]}, {b.get(), tokens[i + 50]}};
    must(model.gpu->decode(rows, {}));
    EXPECT_EQ(kept(*a), expected[i - 300]);
    EXPECT_NE(kept(*b), expected[i - 300]);
  }
  must(model.gpu->restore(*restored, *image));
  EXPECT_EQ(kept(*restored), after_prompt);
  must(model.gpu->restore(*a, *image));
  model.decode(*a, tokens[300]);
  EXPECT_EQ(kept(*a), expected[0]);
  EXPECT_EQ(kept(*restored), after_prompt);
}

TEST_F(NanoCudaTest, SamplesTheTokensOfTheCpuSampler) {
  const Pair model(bundled);
  auto sequence = model.sequence();
  std::vector<float> logits = model.prefill(*sequence, random_tokens(50, 22));
  const SamplingParams params[] = {{.temperature = 0},
                                   {},
                                   {.min_p = 0},
                                   {.temperature = 3, .top_p = 0.9f, .min_p = 0},
                                   {.top_k = 40, .top_p = 0.9f}};
  for (uint64_t step = 0; step < 100; ++step) {
    for (const SamplingParams& p : params) {
      Rng rng(step + 1), other(step + 1);
      const float uniform = p.temperature > 0 ? rng.uniform() : 0.0f;
      EXPECT_EQ(must(model.gpu->sample(*sequence, p, uniform, 0)), sample(logits, p, other)) << step;
    }
    logits = model.decode(*sequence, must(model.gpu->sample(*sequence, {}, Rng(step + 1).uniform(), 0)));
  }
}

TEST_F(NanoCudaTest, NanIsReportedWhereItIsComputed) {
  constexpr Token poison = 77;
  const testing::DamagedModel damaged(poison);
  const Pair model(damaged.path());
  auto tokens = random_tokens(100, 23);
  std::replace(tokens.begin(), tokens.end(), poison, poison + 1);
  for (const size_t length : {1ul, 16ul, 100ul}) {  // kernels for one row, for few, for many
    auto sequence = model.sequence(), other = model.sequence();
    must(model.gpu->prefill(*sequence, {tokens.data(), length}, 0, {}, {}));
    must(model.gpu->prefill(*other, {tokens.data(), length}, 0, {}, {}));
    EXPECT_TRUE(model.gpu->sample(*sequence, {}, 0.5f, 0));
    const std::vector<backend::DecodeRow> rows{{sequence.get(), poison}, {other.get(), 5}};
    must(model.gpu->decode(rows, {}));
    EXPECT_EQ(model.gpu->sample(*sequence, {}, 0.5f, 0).error().code, ErrorCode::not_finite);
    EXPECT_EQ(model.gpu->sample(*sequence, {.temperature = 0}, 0, 0).error().code, ErrorCode::not_finite);
    EXPECT_TRUE(model.gpu->sample(*other, {}, 0.5f, 0));
    auto bad = std::vector<Token>(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(length));
    bad.back() = poison;
    sequence->clear();
    must(model.gpu->prefill(*sequence, bad, 0, {}, {}));
    EXPECT_EQ(model.gpu->sample(*sequence, {}, 0.5f, 0).error().code, ErrorCode::not_finite);
  }
}

TEST_F(NanoCudaTest, CancelledPrefillLeavesTheSequenceAsItWas) {
  const Pair model(bundled);
  const auto tokens = random_tokens(5000, 13);
  auto sequence = model.sequence(), untouched = model.sequence();
  model.prefill(*sequence, {tokens.data(), 200});
  model.prefill(*untouched, {tokens.data(), 200});
  const auto kept = must(model.gpu->snapshot(*sequence));
  for (const int stop_after : {0, 1, 3, 6, 9}) {  // the last two in the second chunk
    int polls = 0;
    double progress = 0;
    backend::EvalControl control;
    control.cancelled = [&] { return polls++ == stop_after; };
    control.on_progress = [&](double done) {
      EXPECT_GE(done, progress);
      progress = done;
    };
    std::vector<float> logits(model.cpu.shape.vocabulary);
    const auto done = model.gpu->prefill(*sequence, {tokens.data() + 200, 4800}, 1, logits, control);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::cancelled);
    ASSERT_EQ(sequence->position(), 200u);
    EXPECT_LT(progress, 1.0);
  }
  auto restored = model.sequence();
  must(model.gpu->restore(*restored, *kept));
  const auto expected = model.prefill(*untouched, {tokens.data() + 200, 300});
  EXPECT_EQ(model.prefill(*sequence, {tokens.data() + 200, 300}), expected);
  EXPECT_EQ(model.prefill(*restored, {tokens.data() + 200, 300}), expected);
}

// A long turn and a batch, also for runs under compute-sanitizer.
TEST_F(NanoCudaTest, ALongTurnAndABatch) {
  const Pair model(bundled);
  const auto tokens = random_tokens(900, 21);
  std::vector<std::unique_ptr<backend::Sequence>> together, alone;
  for (size_t i = 0; i < 5; ++i) {
    together.push_back(model.sequence());
    alone.push_back(model.sequence());
    const std::span<const Token> prompt(tokens.data(), 700 - 150 * i);
    model.prefill(*together.back(), prompt);
    model.prefill(*alone.back(), prompt);
  }
  for (size_t step = 0; step < 200; ++step) {
    const auto logits = model.decode(*alone[0], tokens[700 + step]);
    ASSERT_TRUE(std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) << step;
  }
  alone[0] = model.sequence();
  model.prefill(*alone[0], {tokens.data(), 700});
  const uint32_t vocabulary = model.cpu.shape.vocabulary;
  std::vector<float> logits(together.size() * vocabulary);
  for (size_t step = 0; step < 4; ++step) {
    std::vector<backend::DecodeRow> rows;
    for (size_t i = 0; i < together.size(); ++i) rows.push_back({together[i].get(), tokens[step + i]});
    must(model.gpu->decode(rows, logits));
    for (size_t i = 0; i < together.size(); ++i) {
      const auto expected = model.decode(*alone[i], tokens[step + i]);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                             logits.begin() + static_cast<ptrdiff_t>(i * vocabulary)))
          << "row " << i << ", step " << step;
    }
  }
}

TEST_F(NanoCudaTest, BadCallsAreErrors) {
  const Pair model(bundled);
  auto sequence = model.sequence();
  std::vector<float> logits(4096);
  const Token bad = 4096, good = 5;
  EXPECT_EQ(model.gpu->prefill(*sequence, {&bad, 1}, 1, logits, {}).error().code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(model.gpu->prefill(*sequence, {}, 0, logits, {}).error().code, ErrorCode::invalid_argument);
  const std::vector<backend::DecodeRow> twice{{sequence.get(), good}, {sequence.get(), good}};
  EXPECT_EQ(model.gpu->decode(twice, logits).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(sequence->position(), 0u);
}

}  // namespace
}  // namespace ds4
