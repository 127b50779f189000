// A conversation of an engine with Flash's layers and vocabulary, through the store, a file of the original
// engine and another store: it goes on bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ds4/engine.hpp"
#include "program.hpp"
#include "store/engine_state.hpp"
#include "store/model_states.hpp"
#include "support/loaded_model.hpp"
#include "support/session_checks.hpp"
#include "support/tiny_model.hpp"

namespace ds4::kv {
namespace {

namespace fs = std::filesystem;
using ds4::testing::logits_of;
using ds4::testing::must;

/// Flash's layers and vocabulary, and else as small as can be: 230 MB.
void write_model(const std::string& path) {
  const model::ModelShape flash = model::known_shape(model::Variant::flash);
  ds4::testing::TinyModelOptions options;
  options.shape.layers = flash.layers;
  options.shape.ratios = flash.ratios;
  options.shape.vocabulary = flash.vocabulary;
  options.damping = 0.1f;
  options.embedding = options.output = format::TensorType::q8_0;
  options.projection = options.shared_expert = format::TensorType::q8_0;
  options.gate_up_expert = options.down_expert = format::TensorType::q2_k;
  must(ds4::testing::write_tiny_model(path, options));
}

int run(std::vector<std::string> arguments) {
  std::vector<const char*> pointers = {"ds4-kv"};
  for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
  return run_program(static_cast<int>(pointers.size()), pointers.data());
}

std::unique_ptr<store::StateStore> open(const store::ModelStates& model, const fs::path& folder) {
  auto options = store::store_options(model.layout, model.fingerprint);
  options.directory.directory = folder;
  options.policy.min_tokens = 1;
  return must(store::StateStore::open(std::move(options)));
}

TEST(ExchangedEngine, GoesOnBitForBit) {
  const fs::path folder = fs::path(::testing::TempDir()) / fmt::format("ds4-kv-engine-{}", ::getpid());
  fs::create_directories(folder / "files");
  const std::string model_path = folder / "model.gguf";
  write_model(model_path);
  EngineOptions options;
  options.model_path = model_path;
  options.backend = BackendChoice::cpu;
  const Engine engine = must(Engine::open(options));
  std::vector<Token> tokens;
  for (Token i = 0; i < 150; ++i) tokens.push_back(i * 7919 % 256 + 3);
  Session session = must(engine.create_session(1024));
  must(session.sync(tokens));
  const store::ModelStates model = must(store::read_model_states({model_path, "", false}));
  must(open(model, folder / "one")
           ->write(store::SnapshotSource(must(session.snapshot()), engine.tokenizer()), {.forced = true}));

  EXPECT_EQ(run({"export", "--model", model_path, folder / "one", folder / "files"}), 0);
  EXPECT_EQ(run({"import", "--model", model_path, folder / "files", folder / "two"}), 0);
  const auto store = open(model, folder / "two");
  const auto match = store->find({.tokens = tokens});
  ASSERT_TRUE(match);
  EXPECT_EQ(match->position, tokens.size());
  store::SessionSink sink(must(engine.import_state(match->tokens, 1024)));
  must(store->read(*match, sink));
  auto again = sink.take();
  ASSERT_TRUE(again);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(logits_of(*again), logits_of(session)) << i;
    const Token next = must(session.argmax());
    must(session.eval(next));
    must(again->eval(next));
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace ds4::kv
