#include "store/kvc_exchange.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "store/kvc_file.hpp"
#include "store/reply_codec.hpp"
#include "store/test_made_state.hpp"
#include "text/test_vocabulary.hpp"

namespace ds4::store {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const Tokenizer& tokenizer() {
  static const Tokenizer instance = text::nano_vocabulary().make().value();
  return instance;
}

class MemorySink : public StateSink {
 public:
  Result<void> add_block(std::span<const std::byte> bytes) override {
    blocks.emplace_back(bytes.begin(), bytes.end());
    return {};
  }
  Result<void> add_frontier(std::span<const std::byte> bytes) override {
    frontier.assign(bytes.begin(), bytes.end());
    return {};
  }

  std::vector<std::vector<std::byte>> blocks;
  std::vector<std::byte> frontier;
};

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class KvcExchange : public testing::Test {
 protected:
  KvcExchange() {
    fs::create_directories(folder_ / "files");
    StateStoreOptions options;
    options.directory.directory = folder_ / "store";
    options.fingerprint = "00112233445566778899aabbccddeeff";
    options.block_bytes = layout_.block_bytes();
    options.frontier_bytes = [this](uint64_t position) { return layout_.frontier_bytes(position); };
    options.policy.min_tokens = 1;
    auto store = StateStore::open(std::move(options));
    EXPECT_TRUE(store) << store.error().message;
    store_ = std::move(*store);
  }
  ~KvcExchange() override {
    store_.reset();
    fs::remove_all(folder_);
  }

  /// A file as the original would have written it.
  fs::path write_file(const MadeState& state, KvcHeader header = {}, std::vector<KvcTool> tools = {},
                      std::optional<std::string> other_text = std::nullopt) {
    const std::string text = other_text.value_or(tokenizer().decode(state.tokens()));
    const fs::path path = folder_ / "files" / kvc_file_name(text);
    auto writer = KvcWriter::create(path, header, text, state.tokens(), state.layout(), tools);
    EXPECT_TRUE(writer);
    for (size_t b = 0; b < state.blocks(); ++b) EXPECT_TRUE(writer->add_block(state.block(b)));
    EXPECT_TRUE(writer->finish(state.frontier()));
    return path;
  }

  Result<KvcImport> import(const fs::path& path) { return import_kvc(*store_, path, {layout_, tokenizer()}); }
  std::string import_error(const fs::path& path) {
    const auto done = import(path);
    return done ? "" : done.error().message;
  }

  const StateLayout layout_ = flash_layout();
  const fs::path folder_ = fs::path(testing::TempDir()) / fmt::format("kvc-exchange-{}", ::getpid());
  std::unique_ptr<StateStore> store_;
};

TEST_F(KvcExchange, StatesPassThroughTheStoreUnchanged) {
  const MadeState state(layout_, 300);
  KvcHeader header;
  header.reason = KvcReason::cold;
  const fs::path path = write_file(state, header);
  const auto imported = import(path);
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->tokens, 300u);
  EXPECT_EQ(imported->written.outcome, WriteReport::Outcome::written);
  EXPECT_TRUE(imported->notices.empty());

  const auto match = store_->find({.tokens = state.tokens()});
  ASSERT_TRUE(match);
  EXPECT_EQ(match->position, 300u);
  MemorySink sink;
  ASSERT_TRUE(store_->read(*match, sink));
  ASSERT_EQ(sink.blocks.size(), 2u);
  for (size_t b = 0; b < 2; ++b) EXPECT_EQ(sink.blocks[b], state.block(b));
  EXPECT_EQ(sink.frontier, state.frontier());

  const auto entry = store_->show(match->key);
  ASSERT_TRUE(entry && *entry);
  EXPECT_EQ((*entry)->reason, SaveReason::cold);
  fs::create_directories(folder_ / "out");
  const auto exported = export_kvc(*store_, **entry, folder_ / "out", {layout_, tokenizer()}, 2);
  ASSERT_TRUE(exported) << exported.error().message;
  EXPECT_EQ(fs::path(exported->path).filename(), path.filename());
  EXPECT_EQ(exported->file_bytes, fs::file_size(exported->path));
  const std::string before = read_text(path), after = read_text(exported->path);
  EXPECT_TRUE(std::equal(before.begin() + kvc_header_bytes, before.end(), after.begin() + kvc_header_bytes,
                         after.end()));
  EXPECT_EQ(KvcFile::open(exported->path)->header().reason, KvcReason::cold);
}

