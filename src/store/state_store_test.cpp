#include "store/state_store.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>

#include "store/store_fixture.hpp"

namespace ds4::store {
namespace {

using namespace testing;

TEST_F(StoreTest, FindsTheLongestBeginning) {
  auto store = open();
  EXPECT_EQ(restore(*store, run(20)), 0u);
  write(*store, run(10));
  write(*store, run(17));
  EXPECT_EQ(restore(*store, run(9)), 0u);
  EXPECT_EQ(restore(*store, run(10)), 10u);
  EXPECT_EQ(restore(*store, run(16)), 10u);
  EXPECT_EQ(restore(*store, run(17)), 17u);
  EXPECT_EQ(restore(*store, run(100)), 17u);
  EXPECT_EQ(restore(*store, join(run(12), run(20, 500))), 10u);
  EXPECT_EQ(restore(*store, join(run(9), run(20, 500))), 0u);
  const StoreStats stats = store->stats();
  EXPECT_EQ(stats.hits, 5u);
  EXPECT_EQ(stats.misses, 3u);
  EXPECT_EQ(stats.miss_reasons.at("empty"), 1u);
  EXPECT_EQ(stats.miss_reasons.at("other-start"), 2u);
}

TEST_F(StoreTest, EveryLengthIsRestored) {
  auto store = open();
  for (size_t length = 2; length < 80; ++length) {
    write(*store, join(run(1, 10000 + static_cast<Token>(length)), run(length - 1)));
  }
  store = open();
  for (size_t length = 2; length < 80; ++length) {
    EXPECT_EQ(restore(*store, join(run(1, 10000 + static_cast<Token>(length)), run(90))), length);
  }
}

TEST_F(StoreTest, AnswersWithinWhatTheCallerCanUse) {
  auto store = open();
  write(*store, run(10));
  write(*store, run(20));
  const std::vector<Token> prompt = run(30);
  EXPECT_EQ(store->find({.tokens = prompt, .longer_than = 20}), std::nullopt);
  EXPECT_EQ(store->find({.tokens = prompt, .longer_than = 19})->position, 20u);
  EXPECT_EQ(store->find({.tokens = prompt, .most_tokens = 19})->position, 10u);
  StateStoreOptions longer = options();
  longer.policy.min_tokens = 15;
  store = open(longer);
  EXPECT_EQ(restore(*store, run(18)), 0u);
  EXPECT_EQ(write(*store, run(14, 300)).outcome, WriteReport::Outcome::too_short);
}

TEST_F(StoreTest, WritesOnlyWhatIsNew) {
  auto store = open();
  const WriteReport first = write(*store, run(40));
  EXPECT_EQ(first.blocks_written, 10u);
  const WriteReport grown = write(*store, run(61));
  EXPECT_EQ(grown.blocks_written, 5u);
  EXPECT_EQ(write(*store, run(61)).outcome, WriteReport::Outcome::known);
  const WriteReport branch = write(*store, join(run(42), run(10, 700)));
  EXPECT_EQ(branch.blocks_written, 3u);
  EXPECT_EQ(restore(*store, run(61)), 61u);
  EXPECT_EQ(restore(*store, join(run(42), run(10, 700))), 52u);
}

TEST_F(StoreTest, AThousandConversationsShareTheirBeginning) {
  auto store = open();
  const std::vector<Token> start = run(64);
  uint64_t blocks = 0;
  for (Token i = 0; i < 1000; ++i) {
    blocks += write(*store, join(start, run(6, 1000 + 10 * i))).blocks_written;
  }
  EXPECT_EQ(blocks, 16u + 1000u);
  for (Token i = 0; i < 1000; i += 111) EXPECT_EQ(restore(*store, join(start, run(6, 1000 + 10 * i))), 70u);
  const StoreStats stats = store->stats();
  EXPECT_EQ(stats.entries, 1000u);
  EXPECT_EQ(stats.segments, 2u + 1000u);
}

TEST_F(StoreTest, StatesOfAnotherModelAreNotFound) {
  auto store = open();
  write(*store, run(10));
  fingerprint_ = fingerprint_b;
  auto other = open();
  EXPECT_EQ(restore(*other, run(10)), 0u);
  ASSERT_TRUE(other->write(FakeState(run(10), 7), {}));
  EXPECT_EQ(restore(*other, run(10), 7), 10u);
  EXPECT_EQ(restore(*store, run(10)), 10u);
}

TEST_F(StoreTest, SmallStepsAreSkippedUnlessForced) {
  StateStoreOptions sparse = options();
  sparse.min_growth_tokens = 8;
  auto store = open(sparse);
  write(*store, run(20));
  EXPECT_EQ(write(*store, run(27)).outcome, WriteReport::Outcome::too_close);
  EXPECT_EQ(write(*store, run(28)).outcome, WriteReport::Outcome::written);
  EXPECT_EQ(write(*store, run(29), {.forced = true}).outcome, WriteReport::Outcome::written);
}

TEST_F(StoreTest, KeepsAFewStatesOfAGrowingText) {
  auto store = open();
  for (size_t length = 10; length <= 400; length += 10) write(*store, run(length));
  EXPECT_EQ(store->stats().entries, most_unshared_frontiers);
  EXPECT_EQ(restore(*store, run(400)), 400u);
  EXPECT_GE(restore(*store, run(399)), 370u);
  EXPECT_GE(restore(*store, run(200)), 10u);
  // States where others branch off, and beginnings of conversations, are no part of that.
  write(*store, join(run(400), run(8, 900)));
  write(*store, join(run(400), run(8, 1900)), {.anchor = true});
  for (size_t length = 20; length <= 400; length += 10) write(*store, join(run(400), run(length, 900)));
  EXPECT_EQ(restore(*store, run(400)), 400u);
  EXPECT_EQ(restore(*store, join(run(400), run(8, 1900))), 408u);
}

TEST_F(StoreTest, FoldersAndFilesArePrivate) {
  auto store = open();
  write(*store, run(40));
  store->put_reply(std::vector<std::string_view>{"key"}, std::as_bytes(std::span("bytes"))).has_value();
  struct stat status{};
  size_t files = 0;
  ASSERT_EQ(stat(folder_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
    ASSERT_EQ(stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, entry.is_directory() ? 0700u : 0600u) << entry.path();
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_GE(files, 6u);
}

TEST_F(StoreTest, TextFindsWhatWasTokenisedAnotherWay) {
  const Token user = 90, assistant = 91;
  const auto borders_of = [&](const std::vector<Token>& tokens, const std::vector<std::string>& texts) {
    TextBorderBuilder builder;
    for (size_t i = 0; i < tokens.size(); ++i)
      builder.add(texts[i], tokens[i] == user || tokens[i] == assistant);
    return builder.borders();
  };
  auto store = open();
  // "hel" + "lo" was sampled; the tokenizer would write "hello".
  const std::vector<Token> sampled{user, 1, assistant, 2, 3, user, 4};
  const std::vector<std::string> texts{"<U>", "hi", "<A>", "hel", "lo", "<U>", "more"};
  const std::vector<Token> turn(sampled.begin(), sampled.begin() + 5);
  write(*store, turn, {.borders = borders_of(turn, texts)});
  write(*store, sampled, {.borders = borders_of(sampled, texts)});

  const std::string text = "<U>hi<A>hello<U>next<A>";
  const std::vector<size_t> special{0, 5, 13, 20};
  const std::vector<Token> prompt{user, 1, assistant, 7, user, 8, assistant};
  EXPECT_EQ(store->find({.tokens = prompt}), std::nullopt);
  const auto borders = prompt_borders(text, special);
  const auto match = store->find({.tokens = prompt, .borders = borders});
  ASSERT_TRUE(match);
  EXPECT_EQ(match->position, 5u);
  EXPECT_EQ(match->tokens, turn);
  EXPECT_EQ(match->text_bytes, 13u);
  FakeState sink(turn);
  ASSERT_TRUE(store->read(*match, sink));
  EXPECT_EQ(sink.wrong, 0u);

  // The same letters, but typed: no special tokens.
  const auto typed = prompt_borders("<U>hi<A>hello<U>next<A>", std::vector<size_t>{0, 13, 20});
  EXPECT_EQ(store->find({.tokens = prompt, .borders = typed}), std::nullopt);
  // Still there when the state that came later goes, and in a new index.
  const auto entries = store->list();
  for (const StoreEntry& entry : *entries) {
    if (entry.tokens != 7) continue;
    ASSERT_EQ(*store->purge({.key = entry.key}), 1u);
  }
  EXPECT_TRUE(store->find({.tokens = prompt, .borders = borders}));
  store.reset();
  std::filesystem::remove(folder_ / "index.sqlite");
  store = open();
  EXPECT_EQ(store->find({.tokens = prompt, .borders = borders})->position, 5u);
}

TEST_F(StoreTest, RepliesAreKeptUnderAllTheirKeys) {
  auto store = open();
  const std::vector<std::string_view> keys{"call_1", "call_2"};
  const std::string reply = "what was sampled";
  ASSERT_TRUE(store->put_reply(keys, std::as_bytes(std::span(reply))));
  ASSERT_TRUE(store->put_reply(keys, std::as_bytes(std::span(reply))));
  const auto text_of = [](const auto& bytes) {
    return bytes ? std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size()) : "nothing";
  };
  EXPECT_EQ(text_of(store->get_reply("call_2")), reply);
  EXPECT_EQ(store->get_reply("call_3"), std::nullopt);
  ASSERT_TRUE(store->put_reply(std::vector<std::string_view>{"call_1"}, std::as_bytes(std::span("new"))));
  EXPECT_EQ(text_of(store->get_reply("call_1")).substr(0, 3), "new");
  EXPECT_EQ(text_of(store->get_reply("call_2")), reply);
  store.reset();
  std::filesystem::remove(folder_ / "index.sqlite");
  store = open();
  EXPECT_EQ(text_of(store->get_reply("call_2")), reply);
  fingerprint_ = fingerprint_b;
  EXPECT_EQ(open()->get_reply("call_2"), std::nullopt);
}

TEST_F(StoreTest, TheOldestRepliesGoFirst) {
  StateStoreOptions few = options();
  few.reply_bytes = 2000;
  auto store = open(few);
  const std::vector<std::byte> bytes(400);
  for (int i = 0; i < 10; ++i) {
    ++time_;
    ASSERT_TRUE(store->put_reply(std::vector<std::string_view>{std::to_string(i)}, bytes));
  }
  EXPECT_FALSE(store->get_reply("0"));
  EXPECT_TRUE(store->get_reply("9"));
  EXPECT_TRUE(store->get_reply("6"));
  ASSERT_TRUE(store->put_reply(std::vector<std::string_view>{"large"}, std::vector<std::byte>(3000)));
  EXPECT_FALSE(store->get_reply("large"));
}

TEST_F(StoreTest, ToolsListPinAndPurge) {
  auto store = open();
  write(*store, run(20), {.reason = SaveReason::cold, .anchor = true});
  time_ += 100;
  write(*store, run(30), {.reason = SaveReason::turn});
  auto entries = *store->list();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].tokens, 20u);
  EXPECT_TRUE(entries[0].anchor);
  EXPECT_EQ(entries[0].reason, SaveReason::cold);
  EXPECT_EQ(entries[1].parent, entries[0].key);
  EXPECT_EQ(entries[1].fingerprint.hex(), fingerprint_a);
  EXPECT_LT(entries[1].own_bytes, entries[1].frontier_bytes + entries[1].segment_bytes);
  ASSERT_TRUE(store->set_pinned(entries[0].key, true));
  EXPECT_FALSE(store->set_pinned(Hash128{}, true));
  const auto report = store->verify(false);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->damaged.empty());
  EXPECT_GE(report->files, 4u);
  // Pins survive the index.
  store.reset();
  std::filesystem::remove(folder_ / "index.sqlite");
  store = open();
  EXPECT_TRUE((*store->show(entries[0].key))->pinned);
  EXPECT_EQ(*store->purge({}), 1u);
  EXPECT_EQ(restore(*store, run(30)), 20u);
  time_ += 50;
  EXPECT_EQ(*store->purge({.unused_for_s = 100, .pinned_too = true}), 0u);
  EXPECT_EQ(*store->purge({.pinned_too = true}), 1u);
  EXPECT_EQ(store->stats().segments, 0u);
  EXPECT_TRUE(files_with(folder_.string(), ".seg").empty());
  EXPECT_TRUE(files_with(folder_.string(), ".pin").empty());
}

