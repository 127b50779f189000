#include "store/kvc_file.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "store/test_byte_access.hpp"
#include "store/test_made_state.hpp"

namespace ds4::store {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// A file for `tokens` tokens whose payload is in the hole of a SparseBytes: zeros.
struct MadeFile {
  std::vector<std::byte> bytes = std::vector<std::byte>(kvc_header_bytes);
  uint64_t payload = 1000;

  explicit MadeFile(std::string_view text = "text", std::string_view trailer = "") {
    std::memcpy(bytes.data(), "KVC\1\2\1", 6);
    put<uint32_t>(8, 5);
    put<uint64_t>(40, payload);
    put<uint32_t>(48, static_cast<uint32_t>(text.size()));
    if (!trailer.empty()) put<uint8_t>(6, kvc_has_tools);
    append(text);
    hole_at = bytes.size();
    append(trailer);
  }

  template <class T>
  MadeFile& put(size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    return *this;
  }
  void append(std::string_view text) {
    const size_t before = bytes.size();
    bytes.resize(before + text.size());
    std::copy_n(reinterpret_cast<const std::byte*>(text.data()), text.size(), bytes.data() + before);
  }
  Result<KvcFile> open() const {
    return KvcFile::open(std::make_unique<SparseBytes>(bytes, hole_at, payload), "file");
  }
  std::string error() const {
    const auto file = open();
    return file ? "" : file.error().message;
  }

