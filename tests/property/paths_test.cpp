// Every way to bring a sequence to the same tokens gives the same bits: one token at a time, one prefill,
// prefill cut anywhere, any number of threads, any place in a decode batch, a restored snapshot.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "support/loaded_model.hpp"
#include "support/tiny_model.hpp"

namespace ds4 {
namespace {

using format::TensorType;
using testing::LoadedModel;
using testing::must;

constexpr size_t prefill_chunk = 4096;
constexpr std::array<size_t, 25> lengths{1,    3,    4,    5,    127,  128,  129,  255,  256,
                                         257,  511,  512,  513,  1023, 1024, 1025, 2047, 2048,
                                         2049, 4095, 4096, 4097, 4098, 4099, 4100};
constexpr std::array<size_t, 7> cuts{1, 3, 4, 5, 127, 128, 129};

std::vector<Token> random_tokens(size_t count, uint32_t vocabulary, uint64_t seed = 1) {
  std::vector<Token> tokens(count);
  for (Token& token : tokens) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    token = static_cast<Token>((seed >> 33) % vocabulary);
  }
  return tokens;
}

// Prefill of a prompt in chunks that end on multiples of `chunk`, as a session does it.
std::vector<float> prefill_in_chunks(const LoadedModel& model, backend::Sequence& sequence,
                                     std::span<const Token> tokens, size_t chunk) {
  std::vector<float> logits;
  for (size_t begin = 0; begin < tokens.size();) {
    const size_t position = sequence.position();
    const size_t n = std::min(tokens.size() - begin, (position / chunk + 1) * chunk - position);
    logits = model.prefill(sequence, tokens.subspan(begin, n));
    begin += n;
  }
  return logits;
}

class NanoPathsTest : public ::testing::Test {
 protected:
  static std::unique_ptr<LoadedModel> open(unsigned threads) {
    cpu::CpuOptions options;
    options.threads = threads;
    return std::make_unique<LoadedModel>(DS4_SOURCE_DIR "/models/nano/nano.gguf",
                                         DS4_SOURCE_DIR "/models/nano/nano-mtp.gguf", options);
  }

