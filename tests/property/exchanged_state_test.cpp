// A session that comes back from the original engine's payload goes on as it was, bit for bit: what the model
// computes has the precision that both formats keep.
#include <gtest/gtest.h>

#include <vector>

#include "ds4/engine.hpp"
#include "store/dsv4_payload.hpp"
#include "store/test_byte_access.hpp"
#include "support/loaded_model.hpp"
#include "support/session_checks.hpp"
#include "support/state_bytes.hpp"

namespace ds4 {
namespace {

using testing::export_all;
using testing::import_all;
using testing::logits_of;
using testing::must;
using testing::random_tokens;
using testing::StateBytes;

Engine open(bool drafter) {
  EngineOptions options;
  options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
  if (drafter) options.mtp_path = DS4_SOURCE_DIR "/models/nano/nano-mtp.gguf";
  options.backend = BackendChoice::cpu;
  options.threads = 2;
  return must(Engine::open(options));
}

/// The state as it is read from the payload that it was written as.
StateBytes through_payload(const StateBytes& state, const StateLayout& from, const StateLayout& to) {
  const auto tokens = static_cast<uint32_t>(state.tokens.size());
  store::MemoryBytes file;
  auto writer = must(store::PayloadWriter::begin(file, 0, from, state.tokens, store::payload_header(tokens)));
  for (const auto& block : state.blocks) must(writer.add_block(block));
  must(writer.finish(state.frontier));
  const auto reader = must(store::PayloadReader::open(file, 0, file.size(), to, {}, "payload"));
  StateBytes read;
  read.tokens = reader.tokens();
  read.blocks.assign(reader.blocks(), std::vector<std::byte>(reader.block_bytes()));
  for (size_t b = 0; b < reader.blocks(); ++b) must(reader.export_block(b, read.blocks[b]));
  read.frontier.resize(reader.frontier_bytes());
  must(reader.export_frontier(read.frontier));
  return read;
}

std::vector<Token> go_on(Session& session, size_t count) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back(must(session.argmax()));
    must(session.eval(tokens.back()));
  }
  return tokens;
}

TEST(ExchangedState, GoesOnBitForBit) {
  const Engine engine = open(false);
  const auto tokens = random_tokens(700, 5);
  for (const size_t length : {1, 5, 127, 128, 130, 300, 700}) {
    Session session = must(engine.create_session(1024));
    must(session.sync(std::span(tokens).first(length)));
    const StateBytes state = export_all(engine, must(session.snapshot()));
    Session again =
        import_all(engine, through_payload(state, engine.state_layout(), engine.state_layout()), 1024);
    EXPECT_EQ(logits_of(again), logits_of(session)) << length;
    EXPECT_EQ(go_on(again, 20), go_on(session, 20)) << length;
    EXPECT_EQ(logits_of(again), logits_of(session)) << length;
  }
}

// The payload has nothing of a drafter: drafts may be bad, the text is the same.
TEST(ExchangedState, ADrafterBeginsWithNothing) {
  const Engine plain = open(false), drafting = open(true);
  Session session = must(plain.create_session(1024));
  must(session.sync(random_tokens(200, 6)));
  const StateBytes state = export_all(plain, must(session.snapshot()));
  Session again =
      import_all(drafting, through_payload(state, plain.state_layout(), drafting.state_layout()), 1024);
  again.set_speculation({.depth = 3, .min_margin = 0, .adaptive = false});
  std::vector<Token> text;
  Rng rng(1);
  while (text.size() < 40) {
    const auto step = must(again.generate({.temperature = 0}, rng, 40 - text.size()));
    text.insert(text.end(), step.begin(), step.end());
  }
  EXPECT_EQ(text, go_on(session, 40));
}

}  // namespace
}  // namespace ds4
