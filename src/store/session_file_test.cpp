#include "store/session_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "support/loaded_model.hpp"
#include "support/session_checks.hpp"

namespace ds4::store {
namespace {

using testing::logits_of;
using testing::must;
using testing::random_tokens;

constexpr uint64_t context = 2048;

Engine open_nano(bool exact = false) {
  EngineOptions options;
  options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
  options.backend = BackendChoice::cpu;
  options.threads = 1;
  options.exact_activations = exact;
  return must(Engine::open(options));
}

class SessionFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    tokens_ = random_tokens(140, 3);
    session_.emplace(must(engine_.create_session(context)));
    must(session_->sync(tokens_));
    must(save_session(path_, engine_, *session_, 5));
    std::ifstream in(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  SavedSession load() const { return must(load_session(path_, engine_, context)); }

  // Tests run side by side.
  const std::string folder_ = ::testing::TempDir() + "ds4_session_file_test_" + std::to_string(::getpid());
  const std::string path_ = folder_ + "/session";
  const Engine engine_ = open_nano();
  std::optional<Session> session_;
  std::vector<Token> tokens_;
  std::string bytes_;
};

TEST_F(SessionFileTest, GoesOnWhereItWasSaved) {
  const Engine other = open_nano();
  SavedSession saved = must(load_session(path_, other, context));
  EXPECT_EQ(saved.tokens, tokens_);
  EXPECT_EQ(saved.preamble_tokens, 5u);
  ASSERT_TRUE(saved.session.has_value()) << saved.lost;
  EXPECT_EQ(logits_of(*saved.session), logits_of(*session_));
  for (const Token token : random_tokens(70, 4)) {
    must(session_->eval(token));
    must(saved.session->eval(token));
  }
  EXPECT_EQ(logits_of(*saved.session), logits_of(*session_));
}

TEST_F(SessionFileTest, OnlyTheOwnerReadsANewFile) {
  struct stat status{};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(SessionFileTest, ADamagedStateLeavesTheTokens) {
  const size_t state = 128 + 4 * tokens_.size();
  std::mt19937 random(1);
  for (int i = 0; i < 40; ++i) {
    std::string damaged = bytes_;
    const size_t at = state + random() % (damaged.size() - state);
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    write(damaged);
    const SavedSession saved = load();
    EXPECT_FALSE(saved.session.has_value()) << at;
    EXPECT_EQ(saved.tokens, tokens_);
    EXPECT_NE(saved.lost.find(path_), std::string::npos);
  }
}

TEST_F(SessionFileTest, EveryByteOfTheHeaderCounts) {
  for (size_t at = 0; at < 128 + 4 * tokens_.size(); at += at < 128 ? 1 : 37) {  // the tokens follow
    std::string damaged = bytes_;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    write(damaged);
    const auto loaded = load_session(path_, engine_, context);
    ASSERT_FALSE(loaded) << at;
    EXPECT_EQ(loaded.error().code, ErrorCode::format) << at;
  }
}

TEST_F(SessionFileTest, CutOffAnywhere) {
  for (size_t size = 0; size < bytes_.size(); size += size < 1000 ? 13 : 50021) {
    write(bytes_.substr(0, size));
    const auto loaded = load_session(path_, engine_, context);
    if (loaded) {
      EXPECT_FALSE(loaded->session.has_value()) << size;
    } else {
      EXPECT_EQ(loaded.error().code, ErrorCode::format) << size;
    }
  }
  write(bytes_ + "x");
  EXPECT_FALSE(load().session.has_value());
}

TEST_F(SessionFileTest, OtherNumericsLeaveTheTokens) {
  const Engine exact = open_nano(true);
  const SavedSession saved = must(load_session(path_, exact, context));
  EXPECT_FALSE(saved.session.has_value());
  EXPECT_EQ(saved.tokens, tokens_);
}

TEST_F(SessionFileTest, TooSmallAContextIsToldWithNumbers) {
  const auto loaded = load_session(path_, engine_, 140);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::context_full);
  EXPECT_NE(loaded.error().message.find("140"), std::string::npos);
}

TEST_F(SessionFileTest, OnlySavedSessionsAreReplaced) {
  for (const std::string letter : {"dear", "a letter that was not written by this program"}) {
    write(letter);
    const auto saved = save_session(path_, engine_, *session_, 5);
    ASSERT_FALSE(saved);
    EXPECT_NE(saved.error().message.find(path_), std::string::npos);
    std::ifstream in(path_);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), letter);
  }
  for (const std::string& replaced : {std::string(), bytes_.substr(0, 100)}) {
    write(replaced);
    EXPECT_TRUE(save_session(path_, engine_, *session_, 5));
    EXPECT_TRUE(load().session.has_value());
  }
}

TEST_F(SessionFileTest, AFailedSaveLeavesTheOldFile) {
  const Session empty = must(engine_.create_session(context));
  EXPECT_FALSE(save_session(path_, engine_, empty, 0));
  EXPECT_TRUE(load().session.has_value());
  EXPECT_FALSE(save_session(folder_ + "/no/such/folder", engine_, *session_, 0));
}

}  // namespace
}  // namespace ds4::store