  // Logits after each of the listed lengths, one token at a time.
  static std::map<size_t, std::vector<float>> decode_all(const LoadedModel& model,
                                                         std::span<const Token> tokens) {
    std::map<size_t, std::vector<float>> result;
    auto sequence = model.sequence();
    for (size_t i = 0; i < tokens.size(); ++i) {
      auto logits = model.decode(*sequence, tokens[i]);
      if (std::find(lengths.begin(), lengths.end(), i + 1) != lengths.end())
        result[i + 1] = std::move(logits);
    }
    return result;
  }
};

TEST_F(NanoPathsTest, DecodeEqualsPrefillAtEveryLength) {
  const auto model = open(2);
  const auto tokens = random_tokens(4100, model->shape.vocabulary);
  const auto expected = decode_all(*model, tokens);
  for (const auto& [length, logits] : expected) {
    auto sequence = model->sequence();
    EXPECT_EQ(prefill_in_chunks(*model, *sequence, {tokens.data(), length}, prefill_chunk), logits) << length;
  }
}

TEST_F(NanoPathsTest, PrefillMayBeCutAnywhere) {
  const auto model = open(2);
  const size_t chunk = 512;
  const auto tokens = random_tokens(2049, model->shape.vocabulary, 7);
  std::vector<size_t> places(cuts.begin(), cuts.end());
  places.insert(places.end(), {chunk - 1, chunk, chunk + 1});
  for (const size_t length : {130ul, 257ul, 513ul, 1025ul, 2049ul}) {
    const std::span<const Token> prompt(tokens.data(), length);
    auto whole = model->sequence();
    const auto expected = model->prefill(*whole, prompt);
    const auto follow = model->decode(*whole, tokens[0]);
    for (const size_t cut : places) {
      if (cut >= length) continue;
      auto sequence = model->sequence();
      prefill_in_chunks(*model, *sequence, prompt.first(cut), chunk);
      EXPECT_EQ(prefill_in_chunks(*model, *sequence, prompt.subspan(cut), chunk), expected)
          << length << " at " << cut;
      EXPECT_EQ(model->decode(*sequence, tokens[0]), follow) << length << " at " << cut;
    }
  }
}

TEST_F(NanoPathsTest, ThreadsDoNotMatter) {
  const auto one = open(1), three = open(3);
  const auto tokens = random_tokens(700, one->shape.vocabulary, 3);
  auto a = one->sequence(), b = three->sequence();
  EXPECT_EQ(one->prefill(*a, tokens, 700), three->prefill(*b, tokens, 700));
  for (size_t i = 0; i < 40; ++i) ASSERT_EQ(one->decode(*a, tokens[i]), three->decode(*b, tokens[i])) << i;
}

TEST_F(NanoPathsTest, BatchPlaceDoesNotMatter) {
  const auto model = open(2);
  const uint32_t vocabulary = model->shape.vocabulary;
  std::vector<std::unique_ptr<backend::Sequence>> together, alone;
  for (size_t i = 0; i < backend::max_decode_rows; ++i) {
    const auto prompt = random_tokens(1 + 37 * i, vocabulary, 11 + i);
    together.push_back(model->sequence());
    alone.push_back(model->sequence());
    model->prefill(*together.back(), prompt);
    model->prefill(*alone.back(), prompt);
  }
  std::vector<float> logits(together.size() * vocabulary);
  for (size_t step = 0; step < 10; ++step) {
    const auto tokens = random_tokens(together.size(), vocabulary, 100 + step);
    std::vector<backend::DecodeRow> rows;
    for (size_t i = 0; i < together.size(); ++i) rows.push_back({together[i].get(), tokens[i]});
    must(model->backend->decode(rows, logits));
    for (size_t i = 0; i < together.size(); ++i) {
      const auto expected = model->decode(*alone[i], tokens[i]);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                             logits.begin() + static_cast<ptrdiff_t>(i * vocabulary)))
          << "row " << i << ", step " << step;
    }
  }
}

TEST_F(NanoPathsTest, RestoredSnapshotContinuesExactly) {
  const auto model = open(2);
  const auto tokens = random_tokens(600, model->shape.vocabulary, 5);
  for (const size_t length : {1ul, 3ul, 4ul, 127ul, 128ul, 129ul, 300ul, 511ul}) {
    auto sequence = model->sequence();
    model->prefill(*sequence, {tokens.data(), length});
    const auto image = must(model->backend->snapshot(*sequence));
    std::vector<std::vector<float>> expected;
    for (size_t i = length; i < length + 70; ++i) expected.push_back(model->decode(*sequence, tokens[i]));
    auto restored = model->sequence();
    for (int round = 0; round < 2; ++round) {  // the image survives what its first user appends
      must(model->backend->restore(*restored, *image));
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(model->decode(*restored, tokens[length + i]), expected[i]) << length << " + " << i;
      }
    }
  }
}

TEST_F(NanoPathsTest, DraftsDoNotDependOnThePathOrChangeIt) {
  const auto model = open(2);
  const auto tokens = random_tokens(300, model->shape.vocabulary, 9);
  auto whole = model->sequence(), single = model->sequence();
  model->prefill(*whole, {tokens.data(), 299});
  for (size_t i = 0; i < 299; ++i) model->decode(*single, tokens[i]);
  const auto a = must(model->backend->draft(*whole, {.next = tokens[299], .depth = 3, .logits = true}));
  const auto b = must(model->backend->draft(*single, {.next = tokens[299], .depth = 3, .logits = true}));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(a[i].logits, b[i].logits) << i;
  EXPECT_EQ(model->decode(*whole, tokens[299]), model->decode(*single, tokens[299]));
}

