// Files of made-up Flash states against hashes that a script took from the specification alone
// (tests/data/kvc/make_golden.py).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <boost/json.hpp>

#include "store/kvc_file.hpp"
#include "store/test_made_state.hpp"

namespace ds4::store {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

std::string sha256(std::span<const std::byte> bytes) {
  std::array<std::byte, 32> digest{};
  EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr,
             EVP_sha256(), nullptr);
  return hex(digest);
}

std::string read_text(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

const boost::json::array& goldens() {
  static const boost::json::value value =
      boost::json::parse(read_text(DS4_SOURCE_DIR "/tests/data/kvc/golden.json"));
  return value.as_array();
}

class KvcGolden : public testing::TestWithParam<size_t> {
 protected:
  KvcGolden() : golden_(goldens().at(GetParam()).as_object()) {
    std::filesystem::create_directories(folder_);
  }
  ~KvcGolden() override { std::filesystem::remove_all(folder_); }

  std::string expected(const char* key) const { return std::string(golden_.at(key).as_string()); }
  uint32_t token_count() const { return golden_.at("tokens").to_number<uint32_t>(); }
  std::string cache_text() const {
    return fmt::format("A cache text for {} tokens, in UTF-8: \xc3\xa4\xe6\xbc\xa2\xf0\x9f\x98\x80",
                       token_count());
  }

  const boost::json::object& golden_;
  std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / fmt::format("kvc-golden-{}-{}", ::getpid(), GetParam());
};

TEST_P(KvcGolden, WritingAndReadingAreExact) {
  const MadeState state(flash_layout(), token_count());
  std::vector<std::byte> blocks;
  for (size_t b = 0; b < state.blocks(); ++b) {
    const auto block = state.block(b);
    blocks.insert(blocks.end(), block.begin(), block.end());
  }
  EXPECT_EQ(sha256(blocks), expected("blocks")) << "the state is another one than the script's";
  EXPECT_EQ(sha256(state.frontier()), expected("frontier")) << "the state is another one than the script's";

  KvcHeader header;
  header.reason = KvcReason::cold;
  header.hits = 7;
  header.created_at = 1700000000;
  header.last_used = 1700000123;
  const std::vector<KvcTool> tools = {{"call_1", "\n\n<tools>one</tools>"},
                                      {"toolu_2", "<tools>two</tools>"}};
  EXPECT_EQ(kvc_file_name(cache_text()), expected("name"));
  const std::string path = folder_ / expected("name");
  auto writer = KvcWriter::create(path, header, cache_text(), state.tokens(), state.layout(), tools);
  ASSERT_TRUE(writer) << writer.error().message;
  for (size_t b = 0; b < state.blocks(); ++b) ASSERT_TRUE(writer->add_block(state.block(b)));
  EXPECT_FALSE(std::filesystem::exists(path)) << "the file must not be seen before it is whole";
  ASSERT_TRUE(writer->finish(state.frontier()));

  const std::string bytes = read_text(path);
  for (const auto& sample : golden_.at("samples").as_array()) {
    const auto offset = sample.at(0).to_number<size_t>();
    ASSERT_LT(offset, bytes.size());
    const size_t size = std::min<size_t>(64, bytes.size() - offset);
    EXPECT_EQ(hex(std::as_bytes(std::span(bytes).subspan(offset, size))), sample.at(1).as_string())
        << "at " << offset;
  }
  EXPECT_EQ(sha256(std::as_bytes(std::span(bytes))), expected("file"));
  struct stat status{};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1)
      << "a temporary file was left";

  const auto file = KvcFile::open(path);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->header().payload_bytes, golden_.at("payload_bytes").to_number<uint64_t>());
  EXPECT_EQ(file->header().hits, 7u);
  EXPECT_EQ(file->text().value_or(""), cache_text());
  const auto read_tools = file->tools();
  ASSERT_TRUE(read_tools);
  EXPECT_EQ(read_tools->entries, tools);
  EXPECT_EQ(read_tools->damage, "");
  const auto reader = file->payload(state.layout(), {});
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(reader->tokens(), state.tokens());
  ASSERT_EQ(reader->blocks(), state.blocks());
  std::vector<std::byte> piece(reader->block_bytes());
  for (size_t b = 0; b < state.blocks(); ++b) {
    ASSERT_TRUE(reader->export_block(b, piece));
    EXPECT_EQ(piece, state.block(b)) << "block " << b;
  }
  piece.resize(reader->frontier_bytes());
  ASSERT_TRUE(reader->export_frontier(piece));
  EXPECT_EQ(piece, state.frontier());
}

INSTANTIATE_TEST_SUITE_P(Tokens, KvcGolden, testing::Range<size_t>(0, 5));

TEST(KvcGoldenFile, HasFiveStates) {
  EXPECT_EQ(goldens().size(), 5u);
}

}  // namespace
}  // namespace ds4::store