  size_t hole_at = 0;
};

std::string trailer_of(uint32_t count, uint32_t id_bytes, uint32_t block_bytes, std::string_view rest) {
  std::string bytes = "KTM\1";
  for (const uint32_t value : {count, id_bytes, block_bytes})
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return bytes.append(rest);
}

TEST(KvcFile, NamesAreHashesOfTheText) {
  EXPECT_EQ(kvc_file_name("abc"), "a9993e364706816aba3e25717850c26c9cd0d89d.kv");
  EXPECT_EQ(kvc_file_name(""), "da39a3ee5e6b4b0d3255bfef95601890afd80709.kv");
  EXPECT_TRUE(is_kvc_file_name("A9993E364706816ABA3E25717850C26C9CD0D89D.kv"));
  EXPECT_FALSE(is_kvc_file_name("a9993e364706816aba3e25717850c26c9cd0d89d.kv.tmp.12"));
  EXPECT_FALSE(is_kvc_file_name("a9993e364706816aba3e25717850c26c9cd0d89.kv"));
  EXPECT_FALSE(is_kvc_file_name("g9993e364706816aba3e25717850c26c9cd0d89d.kv"));
}

TEST(KvcFile, HeaderFieldsAreChecked) {
  EXPECT_EQ(MadeFile().error(), "");
  EXPECT_EQ(MadeFile().put<char>(0, 'k').error(), "file: is not a KVC file");
  EXPECT_EQ(MadeFile().put<uint8_t>(3, 2).error(), "file: KVC version 2 is not known, only 1 is");
  EXPECT_EQ(MadeFile().put<uint8_t>(4, 3).error(), "file: experts of 3 bits, but only 2 and 4 are possible");
  EXPECT_EQ(MadeFile().put<uint32_t>(8, 0).error(), "file: the header tells of no tokens");
  EXPECT_THAT(MadeFile().put<uint32_t>(48, UINT32_MAX).error(), HasSubstr("more than the file has"));
  for (const uint64_t size : {uint64_t{1001}, uint64_t{1} << 62, UINT64_MAX, UINT64_MAX - 55})
    EXPECT_THAT(MadeFile().put<uint64_t>(40, size).error(), HasSubstr("more than the file has")) << size;
  const auto file = MadeFile().put<uint8_t>(5, 9).open();
  ASSERT_TRUE(file);
  EXPECT_EQ(file->header().reason, KvcReason::unknown);
  for (size_t size = 0; size < kvc_header_bytes; ++size) {
    MadeFile cut;
    cut.bytes.resize(size);
    cut.payload = 0;
    EXPECT_EQ(cut.error(), fmt::format("file: {} bytes are too few for a KVC file", size));
  }
}

TEST(KvcFile, LongTextsAreNotRead) {
  MadeFile made;
  made.payload = uint64_t{1} << 40;
  made.put<uint32_t>(48, UINT32_MAX);
  const auto file = made.open();
  ASSERT_TRUE(file);
  const auto text = file->text();
  ASSERT_FALSE(text);
  EXPECT_THAT(text.error().message, HasSubstr("longer than any conversation"));
}

TEST(KvcFile, TheHeaderMustAgreeWithThePayload) {
  MadeFile made;
  const auto file = made.open();
  ASSERT_TRUE(file);
  const auto payload = file->payload(flash_layout(), {});
  ASSERT_FALSE(payload);
  EXPECT_EQ(payload.error().message, "file: the payload does not begin with DSV4");
}

TEST(KvcFile, OnlyFlashStatesAreExchanged) {
  const StateLayout nano({0, 0, 4, 128}, 256, 1024, false);
  const auto payload = MadeFile().open()->payload(nano, {});
  ASSERT_FALSE(payload);
  EXPECT_EQ(payload.error().code, ErrorCode::unsupported);
  EXPECT_EQ(
      payload.error().message,
      "KVC files hold states of DeepSeek V4 Flash only (43 layers, vocabulary 129280), and this model has "
      "4 layers and a vocabulary of 1024");
  const std::vector<Token> tokens = {1};
  EXPECT_FALSE(KvcWriter::create(testing::TempDir() + "never.kv", {}, "", tokens, nano, {}));
}

TEST(KvcTrailer, EntriesComeBack) {
  const std::vector<KvcTool> tools = {{"call_1", "block"}, {std::string(256, 'i'), std::string(5000, 'b')}};
  const auto file = MadeFile("text", kvc_trailer(tools)).open();
  ASSERT_TRUE(file);
  const auto read = file->tools();
  ASSERT_TRUE(read);
  EXPECT_EQ(read->entries, tools);
  EXPECT_EQ(read->damage, "");
  EXPECT_EQ(kvc_trailer({}), "");
}

TEST(KvcTrailer, WhatIsBeforeTheDamageIsKept) {
  const std::vector<KvcTool> tools = {{"call_1", "block"}, {"call_2", "other"}};
  const std::string whole = kvc_trailer(tools);
  for (size_t size = 0; size < whole.size(); ++size) {
    MadeFile made("text", std::string_view(whole).substr(0, size));
    made.put<uint8_t>(6, kvc_has_tools);
    const auto read = made.open()->tools();
    ASSERT_TRUE(read);
    EXPECT_EQ(read->entries.size(), size < 8 + 8 + 6 + 5 ? 0u : 1u) << size;
    EXPECT_THAT(read->damage, HasSubstr("file: the map of tool calls ends ")) << size;
  }
}

TEST(KvcTrailer, LengthsAreCheckedBeforeMemoryIsTaken) {
  const auto damage = [](const std::string& trailer, uint64_t more = 0) {
    MadeFile made("text", trailer);
    if (more > 0) made.hole_at = made.bytes.size(), made.payload += more;
    const auto read = made.open()->tools();
    return read ? read->damage : read.error().message;
  };
  EXPECT_THAT(damage(trailer_of(400001, 1, 1, "ab")), HasSubstr("more entries than"));
  EXPECT_THAT(damage(trailer_of(UINT32_MAX, 1, 1, "ab")), HasSubstr("more entries than"));
  EXPECT_THAT(damage(trailer_of(1, 0, 1, "ab")), HasSubstr("an id of an impossible length"));
  EXPECT_THAT(damage(trailer_of(1, 257, 1, std::string(400, 'a'))),
              HasSubstr("an id of an impossible length"));
  EXPECT_THAT(damage(trailer_of(1, 1, 0, "ab")), HasSubstr("an empty block"));
  EXPECT_THAT(damage(trailer_of(1, 1, UINT32_MAX, "ab")), HasSubstr("ends in an entry"));
  EXPECT_THAT(damage("KTM\2" + trailer_of(1, 1, 1, "ab").substr(4)), HasSubstr("does not begin with KTM"));
}

TEST(KvcTrailer, AHugeBlockIsNotRead) {
  // The trailer is at the end of the text; the payload is empty, and behind the trailer is a hole.
  MadeFile made("text", trailer_of(1, 1, (64u << 20), "a"));
  made.put<uint64_t>(40, 0);
  made.hole_at = made.bytes.size();
  made.payload = uint64_t{1} << 40;
  const auto read = made.open()->tools();
  ASSERT_TRUE(read);
  EXPECT_THAT(read->damage, HasSubstr("longer than any conversation"));
}

class KvcWriterTest : public testing::Test {
 protected:
  KvcWriterTest() { fs::create_directories(folder_); }
  ~KvcWriterTest() override { fs::remove_all(folder_); }