TEST_F(KvcExchange, BorderStatesAreFoundByText) {
  // Between the special tokens of a conversation, text counts, not how it is split into tokens.
  RenderedPrompt rendered;
  rendered.spans = {
      {"<｜begin▁of▁sentence｜><｜User｜>", true}, {"a question", false}, {"<｜Assistant｜></think>", true}};
  const std::vector<Token> tokens = rendered.encode(tokenizer());
  const MadeState state(layout_, tokens);
  ASSERT_TRUE(import(write_file(state)));
  const std::string text = rendered.text();
  TextBorderBuilder builder;
  builder.add("<｜begin▁of▁sentence｜>", true);
  builder.add("<｜User｜>", true);
  for (const char c : std::string_view("a question")) builder.add({&c, 1}, false);
  builder.add("<｜Assistant｜>", true);
  builder.add("</think>", true);
  const auto match = store_->find({.tokens = {}, .borders = builder.borders()});
  ASSERT_TRUE(match);
  EXPECT_EQ(match->tokens, tokens);
}

TEST_F(KvcExchange, WhatDoesNotFitIsRefused) {
  const MadeState state(layout_, 130);
  const fs::path good = write_file(state);
  const fs::path other_name = good.parent_path() / kvc_file_name("another text");
  fs::copy(good, other_name);
  EXPECT_THAT(import_error(other_name), HasSubstr("the name is not the hash of the text"));
  EXPECT_THAT(import_error(write_file(state, {}, {}, "not what the tokens say")),
              HasSubstr("the text is not that of the tokens"));
  EXPECT_THAT(import_error(good.parent_path() / "none.kv"), HasSubstr("cannot open"));
  // A number of the last layer: seen when half of the state is written.
  std::fstream file(good, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-100, std::ios::end);
  file.write("\xff\xff\xff\x7f\xff\xff\xff\x7f", 8);
  file.close();
  EXPECT_EQ(import_error(good), "");  // scores of rows that no token wrote
  file.open(good, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(fs::file_size(good) - payload_bytes(layout_, 130) + 52 + 4 * 130));
  file.write("\xff\xff\xff\x7f", 4);
  file.close();
  EXPECT_TRUE(store_->purge({}));
  EXPECT_THAT(import_error(good), HasSubstr("the logits hold numbers that are not finite"));
  EXPECT_EQ(store_->list()->size(), 0u);
  EXPECT_EQ(store_->stats().segments, 0u) << "rows of a state that was given up";
}

TEST_F(KvcExchange, ATranscriptNeedNotBeTheTextOfTheTokens) {
  KvcHeader header;
  header.flags = kvc_responses_key;
  EXPECT_EQ(import_error(write_file(MadeState(layout_, 3), header, {}, "what a client sees")), "");
}

TEST_F(KvcExchange, RepliesComeAlong) {
  const std::string block =
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"x\" string=\"true\">1"
      "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  RenderedPrompt rendered;
  rendered.spans = {{"<｜begin▁of▁sentence｜><｜User｜>", true},
                    {"a question", false},
                    {"<｜Assistant｜></think>", true},
                    {"Wait.", false},
                    {block + "<｜end▁of▁sentence｜>", true}};
  const MadeState state(layout_, rendered.encode(tokenizer()));
  const auto imported = import(write_file(state, {}, {{"call_1", block}, {"call_2", "another block"}}));
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->replies, 1u);
  const auto bytes = store_->get_reply("call_1");
  ASSERT_TRUE(bytes);
  const auto reply = parse_sampled_reply(*bytes);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->content, (std::vector<PromptSpan>{{"Wait.", false}}));
  EXPECT_FALSE(store_->get_reply("call_2"));
}

TEST_F(KvcExchange, OnlyFlashIsExchanged) {
  const StateLayout nano({0, 0, 4, 128}, 256, 1024, false);
  const auto imported = import_kvc(*store_, write_file(MadeState(layout_, 3)), {nano, tokenizer()});
  ASSERT_FALSE(imported);
  EXPECT_THAT(imported.error().message, HasSubstr("DeepSeek V4 Flash only"));
  const auto exported = export_kvc(*store_, {}, folder_ / "a.kv", {nano, tokenizer()}, 2);
  ASSERT_FALSE(exported);
  EXPECT_EQ(exported.error().code, ErrorCode::unsupported);
  EXPECT_EQ(export_kvc(*store_, {}, folder_ / "a.kv", {layout_, tokenizer()}, 2).error().code,
            ErrorCode::not_found);
}

}  // namespace
}  // namespace ds4::store
