// A session's state as bytes: a session that is made of them, in another engine, goes on as the one that they
// were taken from, bit for bit; bytes that nobody wrote are an error or nonsense, never a crash. Built for
// the CPU and for a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ds4/engine.hpp"
#include "support/loaded_model.hpp"
#include "support/session_checks.hpp"
#include "support/state_bytes.hpp"
#include "support/tested_device.hpp"

namespace ds4 {
namespace {

using testing::export_all;
using testing::import_all;
using testing::logits_of;
using testing::must;
using testing::random_tokens;
using testing::StateBytes;
using testing::try_import;

constexpr SamplingParams greedy{.temperature = 0};

class PortableStateTest : public testing::DeviceTest {
 protected:
  static Engine open(bool drafter, uint32_t chunk = 4096) {
    EngineOptions options;
    options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
    if (drafter) options.mtp_path = DS4_SOURCE_DIR "/models/nano/nano-mtp.gguf";
    options.backend = testing::tested_backend;
    options.threads = 2;
    options.prefill_chunk = chunk;
    return must(Engine::open(options));
  }

  static std::vector<Token> go_on(Session& session, size_t count) {
    std::vector<Token> tokens;
    for (size_t i = 0; i < count; ++i) {
      tokens.push_back(must(session.argmax()));
      must(session.eval(tokens.back()));
    }
    return tokens;
  }
  static std::vector<Token> speculate(Session& session, size_t count) {
    session.set_speculation({.depth = 3, .min_margin = 0, .adaptive = false});
    std::vector<Token> tokens;
    Rng rng(1);
    while (tokens.size() < count) {
      const auto step = must(session.generate(greedy, rng, count - tokens.size()));
      tokens.insert(tokens.end(), step.begin(), step.end());
    }
    return tokens;
  }
  static bool refused(const Result<void>& done) {
    return !done && done.error().code == ErrorCode::invalid_argument;
  }
};

TEST_F(PortableStateTest, GoesOnBitForBitAtEveryLength) {
  const Engine engine = open(false), other = open(false);
  const auto tokens = random_tokens(2049, 31);
  Session trunk = must(engine.create_session(8192));
  for (const size_t length : {1,   3,   4,   5,   31,  32,   33,   127,  128,  129,  130, 255,
                              256, 257, 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049}) {
    must(trunk.sync(std::span(tokens).first(length)));
    Session live = must(trunk.fork(length));
    ASSERT_EQ(live.position(), length);
    const StateBytes bytes = export_all(engine, must(live.snapshot()));
    EXPECT_EQ(bytes.tokens,
              std::vector<Token>(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(length)));
    Session copy = import_all(other, bytes);
    EXPECT_EQ(copy.position(), length);
    EXPECT_EQ(logits_of(copy), logits_of(live)) << length;
    EXPECT_TRUE(export_all(other, must(copy.snapshot())) == bytes) << length;
    EXPECT_EQ(go_on(copy, 64), go_on(live, 64)) << length;
    EXPECT_EQ(logits_of(copy), logits_of(live)) << length;
    EXPECT_TRUE(export_all(other, must(copy.snapshot())) == export_all(engine, must(live.snapshot())))
        << length;
  }
}

// Also what a prompt adds: there the open windows are read by other kernels than decoding's.
TEST_F(PortableStateTest, TakesAPromptAsBefore) {
  const Engine engine = open(false), other = open(false);
  for (const size_t length : {2ul, 6ul, 129ul, 300ul, 511ul}) {
    const auto tokens = random_tokens(length + 333, 32);
    Session live = must(engine.create_session(8192));
    must(live.sync(std::span(tokens).first(length)));
    Session copy = import_all(other, export_all(engine, must(live.snapshot())));
    EXPECT_EQ(must(copy.sync(tokens)).reused, length);
    must(live.sync(tokens));
    EXPECT_EQ(logits_of(copy), logits_of(live)) << length;
    // What was imported is a state to go back to.
    EXPECT_EQ(copy.nearest_reachable(length), length);
    EXPECT_EQ(copy.nearest_reachable(length - 1), 0u);
  }
}

TEST_F(PortableStateTest, TheDrafterGoesOnToo) {
  const Engine engine = open(true), other = open(true);
  ASSERT_TRUE(engine.state_layout().drafter());
  const auto prompt = engine.tokenizer().encode_rendered(
      "<｜begin▁of▁sentence｜><｜User｜>What is 47 + 85?<｜Assistant｜></think>");
  auto tokens = random_tokens(600, 33);
  std::copy(prompt.begin(), prompt.end(), tokens.end() - static_cast<ptrdiff_t>(prompt.size()));
  for (const size_t length : {1ul, 2ul, 5ul, 127ul, 128ul, 129ul, 257ul, 600ul}) {
    Session live = must(engine.create_session(8192));
    must(live.sync(std::span(tokens).first(length)));
    const StateBytes bytes = export_all(engine, must(live.snapshot()));
    Session copy = import_all(other, bytes), plain = import_all(other, bytes);
    EXPECT_TRUE(export_all(other, must(copy.snapshot())) == bytes) << length;
    const auto expected = speculate(live, 70);
    EXPECT_EQ(speculate(copy, 70), expected) << length;
    EXPECT_EQ(go_on(plain, 70), expected) << length;
    // As many drafts were right: the drafter had its rows.
    EXPECT_EQ(copy.speculation().draft_tokens, live.speculation().draft_tokens) << length;
    // At a position where speculation left tokens behind in the rings.
    const StateBytes later = export_all(engine, must(live.snapshot()));
    EXPECT_TRUE(export_all(other, must(copy.snapshot())) == later) << length;
    Session again = import_all(other, later);
    EXPECT_EQ(speculate(again, 20), speculate(live, 20)) << length;
  }
}

TEST_F(PortableStateTest, KeptStatesAreExportedWhereTheyAre) {
  const Engine engine = open(false, 256), other = open(false, 256);
  const auto tokens = random_tokens(900, 34);
  Session session = must(engine.create_session(8192));
  SyncOptions options;
  options.keep_anchors = {130, 777};
  must(session.sync(tokens, options));
  go_on(session, 10);
  for (const size_t position : {130ul, 777ul, 512ul, 910ul}) {
    const Snapshot kept = must(session.snapshot(position));
    EXPECT_EQ(kept.tokens(), position);
    EXPECT_TRUE(std::equal(kept.token_ids().begin(), kept.token_ids().end(), session.tokens().begin()));
    Session copy = import_all(other, export_all(engine, kept));
    Session fork = must(session.fork(position));
    EXPECT_EQ(logits_of(copy), logits_of(fork)) << position;
    EXPECT_EQ(go_on(copy, 20), go_on(fork, 20)) << position;
  }
  for (const size_t position : {0ul, 129ul, 131ul, 909ul, 911ul}) {
    const auto none = session.snapshot(position);
    ASSERT_FALSE(none) << position;
    EXPECT_EQ(none.error().code, ErrorCode::no_state);
  }
}

TEST_F(PortableStateTest, ExportsInAnotherThreadWhileTheSessionGoesOn) {
  const Engine engine = open(false);
  const auto tokens = random_tokens(1000, 35);
  Session session = must(engine.create_session(8192)), undisturbed = must(engine.create_session(8192));
  must(session.sync(tokens));
  must(undisturbed.sync(tokens));
  const Snapshot snapshot = must(session.snapshot());
  const StateBytes expected = export_all(engine, snapshot);
  std::atomic<bool> done = false;
  size_t different = 0, rounds = 0;
  std::thread exporting([&] {
    do {
      const StateBytes bytes = export_all(engine, snapshot);
      different += bytes == expected ? 0 : 1;
      different += logits_of(import_all(engine, bytes)) == logits_of(import_all(engine, expected)) ? 0 : 1;
      ++rounds;
    } while (!done);
  });
  const auto text = go_on(session, 100);
  done = true;
  exporting.join();
  EXPECT_EQ(different, 0u) << "of " << rounds;
  EXPECT_EQ(text, go_on(undisturbed, 100));
}

TEST_F(PortableStateTest, WrongSizesAreErrors) {
  const Engine engine = open(false);
  const auto tokens = random_tokens(300, 36);
  Session session = must(engine.create_session(8192));
  must(session.sync(tokens));
  const Snapshot snapshot = must(session.snapshot());
  const StateBytes bytes = export_all(engine, snapshot);
  const auto& block = bytes.blocks[0];
  std::vector<std::byte> longer(bytes.frontier.size() + block.size());

  EXPECT_TRUE(refused(snapshot.export_block(2, std::span(longer).first(block.size()))));
  EXPECT_TRUE(refused(snapshot.export_block(0, std::span(longer).first(block.size() - 1))));
  EXPECT_TRUE(refused(snapshot.export_frontier(std::span(longer).first(bytes.frontier.size() + 1))));
  EXPECT_TRUE(refused(snapshot.export_frontier({})));
  EXPECT_TRUE(refused(Snapshot().export_frontier({})));
  EXPECT_TRUE(refused(must(must(engine.create_session(100)).snapshot()).export_frontier({})));

  StateImport import = must(engine.import_state(tokens, 8192));
  EXPECT_EQ(import.blocks(), 2u);
  const auto refused_frontier = [&](std::span<const std::byte> some) {
    const auto done = import.finish(some);
    return !done && done.error().code == ErrorCode::invalid_argument;
  };
  for (const size_t size : {size_t{0}, size_t{1}, block.size() - 1, block.size() + 1, longer.size()}) {
    EXPECT_TRUE(refused(import.add_block(std::span(longer).first(size)))) << size;
  }
  EXPECT_TRUE(refused_frontier(bytes.frontier));
  must(import.add_block(block));
  EXPECT_TRUE(refused_frontier(bytes.frontier));
  must(import.add_block(bytes.blocks[1]));
  EXPECT_EQ(import.blocks_added(), 2u);
  EXPECT_TRUE(refused(import.add_block(block)));
  for (const size_t size : {size_t{0}, bytes.frontier.size() - 4, bytes.frontier.size() + 4}) {
    EXPECT_TRUE(refused_frontier(std::span(longer).first(size))) << size;
  }
  Session whole = must(import.finish(bytes.frontier));
  EXPECT_EQ(logits_of(whole), logits_of(session));
  EXPECT_TRUE(refused_frontier(bytes.frontier));
  EXPECT_TRUE(refused(import.add_block(block)));
}

TEST_F(PortableStateTest, TokensAndContextAreChecked) {
  const Engine engine = open(false);
  const auto code = [&](const std::vector<Token>& tokens, uint64_t context) {
    const auto import = engine.import_state(tokens, context);
    return import ? std::nullopt : std::optional(import.error().code);
  };
  EXPECT_EQ(code({}, 100), ErrorCode::invalid_argument);
  EXPECT_EQ(code({1, 4096, 2}, 100), ErrorCode::invalid_argument);
  EXPECT_EQ(code({1, -1, 2}, 100), ErrorCode::invalid_argument);
  EXPECT_EQ(code({1, 2, 3}, 2), ErrorCode::context_full);
  EXPECT_EQ(code({1, 2, 3}, 1), ErrorCode::invalid_argument);
  EXPECT_EQ(code({1, 2, 3}, (1ull << 20) + 1), ErrorCode::invalid_argument);
  EXPECT_EQ(code({1, 2, 3}, 3), std::nullopt);

  Session session = must(engine.create_session(100));
  must(session.sync(random_tokens(20, 37)));
  const StateBytes bytes = export_all(engine, must(session.snapshot()));
  Session full = import_all(engine, bytes, 20);
  EXPECT_EQ(full.eval(3).error().code, ErrorCode::context_full);
  // As many tokens as others: another frontier.
  StateImport other = must(engine.import_state(random_tokens(21, 37), 100));
  EXPECT_EQ(other.finish(bytes.frontier).error().code, ErrorCode::invalid_argument);
}

// Nothing of the content is trusted. What is computed from it is nonsense, perhaps NaN, and can be left.
TEST_F(PortableStateTest, AnyContentIsSafe) {
  const Engine engine = open(true);
  for (const size_t length : {3ul, 140ul, 1300ul}) {
    const auto tokens = random_tokens(length + 40, 38);
    Session session = must(engine.create_session(8192));
    must(session.sync(std::span(tokens).first(length)));
    const StateBytes good = export_all(engine, must(session.snapshot()));
    const StateParts parts = engine.state_layout().frontier(length);
    const StatePart &logits = parts.logits, &drafter = parts.drafter_window;
    for (uint64_t seed = 0; seed < 6; ++seed) {
      StateBytes bad = good;
      uint64_t random = seed;
      const auto fill = [&](std::span<std::byte> bytes) {
        for (std::byte& byte : bytes) {
          random = random * 6364136223846793005ull + 1442695040888963407ull;
          byte = seed == 0 ? std::byte{0xff} : seed == 1 ? std::byte{0x7f} : std::byte(random >> 56);
        }
      };
      for (auto& block : bad.blocks) fill(block);
      fill(std::span(bad.frontier).first(logits.offset));
      std::memset(bad.frontier.data() + drafter.offset + drafter.bytes() - drafter.row_bytes, 0,
                  drafter.row_bytes);
      Session copy = import_all(engine, bad);
      EXPECT_EQ(logits_of(copy), logits_of(session));
      EXPECT_TRUE(export_all(engine, must(copy.snapshot())) == bad);
      copy.set_speculation({.depth = 3, .min_margin = 0, .adaptive = false});
      Rng rng(seed);
      for (int step = 0; step < 3; ++step) {
        const auto chosen = copy.generate(greedy, rng, 4);
        if (!chosen) {
          EXPECT_EQ(chosen.error().code, ErrorCode::not_finite) << chosen.error().message;
        }
      }
      const auto prompt = copy.sync(tokens);
      if (!prompt) {
        EXPECT_EQ(prompt.error().code, ErrorCode::not_finite) << prompt.error().message;
      }

      fill(bad.frontier);
      if (const auto nothing = try_import(engine, bad); !nothing) {
        EXPECT_EQ(nothing.error().code, ErrorCode::not_finite);
      }
      bad.frontier = good.frontier;
      const std::vector<float> nan(logits.row_bytes / sizeof(float), NAN);
      std::memcpy(bad.frontier.data() + logits.offset, nan.data(), logits.bytes());
      EXPECT_EQ(try_import(engine, bad).error().code, ErrorCode::not_finite);
    }
    Session after = must(engine.create_session(8192));
    must(after.sync(std::span(tokens).first(length)));
    EXPECT_EQ(logits_of(after), logits_of(session));
  }
}

}  // namespace
}  // namespace ds4