// Rows that a verify pass evaluates and takes back leave no trace, wherever windows of 4 and 128 end.
TEST_F(NanoPathsTest, RetractedTokensLeaveNoTrace) {
  const auto model = open(2);
  const auto tokens = random_tokens(420, model->shape.vocabulary, 5),
             wrong = random_tokens(16, model->shape.vocabulary, 6);
  for (const size_t length : {1ul, 3ul, 4ul, 113ul, 120ul, 126ul, 127ul, 128ul, 250ul, 256ul, 383ul}) {
    auto sequence = model->sequence(), expected = model->sequence();
    model->prefill(*sequence, {tokens.data(), length});
    model->prefill(*expected, {tokens.data(), length});
    for (const size_t accepted : {0ul, 1ul, 2ul, 5ul, 15ul}) {
      std::vector<Token> rows(wrong);
      std::copy_n(tokens.begin() + static_cast<ptrdiff_t>(sequence->position()), accepted, rows.begin());
      must(model->backend->verify(*sequence, rows));
      std::vector<Token> best;
      for (size_t behind = rows.size(); behind-- > 0;) best.push_back(sequence->logit_summary(behind)->best);
      EXPECT_EQ(sequence->logit_summary(rows.size()), nullptr);
      must(model->backend->retract(*sequence, rows.size() - accepted));
      EXPECT_EQ(sequence->logit_summary() == nullptr, accepted == 0);
      std::vector<float> logits, kept(model->shape.vocabulary);
      for (size_t i = 0; i < accepted; ++i) {
        logits = model->decode(*expected, rows[i]);
        ASSERT_EQ(argmax(logits), best[i]) << length << " + " << i;
      }
      if (accepted > 0) {
        must(model->backend->logits(*sequence, kept));
        EXPECT_EQ(kept, logits) << length << ", " << accepted << " accepted";
        EXPECT_EQ(must(model->backend->sample(*sequence, {0.8f, 40, 0.9f, 0}, 0.75f, 0)),
                  must(model->backend->sample(*expected, {0.8f, 40, 0.9f, 0}, 0.75f, 0)));
      }
      ASSERT_EQ(sequence->position(), expected->position());
      const auto drafts = must(model->backend->draft(*sequence, {.next = 7, .depth = 2, .logits = true}));
      const auto expected_drafts =
          must(model->backend->draft(*expected, {.next = 7, .depth = 2, .logits = true}));
      EXPECT_EQ(drafts[1].logits, expected_drafts[1].logits) << length << ", " << accepted << " accepted";
    }
    EXPECT_EQ(model->decode(*sequence, 9), model->decode(*expected, 9)) << length;
  }
  auto sequence = model->sequence();
  model->prefill(*sequence, {tokens.data(), 100});
  EXPECT_EQ(model->backend->retract(*sequence, 17).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(sequence->position(), 100u);
}

TEST_F(NanoPathsTest, CancelledPrefillLeavesTheSequenceAsItWas) {
  const auto model = open(2);
  const auto tokens = random_tokens(500, model->shape.vocabulary, 13);
  auto sequence = model->sequence(), untouched = model->sequence();
  model->prefill(*sequence, {tokens.data(), 200});
  model->prefill(*untouched, {tokens.data(), 200});
  for (int stop_after = 0; stop_after < 6; ++stop_after) {
    int polls = 0;
    backend::EvalControl control;
    control.cancelled = [&] { return polls++ == stop_after; };
    std::vector<float> logits(model->shape.vocabulary);
    const auto done = model->backend->prefill(*sequence, {tokens.data() + 200, 300}, 1, logits, control);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::cancelled);
    ASSERT_EQ(sequence->position(), 200u);
  }
  EXPECT_EQ(model->prefill(*sequence, {tokens.data() + 200, 300}),
            model->prefill(*untouched, {tokens.data() + 200, 300}));
}