TEST_F(StoreTest, ErrorsOfTheEngineDoNotHarmTheFiles) {
  class Failing : public FakeState {
   public:
    using FakeState::FakeState;
    Result<void> export_frontier(std::span<std::byte>) const override {
      return Error{ErrorCode::no_state, "not now"};
    }
    Result<void> add_block(std::span<const std::byte>) override {
      return Error{ErrorCode::context_full, "full"};
    }
  };
  auto store = open();
  EXPECT_EQ(store->write(Failing(run(40)), {}).error().code, ErrorCode::no_state);
  EXPECT_TRUE(files_with(folder_.string(), ".seg").empty()) << "what nothing counts is removed";
  EXPECT_EQ(store->stats().entries, 0u);
  write(*store, run(40));
  Failing sink(run(40));
  const auto match = store->find({.tokens = run(40)});
  EXPECT_EQ(store->read(*match, sink).error().code, ErrorCode::context_full);
  EXPECT_EQ(restore(*store, run(40)), 40u);
  // A state that the engine does not take is given up by the caller.
  store->drop(match->key, "the engine refused it");
  EXPECT_EQ(restore(*store, run(40)), 0u);
}

// Stands for a full disk: files cannot grow beyond a few bytes.
TEST_F(StoreTest, AFullDiskIsOneLine) {
  sizes_.frontier_base_bytes = 300000;
  auto store = open();
  write(*store, run(10));
  const rlimit small{200000, RLIM_INFINITY};
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  for (Token i = 1; i < 20; ++i) EXPECT_FALSE(store->write(FakeState(run(10, 1000 * i)), {}));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(log_.size(), 1u);
  EXPECT_EQ(store->stats().write_failures, 19u);
  EXPECT_EQ(files_with(folder_.string(), ".seg").size(), 1u);
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "tmp"));
  EXPECT_EQ(restore(*store, run(10)), 10u);
  write(*store, run(20));
  EXPECT_EQ(restore(*store, run(20)), 20u);
}

TEST_F(StoreTest, OptionsAreChecked) {
  StateStoreOptions wrong = options();
  wrong.fingerprint = "short";
  EXPECT_EQ(StateStore::open(wrong).error().code, ErrorCode::invalid_argument);
  wrong = options();
  wrong.block_bytes = 0;
  EXPECT_EQ(StateStore::open(wrong).error().code, ErrorCode::invalid_argument);
  wrong = options();
  const std::string file = folder_.string() + "-file";
  write_file(file, "x");
  wrong.directory.directory = file;
  EXPECT_FALSE(StateStore::open(wrong));
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace ds4::store