  Result<void> write(const std::string& path, bool finish = true) {
    DS4_ASSIGN(auto writer, KvcWriter::create(path, {}, "text", state_.tokens(), state_.layout(), {}));
    return finish ? writer.finish(state_.frontier()) : Result<void>();
  }

  MadeState state_{flash_layout(), 3};
  fs::path folder_ = fs::path(testing::TempDir()) / fmt::format("kvc-writer-{}", ::getpid());
};

TEST_F(KvcWriterTest, AFileThatIsNotFinishedLeavesNothing) {
  ASSERT_TRUE(write(folder_ / "a.kv", false));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(KvcWriterTest, TheOldFileStaysUntilTheNewOneIsWhole) {
  std::ofstream(folder_ / "a.kv") << "old";
  ASSERT_TRUE(write(folder_ / "a.kv", false));
  EXPECT_EQ(fs::file_size(folder_ / "a.kv"), 3u);
  ASSERT_TRUE(write(folder_ / "a.kv"));
  EXPECT_EQ(fs::file_size(folder_ / "a.kv"), 52 + 4 + payload_bytes(flash_layout(), 3));
}

TEST_F(KvcWriterTest, WhatCannotBeWrittenOrReadIsTold) {
  const auto nowhere = write(folder_ / "none" / "a.kv");
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().message, HasSubstr("cannot write: No such file"));
  EXPECT_EQ(KvcFile::open(folder_ / "none.kv").error().code, ErrorCode::not_found);
  EXPECT_THAT(KvcFile::open(folder_).error().message, HasSubstr("is not a file"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(KvcFile::open(folder_ / "pipe").error().message, HasSubstr("is not a file"));
  EXPECT_FALSE(KvcWriter::create(folder_ / "a.kv", {}, "text", {}, flash_layout(), {}));
}

TEST_F(KvcWriterTest, TokensOfHeaderAndPayloadAgree) {
  ASSERT_TRUE(write(folder_ / "a.kv"));
  std::fstream(folder_ / "a.kv", std::ios::in | std::ios::out | std::ios::binary).seekp(8).put(4);
  const auto file = KvcFile::open(folder_ / "a.kv");
  ASSERT_TRUE(file);
  EXPECT_THAT(file->payload(flash_layout(), {}).error().message,
              HasSubstr("the header tells of 4 tokens, the payload of 3"));
}

// All that is small of a file: an error of one line, or a state of the same size.
TEST_F(KvcWriterTest, AnyByteOfHeadersAndTrailerIsSafe) {
  const std::vector<KvcTool> tools = {{"call_1", "block"}, {"call_2", "other"}};
  const fs::path path = folder_ / "a.kv";
  {
    auto writer = KvcWriter::create(path, {}, "text", state_.tokens(), state_.layout(), tools);
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->finish(state_.frontier()));
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const size_t size = fs::file_size(path), front = 52 + 4 + 52 + 3 * 4;
  size_t refused = 0;
  for (size_t i = 0; i < front + kvc_trailer(tools).size(); ++i) {
    const auto at = static_cast<std::streamoff>(i < front ? i : size - kvc_trailer(tools).size() + i - front);
    file.seekg(at);
    const int byte = file.get();
    for (const int flip : {0x01, 0x40, 0xff}) {
      file.seekp(at).put(static_cast<char>(byte ^ flip)).flush();
      const auto opened = KvcFile::open(path);
      const auto payload =
          opened ? opened->payload(state_.layout(), {}) : Result<PayloadReader>(opened.error());
      const auto found = opened ? opened->tools() : Result<KvcTools>(opened.error());
      if (!payload) {
        ++refused;
        EXPECT_EQ(payload.error().message.find('\n'), std::string::npos);
        EXPECT_TRUE(payload.error().message.starts_with(path.string() + ": ")) << payload.error().message;
      } else {
        EXPECT_EQ(payload->tokens().size(), 3u) << i;
      }
      EXPECT_LE(found ? found->entries.size() : 0, 2u) << i;
    }
    file.seekp(at).put(static_cast<char>(byte)).flush();
  }
  // What remains: reason, hits, times, contexts, the text itself, other tokens.
  EXPECT_GT(refused, 190u);
  ASSERT_TRUE(KvcFile::open(path)->payload(state_.layout(), {}));
}

}  // namespace
}  // namespace ds4::store