TEST_F(NanoPathsTest, BadCallsAreErrorsAndChangeNothing) {
  const auto model = open(1);
  const uint32_t vocabulary = model->shape.vocabulary;
  auto sequence = model->sequence();
  std::vector<float> logits(vocabulary);
  const auto code = [](const Result<void>& result) {
    return result ? ErrorCode::internal : result.error().code;
  };
  const auto bad = ErrorCode::invalid_argument;
  const backend::Backend& backend = *model->backend;
  for (const Token token : {-1, static_cast<Token>(vocabulary)}) {
    EXPECT_EQ(code(backend.prefill(*sequence, {&token, 1}, 1, logits, {})), bad);
    const backend::DecodeRow row{sequence.get(), token};
    EXPECT_EQ(code(backend.decode({&row, 1}, logits)), bad);
  }
  const Token good = 5;
  EXPECT_EQ(code(backend.prefill(*sequence, {}, 0, logits, {})), bad);
  EXPECT_EQ(code(backend.prefill(*sequence, {&good, 1}, 2, logits, {})), bad);
  EXPECT_EQ(code(backend.prefill(*sequence, {&good, 1}, 1, {logits.data(), 7}, {})), bad);
  const std::vector<backend::DecodeRow> twice{{sequence.get(), good}, {sequence.get(), good}};
  std::vector<float> wide(17 * vocabulary);
  EXPECT_EQ(code(backend.decode(twice, wide)), bad);
  EXPECT_EQ(code(backend.decode({}, wide)), bad);
  EXPECT_EQ(code(backend.decode(std::vector<backend::DecodeRow>(17, {sequence.get(), good}), wide)), bad);
  EXPECT_EQ(code(backend.decode({twice.data(), 1}, {logits.data(), 7})), bad);
  EXPECT_EQ(sequence->position(), 0u);
}

// Random models in every weight format, with F32 and with 8-bit activations.
struct Formats {
  const char* name;
  TensorType projection, gate_up, down;

  friend void PrintTo(const Formats& formats, std::ostream* out) { *out << formats.name; }
};
class FormatPathsTest : public ::testing::TestWithParam<Formats> {};

TEST_P(FormatPathsTest, DecodeEqualsPrefill) {
  const Formats formats = GetParam();
  testing::TinyModelOptions options;
  options.projection = options.shared_expert = options.output = formats.projection;
  options.gate_up_expert = formats.gate_up;
  options.down_expert = formats.down;
  options.embedding = options.small_matrix = options.mixer = TensorType::f16;
  const std::string path =
      ::testing::TempDir() + "paths_" + formats.name + "_" + std::to_string(getpid()) + ".gguf";
  must(testing::write_tiny_model(path, options));
  for (const bool exact : {false, true}) {
    cpu::CpuOptions cpu_options;
    cpu_options.threads = 2;
    cpu_options.exact_activations = exact;
    const LoadedModel model(path, "", cpu_options);
    const auto tokens = random_tokens(400, model.shape.vocabulary, 17);
    auto single = model.sequence(), whole = model.sequence();
    std::vector<float> last;
    for (const Token token : tokens) last = model.decode(*single, token);
    const auto batched = model.prefill(*whole, tokens);
    EXPECT_EQ(batched, last) << formats.name << (exact ? ", F32 activations" : "");
    EXPECT_TRUE(std::all_of(last.begin(), last.end(), [](float x) { return std::isfinite(x); }));
  }
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(
    AllFormats, FormatPathsTest,
    ::testing::Values(Formats{"f32", TensorType::f32, TensorType::f32, TensorType::f32},
                      Formats{"bf16", TensorType::bf16, TensorType::f16, TensorType::bf16},
                      Formats{"q8_0", TensorType::q8_0, TensorType::q8_0, TensorType::q8_0},
                      Formats{"q2", TensorType::q8_0, TensorType::iq2_xxs, TensorType::q2_k},
                      Formats{"q4", TensorType::q8_0, TensorType::q4_k, TensorType::q4_k},
                      Formats{"mxfp4", TensorType::q8_0, TensorType::mxfp4, TensorType::mxfp4}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace ds4
