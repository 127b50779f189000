// Speculation never changes what is generated: greedy or sampled, at any depth, wherever windows end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "ds4/engine.hpp"
#include "ds4/sampling.hpp"
#include "format/gguf.hpp"
#include "support/loaded_model.hpp"
#include "support/tiny_model.hpp"

namespace ds4 {
namespace {

using testing::must;

const std::string nano = DS4_SOURCE_DIR "/models/nano/nano.gguf";
const std::string nano_mtp = DS4_SOURCE_DIR "/models/nano/nano-mtp.gguf";

Engine open(const std::string& mtp) {
  EngineOptions options;
  options.model_path = nano;
  options.mtp_path = mtp;
  options.backend = BackendChoice::cpu;
  options.threads = 2;
  return must(Engine::open(options));
}

std::string must_read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::vector<Token>> prompts() {
  std::vector<std::vector<Token>> result;
  const auto document = boost::json::parse(must_read(DS4_SOURCE_DIR "/tests/data/nano/prompts.json"));
  for (const auto& prompt : document.at("prompts").as_array()) {
    result.push_back(boost::json::value_to<std::vector<Token>>(prompt.at("ids")));
  }
  return result;
}

SpeculationOptions forced(size_t depth) {
  SpeculationOptions options;
  options.depth = depth;
  options.min_margin = 0;
  options.adaptive = false;
  return options;
}

struct Generated {
  std::vector<Token> tokens;
  std::vector<float> logits;  // after the last appended token
  SpeculationStats stats;
};

Generated generate(const Engine& engine, std::span<const Token> prompt, size_t count,
                   const SpeculationOptions& options, const SamplingParams& params = {.temperature = 0},
                   std::span<const Token> stops = {}) {
  Session session = must(engine.create_session(8192));
  session.set_speculation(options);
  must(session.sync(prompt));
  Rng rng(17);
  Generated run;
  while (run.tokens.size() < count) {
    const auto more = must(session.generate(params, rng, count - run.tokens.size(), stops));
    run.tokens.insert(run.tokens.end(), more.begin(), more.end());
    if (std::find(stops.begin(), stops.end(), more.back()) != stops.end()) break;
  }
  const auto logits = must(session.logits());
  run.logits.assign(logits.begin(), logits.end());
  run.stats = session.speculation();
  EXPECT_TRUE(std::equal(session.tokens().begin() + static_cast<ptrdiff_t>(prompt.size()),
                         session.tokens().end(), run.tokens.begin()));
  return run;
}

std::string sums(const SpeculationStats& stats) {
  std::ostringstream text;
  for (size_t i = 0; i < max_draft_depth && stats.drafted[i] > 0; ++i) {
    text << " " << stats.accepted[i] << "/" << stats.drafted[i];
  }
  return text.str();
}

TEST(Speculation, GreedyTextIsThatOfPlainDecoding) {
  const Engine plain = open(""), drafting = open(nano_mtp);
  EXPECT_FALSE(plain.info().drafter);
  ASSERT_TRUE(drafting.info().drafter);
  const Token eos = plain.tokenizer().special().eos;
  SpeculationStats all;
  for (const auto& prompt : prompts()) {
    const Generated expected = generate(plain, prompt, 48, {}, {.temperature = 0}, {&eos, 1});
    for (size_t depth = 1; depth <= 4; ++depth) {
      const Generated run = generate(drafting, prompt, 48, forced(depth), {.temperature = 0}, {&eos, 1});
      ASSERT_EQ(run.tokens, expected.tokens) << "depth " << depth << ", prompt of " << prompt.size();
      EXPECT_EQ(run.logits, expected.logits) << "depth " << depth << ", prompt of " << prompt.size();
      for (size_t i = 0; i < 4; ++i) {
        all.drafted[i] += run.stats.drafted[i];
        all.accepted[i] += run.stats.accepted[i];
      }
    }
  }
  std::cout << "accepted by place:" << sums(all) << "\n";
  EXPECT_GT(all.accepted[0], all.drafted[0] * 9 / 10);
  EXPECT_GT(all.drafted[3], 0u);
}

// Where windows of 4 and 128 end, and with random tokens, of which no draft is likely.
TEST(Speculation, EveryPlaceOfTheWindows) {
  const Engine plain = open(""), drafting = open(nano_mtp);
  std::vector<Token> text(400);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<Token>((i * 7919 + 13) % 4000);
  for (const size_t length :
       {1u, 2u, 3u, 4u, 5u, 119u, 124u, 125u, 126u, 127u, 128u, 129u, 250u, 255u, 256u, 383u}) {
    const std::span<const Token> prompt(text.data(), length);
    const Generated expected = generate(plain, prompt, 20, {});
    for (const size_t depth : {1u, 2u, 5u, 15u}) {
      const Generated run = generate(drafting, prompt, 20, forced(depth));
      ASSERT_EQ(run.tokens, expected.tokens) << length << " tokens, depth " << depth;
      EXPECT_EQ(run.logits, expected.logits) << length << " tokens, depth " << depth;
      EXPECT_GT(run.stats.drafted[0], 0u);
    }
  }
}

// With the same random numbers the same tokens, so the distribution is that of plain sampling.
TEST(Speculation, SampledTextIsThatOfPlainSampling) {
  const Engine plain = open(""), drafting = open(nano_mtp);
  SpeculationStats all;
  for (const SamplingParams params :
       {SamplingParams{1.0f, 0, 1.0f, 0.0f}, SamplingParams{0.7f, 40, 0.9f, 0.0f},
        SamplingParams{1.5f, 0, 1.0f, 0.05f}}) {
    for (const auto& prompt : prompts()) {
      const Generated expected = generate(plain, prompt, 30, {}, params);
      const Generated run = generate(drafting, prompt, 30, forced(3), params);
      ASSERT_EQ(run.tokens, expected.tokens);
      EXPECT_EQ(run.logits, expected.logits);
      for (size_t i = 0; i < 3; ++i) {
        all.drafted[i] += run.stats.drafted[i];
        all.accepted[i] += run.stats.accepted[i];
      }
    }
  }
  std::cout << "accepted by place:" << sums(all) << "\n";
  EXPECT_GT(all.accepted[0], 0u);
  EXPECT_LT(all.accepted[0], all.drafted[0]);
}

TEST(Speculation, LimitsAreKept) {
  const Engine drafting = open(nano_mtp);
  const auto prompt = prompts().front();
  const Generated whole = generate(drafting, prompt, 24, forced(4));
  Session session = must(drafting.create_session(prompt.size() + 10));
  session.set_speculation(forced(4));
  must(session.sync(prompt));
  Rng rng(1);
  std::vector<Token> tokens;
  while (session.position() < session.context()) {
    const size_t most = tokens.size() % 3 + 1;
    const auto more = must(session.generate({.temperature = 0}, rng, most));
    ASSERT_LE(more.size(), most);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  EXPECT_EQ(session.position(), session.context());
  EXPECT_EQ(tokens, std::vector<Token>(whole.tokens.begin(), whole.tokens.begin() + 10));
  EXPECT_EQ(session.generate({.temperature = 0}, rng, 1).error().code, ErrorCode::context_full);
  EXPECT_EQ(session.generate({.temperature = 0}, rng, 0).error().code, ErrorCode::invalid_argument);
  // A stop that a draft would step over is returned, not appended.
  const Generated stopped =
      generate(drafting, prompt, 24, forced(4), {.temperature = 0}, {&whole.tokens[5], 1});
  const auto place = std::find(whole.tokens.begin(), whole.tokens.end(), whole.tokens[5]);
  EXPECT_EQ(stopped.tokens, std::vector<Token>(whole.tokens.begin(), place + 1));
}

TEST(Speculation, SnapshotsAndRewindsGoOnExactly) {
  const Engine drafting = open(nano_mtp);
  const auto prompt = prompts().front();
  Session session = must(drafting.create_session(4096));
  session.set_speculation(forced(3));
  must(session.sync(prompt));
  Rng rng(1);
  must(session.generate({.temperature = 0}, rng, 8));
  const auto snapshot = must(session.snapshot());
  const size_t kept = session.position();
  std::vector<Token> expected;
  while (expected.size() < 20) {
    const auto more = must(session.generate({.temperature = 0}, rng, 20 - expected.size()));
    expected.insert(expected.end(), more.begin(), more.end());
  }
  for (const bool restore : {true, false}) {
    if (restore) must(session.restore(snapshot));
    if (!restore) must(session.rewind(kept));
    std::vector<Token> again;
    while (again.size() < 20) {
      const auto more = must(session.generate({.temperature = 0}, rng, 20 - again.size()));
      again.insert(again.end(), more.begin(), more.end());
    }
    EXPECT_EQ(again, expected) << (restore ? "restored" : "rewound");
  }
}

TEST(Speculation, ABrokenDrafterIsLeftAlone) {
  const std::string path = ::testing::TempDir() + "speculation_nan.gguf";
  std::string bytes = must_read(nano_mtp);
  const auto file = must(format::GgufFile::open(nano_mtp));
  for (const auto& tensor : file.tensors()) {
    if (tensor.name != "mtp.0.norm.weight") continue;
    const std::string_view norm(reinterpret_cast<const char*>(tensor.data), tensor.size_bytes);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(&bytes.at(bytes.find(norm)), &nan, sizeof(nan));
  }
  std::ofstream(path, std::ios::binary) << bytes;
  const Engine plain = open(""), drafting = open(path);
  std::filesystem::remove(path);
  const auto prompt = prompts().front();
  const Generated expected = generate(plain, prompt, 20, {}), run = generate(drafting, prompt, 20, forced(2));
  EXPECT_EQ(run.tokens, expected.tokens);
  EXPECT_EQ(run.stats.failure, "the drafter (MTP) computed NaN instead of logits");
  EXPECT_EQ(run.stats.draft_steps, 0u);
}

TEST(Speculation, AForeignDrafterIsRefused) {
  const std::string path = ::testing::TempDir() + "speculation_foreign.gguf";
  testing::TinyModelOptions tiny;
  tiny.shape.width = 128;
  must(testing::write_tiny_mtp(path, tiny));
  EngineOptions options;
  options.model_path = nano;
  options.mtp_path = path;
  options.backend = BackendChoice::cpu;
  auto engine = Engine::open(options);
  ASSERT_FALSE(engine);
  EXPECT_NE(engine.error().message.find(path), std::string::npos) << engine.error().message;
  std::filesystem::remove(path);
  options.mtp_path = nano;
  engine = Engine::open(options);
  ASSERT_FALSE(engine);
  EXPECT_NE(engine.error().message.find("there is no drafter in it"), std::string::npos)
      << engine.error().message;
}

}  // namespace
}  // namespace ds4
