// import and export as the program runs them, with a model file of Flash's shape that has no weights.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "program.hpp"
#include "store/kvc_file.hpp"
#include "store/model_states.hpp"
#include "store/test_made_state.hpp"
#include "support/tiny_model.hpp"

namespace ds4::kv {
namespace {

namespace fs = std::filesystem;
using store::MadeState;
using ::testing::HasSubstr;

struct Ran {
  int status = 0;
  std::string output, errors;
};

Ran run(std::vector<std::string> arguments) {
  std::vector<const char*> pointers = {"ds4-kv"};
  for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Ran ran;
  ran.status = run_program(static_cast<int>(pointers.size()), pointers.data());
  ran.output = ::testing::internal::GetCapturedStdout();
  ran.errors = ::testing::internal::GetCapturedStderr();
  return ran;
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Exchange : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    fs::create_directories(shared());
    testing_model();
  }
  static void TearDownTestSuite() { fs::remove_all(shared()); }
  static fs::path shared() { return fs::path(::testing::TempDir()) / fmt::format("ds4-kv-{}", ::getpid()); }
  static const std::string& testing_model() {
    static const std::string path = [] {
      const std::string file = shared() / "flash.gguf";
      ds4::testing::TinyModelOptions options;
      options.shape = model::known_shape(model::Variant::flash);
      options.metadata_only = true;
      EXPECT_TRUE(ds4::testing::write_tiny_model(file, options));
      return file;
    }();
    return path;
  }

  Exchange() { fs::create_directories(folder_ / "original"); }
  ~Exchange() override { fs::remove_all(folder_); }

  fs::path write_file(const MadeState& state) const {
    const auto known = store::read_model_states({testing_model(), "", false});
    EXPECT_TRUE(known) << known.error().message;
    const std::string text = known->tokenizer.decode(state.tokens());
    const fs::path path = folder_ / "original" / store::kvc_file_name(text);
    auto writer = store::KvcWriter::create(path, {}, text, state.tokens(), state.layout(), {});
    EXPECT_TRUE(writer);
    for (size_t b = 0; b < state.blocks(); ++b) EXPECT_TRUE(writer->add_block(state.block(b)));
    EXPECT_TRUE(writer->finish(state.frontier()));
    return path;
  }

  const fs::path folder_ = shared() / "case";
  const std::string cache_ = folder_ / "cache";
};

TEST_F(Exchange, AFolderOfFilesGoesThereAndBack) {
  std::vector<fs::path> files;
  for (const uint32_t tokens : {5u, 130u, 300u})
    files.push_back(write_file(MadeState(store::flash_layout(), tokens)));
  std::ofstream(folder_ / "original" / "README.txt") << "not a state";
  const Ran imported = run({"import", "--model", testing_model(), folder_ / "original", cache_});
  EXPECT_EQ(imported.status, 0) << imported.errors;
  for (const char* tokens : {": 5 tokens", ": 130 tokens", ": 300 tokens"})
    EXPECT_THAT(imported.output, HasSubstr(tokens));
  const Ran again = run({"import", "--model", testing_model(), files[0], cache_});
  EXPECT_EQ(again.status, 0) << again.errors;
  EXPECT_THAT(again.output, HasSubstr("is there already"));

  fs::create_directories(folder_ / "out");
  const Ran exported = run({"export", "--model", testing_model(), cache_, folder_ / "out"});
  EXPECT_EQ(exported.status, 0) << exported.errors;
  for (const fs::path& file : files) {
    const std::string before = read_text(file), after = read_text(folder_ / "out" / file.filename());
    ASSERT_EQ(before.size(), after.size()) << file;
    EXPECT_TRUE(before.substr(store::kvc_header_bytes) == after.substr(store::kvc_header_bytes)) << file;
  }
  const Ran one = run({"export", "--model", testing_model(), cache_, folder_ / "one.kv"});
  EXPECT_EQ(one.status, 0) << one.errors;
  EXPECT_TRUE(fs::exists(folder_ / "one.kv"));
}

TEST_F(Exchange, ABadFileDoesNotKeepTheOthersOut) {
  const fs::path bad = write_file(MadeState(store::flash_layout(), 5));
  const fs::path good = write_file(MadeState(store::flash_layout(), 6));
  fs::resize_file(bad, 1000);
  const Ran ran = run({"import", "--model", testing_model(), bad, good, cache_});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.errors, HasSubstr("are more than the file has"));
  EXPECT_THAT(ran.output, HasSubstr("6 tokens"));
}

TEST_F(Exchange, OtherModelsAreRefused) {
  const std::string nano = DS4_SOURCE_DIR "/models/nano/nano.gguf";
  const Ran imported = run({"import", "--model", nano, folder_ / "original", cache_});
  EXPECT_EQ(imported.status, 1);
  EXPECT_THAT(imported.errors, HasSubstr("KVC files hold states of DeepSeek V4 Flash only"));
  const Ran exported = run({"export", "--model", nano, cache_, folder_ / "one.kv"});
  EXPECT_EQ(exported.status, 1);
  EXPECT_THAT(exported.errors, HasSubstr("KVC files hold states of DeepSeek V4 Flash only"));
  EXPECT_FALSE(fs::exists(cache_));
}

TEST_F(Exchange, WhatIsMissingIsTold) {
  EXPECT_EQ(run({"import", cache_}).status, 2);
  EXPECT_EQ(run({"export", "--model", testing_model()}).status, 2);
  EXPECT_THAT(run({"export", "--model", testing_model(), cache_, folder_ / "one.kv"}).errors,
              HasSubstr("is not a folder of the disk cache"));
  ASSERT_EQ(
      run({"import", "--model", testing_model(), write_file(MadeState(store::flash_layout(), 5)), cache_})
          .status,
      0);
  EXPECT_THAT(
      run({"export", "--model", testing_model(), "--key", "not-a-key", cache_, folder_ / "one.kv"}).errors,
      HasSubstr("no state with the key not-a-key"));
  EXPECT_THAT(run({"import", "--model", testing_model(), folder_, cache_}).errors,
              HasSubstr("no KVC files in"));
  const Ran nothing = run({"import", "--model", testing_model(), folder_ / "none.kv", cache_});
  EXPECT_EQ(nothing.status, 1);
  EXPECT_THAT(nothing.errors, HasSubstr("none.kv: cannot open"));
}

TEST(ModelStates, AreThoseOfTheEngine) {
  const std::string path = fs::path(::testing::TempDir()) / fmt::format("model-states-{}.gguf", ::getpid());
  for (const bool mtp : {false, true}) {
    ds4::testing::TinyModelOptions options;
    options.with_mtp = mtp;
    ASSERT_TRUE(ds4::testing::write_tiny_model(path, options));
    EngineOptions engine_options;
    engine_options.model_path = path;
    engine_options.backend = BackendChoice::cpu;
    for (const bool exact : {false, true}) {
      engine_options.exact_activations = exact;
      const auto engine = Engine::open(engine_options);
      ASSERT_TRUE(engine) << engine.error().message;
      const auto states = store::read_model_states({path, "", exact});
      ASSERT_TRUE(states) << states.error().message;
      EXPECT_EQ(states->fingerprint, engine->fingerprint().value_or(""));
      EXPECT_EQ(states->layout.frontier_bytes(200), engine->state_layout().frontier_bytes(200));
    }
  }
  fs::remove(path);
}

}  // namespace
}  // namespace ds4::kv
