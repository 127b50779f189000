#include "store/dsv4_payload.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "store/dsv4_layout.hpp"
#include "store/test_byte_access.hpp"
#include "store/test_made_state.hpp"

namespace ds4::store {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr uint32_t vocabulary = 40;
constexpr size_t payload_at = 1000;  // in the source

StateLayout small_layout(bool drafter = false) {
  return {{0, 4, 128, 4}, 256, vocabulary, drafter};
}

MemoryBytes write(const MadeState& state) {
  MemoryBytes bytes;
  const PayloadHeader header = payload_header(static_cast<uint32_t>(state.tokens().size()));
  auto writer = PayloadWriter::begin(bytes, payload_at, state.layout(), state.tokens(), header);
  EXPECT_TRUE(writer);
  for (size_t b = 0; b < state.blocks(); ++b) EXPECT_TRUE(writer->add_block(state.block(b)));
  EXPECT_TRUE(writer->finish(state.frontier()));
  return bytes;
}

Result<PayloadReader> open(const MemoryBytes& bytes, const StateLayout& layout = small_layout(),
                           const PayloadReader::Limits& limits = {}) {
  return PayloadReader::open(bytes, payload_at, bytes.size() - payload_at, layout, limits, "file");
}

std::vector<std::byte> block_of(const PayloadReader& reader, size_t block) {
  std::vector<std::byte> bytes(reader.block_bytes());
  EXPECT_TRUE(reader.export_block(block, bytes));
  return bytes;
}

std::vector<std::byte> frontier_of(const PayloadReader& reader) {
  std::vector<std::byte> bytes(reader.frontier_bytes());
  EXPECT_TRUE(reader.export_frontier(bytes));
  return bytes;
}

/// Everything of the state is read, or there is one error.
std::string error_of(const MemoryBytes& bytes, const PayloadReader::Limits& limits = {}) {
  const auto reader = open(bytes, small_layout(), limits);
  if (!reader) return reader.error().message;
  std::vector<std::byte> piece(reader->block_bytes());
  for (size_t b = 0; b < reader->blocks(); ++b) {
    if (const auto done = reader->export_block(b, piece); !done) return done.error().message;
  }
  piece.resize(reader->frontier_bytes());
  const auto done = reader->export_frontier(piece);
  return done ? "" : done.error().message;
}

TEST(Dsv4Payload, StatesOfEveryLengthComeBack) {
  for (const uint32_t tokens : {1u,   2u,   3u,   4u,   5u,   7u,   8u,   9u,   127u, 128u, 129u,
                                131u, 132u, 255u, 256u, 257u, 383u, 384u, 390u, 700u, 2100u}) {
    const MadeState state(small_layout(), tokens);
    const MemoryBytes bytes = write(state);
    ASSERT_EQ(bytes.size() - payload_at, payload_bytes(small_layout(), tokens)) << tokens;
    const auto reader = open(bytes);
    ASSERT_TRUE(reader) << reader.error().message;
    EXPECT_EQ(reader->tokens(), state.tokens());
    ASSERT_EQ(reader->blocks(), state.blocks());
    for (size_t b = 0; b < state.blocks(); ++b) ASSERT_EQ(block_of(*reader, b), state.block(b)) << tokens;
    ASSERT_EQ(frontier_of(*reader), state.frontier()) << tokens;
  }
}

TEST(Dsv4Payload, SizesOfFlashAreThoseOfTheSpecification) {
  EXPECT_EQ(payload_bytes(flash_layout(), 1), 12811664u);
  EXPECT_EQ(payload_bytes(flash_layout(), 512), 31042956u);
  EXPECT_EQ(payload_bytes(flash_layout(), 2048), 52184460u);
  EXPECT_EQ(payload_bytes(flash_layout(), 10240), 164939148u);
  EXPECT_EQ(payload_bytes(flash_layout(), 30000), 436900428u);
  EXPECT_EQ(payload_bytes(flash_layout(), 100000), 1400385548u);
}

TEST(Dsv4Payload, TheHeaderFitsEveryContextThatHoldsTheTokens) {
  EXPECT_EQ(payload_header(5).context, 2048u);
  EXPECT_EQ(payload_header(5).raw_capacity, 2048u);
  EXPECT_EQ(payload_header(5).live_rows, 5u);
  EXPECT_EQ(payload_header(10240).context, 10241u);
  EXPECT_EQ(payload_header(10240).raw_capacity, 2304u);
  EXPECT_EQ(payload_header(10240).row_capacity, 2562u);
  EXPECT_EQ(payload_header(10240).live_rows, 128u);
}

TEST(Dsv4Payload, VersionTwoAndAnyChunkAreRead) {
  const MadeState state(small_layout(), 200);
  MemoryBytes bytes = write(state);
  bytes.put<uint32_t>(payload_at + 4, 2);
  bytes.put<uint32_t>(payload_at + 12, 77);
  const auto reader = open(bytes);
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(reader->header().version, 2u);
  EXPECT_EQ(reader->header().prefill_chunk, 77u);
  EXPECT_EQ(frontier_of(*reader), state.frontier());
}

TEST(Dsv4Payload, ASmallContextHasASmallWindow) {
  const MadeState state(small_layout(), 50);
  MemoryBytes bytes = write(state);
  bytes.put<uint32_t>(payload_at + 8, 60);
  EXPECT_THAT(error_of(bytes), HasSubstr("a window of 128 tokens in a context of 60"));
  bytes.put<uint32_t>(payload_at + 20, 60);
  EXPECT_EQ(error_of(bytes), "");
}

TEST(Dsv4Payload, RowsThatNoTokenWroteDoNotMatter) {
  const MadeState state(small_layout(), 133);
  MemoryBytes bytes = write(state);
  const auto places = payload_places(small_layout(), 133);
  const auto spoil = [&](uint64_t matrix, uint32_t row, uint64_t width) {
    for (uint64_t i = 0; i < width; ++i)
      bytes.put(payload_at + matrix + (row * width + i) * sizeof(float), std::nanf(""));
  };
  // 133 tokens: one in the open window of 4 (row 4 of the matrices), five in that of 128.
  for (uint32_t row = 5; row < 8; ++row) {
    spoil(places[1].values, row, 1024);
    spoil(places[1].index_scores, row, 256);
  }
  for (uint32_t row = 5; row < 128; ++row) spoil(places[2].scores, row, 512);
  auto reader = open(bytes);
  ASSERT_TRUE(reader);
  EXPECT_EQ(frontier_of(*reader), state.frontier());
  // Those that a token wrote do.
  spoil(places[1].index_scores, 4, 256);
  EXPECT_THAT(error_of(bytes), HasSubstr("the compressor of layer 1 holds numbers that are not finite"));
}

TEST(Dsv4Payload, RowsThatWereNotRoundedAreRounded) {
  const MadeState state(small_layout(), 3);
  MemoryBytes bytes = write(state);
  const auto places = payload_places(small_layout(), 3);
  std::vector<float> row(512);
  for (size_t i = 0; i < row.size(); ++i) row[i] = std::sin(static_cast<float>(i)) * 3.0f;
  for (size_t i = 0; i < row.size(); ++i)
    bytes.put(payload_at + places[3].window + 2048 + i * sizeof(float), row[i]);
  const auto reader = open(bytes);
  ASSERT_TRUE(reader);
  const auto frontier = frontier_of(*reader);
  std::vector<float> read(512);
  unpack_attention_row(frontier.data() + small_layout().frontier(3).layers[3].window.offset + 584,
                       read.data());
  for (size_t i = 0; i < 512; ++i)
    EXPECT_NEAR(read[i], row[i], std::fabs(row[i]) / (i < 448 ? 16 : 2048) + 1e-4) << i;
}

// The largest value of a block may be half of the range of its scale: half the scale says the same.
TEST(Dsv4Payload, ValuesStayWhereAScaleHasTwoSpellings) {
  std::vector<std::byte> row(584), again(584);
  for (size_t block = 0; block < 7; ++block) {
    for (size_t i = 0; i < 64; ++i) row[block * 64 + i] = static_cast<std::byte>(i == 0 ? 0x76 : i);  // 224
    row[448 + block] = std::byte{127};
  }
  std::vector<float> values(512), values_again(512);
  unpack_attention_row(row.data(), values.data());
  EXPECT_EQ(values[0], 224.0f);
  pack_attention_row(values.data(), again.data());
  EXPECT_NE(row, again);
  unpack_attention_row(again.data(), values_again.data());
  EXPECT_EQ(values, values_again);

  std::vector<std::byte> index(68), index_again(68);
  for (size_t i = 0; i < 64; ++i) index[i] = static_cast<std::byte>(i % 6 | (i % 5 | 8) << 4);  // up to 3
  for (size_t i = 64; i < 68; ++i) index[i] = std::byte{120};
  std::vector<float> keys(128), keys_again(128);
  unpack_index_row(index.data(), keys.data());
  pack_index_row(keys.data(), index_again.data());
  EXPECT_NE(index, index_again);
  unpack_index_row(index_again.data(), keys_again.data());
  EXPECT_EQ(keys, keys_again);
}

TEST(Dsv4Payload, ADraftersStateIsLeftOutAndReadAsZeros) {
  const MadeState state(small_layout(true), 140);
  std::vector<std::byte> frontier = state.frontier();
  const StateParts parts = state.layout().frontier(140);
  std::fill_n(frontier.begin() + static_cast<std::ptrdiff_t>(parts.drafter_window.offset),
              parts.drafter_window.bytes() + parts.drafter_streams.bytes(), std::byte{9});
  MemoryBytes bytes;
  auto writer = PayloadWriter::begin(bytes, payload_at, state.layout(), state.tokens(), payload_header(140));
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->add_block(state.block(0)));
  ASSERT_TRUE(writer->finish(frontier));
  EXPECT_EQ(bytes.bytes, write(MadeState(small_layout(), 140)).bytes);
  const auto reader = open(bytes, small_layout(true));
  ASSERT_TRUE(reader);
  EXPECT_EQ(frontier_of(*reader), state.frontier());
}

struct Damage {
  size_t field;
  uint32_t value;
  const char* message;
};

TEST(Dsv4PayloadDamage, EveryFieldOfTheHeaderIsChecked) {
  const MadeState state(small_layout(), 200);
  const MemoryBytes good = write(state);
  ASSERT_EQ(error_of(good), "");
  constexpr uint32_t huge = 0xffffffffu;
  for (const Damage& damage :
       {Damage{0, 0x34565345, "does not begin with DSV4"}, Damage{1, 0, "payload version 0 is not known"},
        Damage{1, 3, "payload version 3 is not known"}, Damage{2, huge, "do not fit a context"},
        Damage{2, 199, "200 tokens of a context of 199 do not fit"},
        Damage{4, 0, "128 raw rows in a ring of 0"}, Damage{4, 127, "128 raw rows in a ring of 127"},
        Damage{5, 127, "a window of 127 tokens"}, Damage{6, huge, "compressed rows is more than"},
        Damage{6, 49, "there is room for 49"}, Damage{7, 0, "holds no tokens"},
        Damage{7, 1000, "the vocabulary has 40"}, Damage{7, huge, "do not fit a context"},
        Damage{8, 43, "another model: 43 layers"}, Damage{9, 511, "rows of 511 and 128"},
        Damage{10, 0, "rows of 512 and 0"}, Damage{11, 129280, "vocabulary 129280"},
        Damage{12, 127, "127 raw rows"}, Damage{12, huge, "4294967295 raw rows"}}) {
    MemoryBytes bytes = good;
    bytes.put(payload_at + damage.field * 4, damage.value);
    const std::string message = error_of(bytes);
    EXPECT_THAT(message, StartsWith("file: ")) << damage.field;
    EXPECT_THAT(message, HasSubstr(damage.message));
  }
}

TEST(Dsv4PayloadDamage, TheContextOfTheReaderIsALimit) {
  const MemoryBytes bytes = write(MadeState(small_layout(), 200));
  EXPECT_THAT(error_of(bytes, {2047}),
              HasSubstr("200 tokens of a context of 2048 do not fit a context of 2047"));
  EXPECT_EQ(error_of(bytes, {2048}), "");
}

TEST(Dsv4PayloadDamage, TokensAndRowCountsAreChecked) {
  const MadeState state(small_layout(), 200);
  const MemoryBytes good = write(state);
  MemoryBytes bytes = good;
  bytes.put<uint32_t>(payload_at + 52 + 4 * 7, vocabulary);
  EXPECT_EQ(error_of(bytes), "file: token 7 is 40, but the vocabulary has 40");
  const size_t counts = payload_at + 52 + 4 * (200 + vocabulary);
  for (size_t i = 0; i < 8; ++i) {
    for (const uint32_t value : {1u, 49u, 51u, 0xffffffffu}) {
      bytes = good;
      if (i % 4 == 2 && i < 4 && value == 1) continue;  // which is right
      bytes.put<uint32_t>(counts + 4 * i, value);
      EXPECT_THAT(error_of(bytes), HasSubstr(fmt::format("layer {} has {} {} rows, but", i % 4, value,
                                                         i < 4 ? "compressed" : "index")));
    }
  }
}

TEST(Dsv4PayloadDamage, TruncationsAndTrailingBytesAreTold) {
  const MemoryBytes good = write(MadeState(small_layout(), 200));
  std::vector<size_t> borders = {
      0, 51, 52, 52 + 4 * 200, 52 + 4 * (200 + vocabulary), 52 + 4 * (200 + vocabulary) + 8 * 4};
  for (const PayloadPlaces& place : payload_places(small_layout(), 200)) {
    for (const uint64_t at : {place.window, place.rows, place.values, place.scores, place.index_rows,
                              place.index_values, place.index_scores, place.end - 1})
      borders.push_back(at);
  }
  for (const size_t border : borders) {
    for (const size_t less : {0u, 1u}) {
      if (border < less || border - less > good.size() - payload_at) continue;
      MemoryBytes bytes = good;
      bytes.bytes.resize(payload_at + border - less);
      EXPECT_THAT(error_of(bytes), HasSubstr("file: the payload ends in ")) << border - less;
    }
  }
  MemoryBytes bytes = good;
  bytes.bytes.resize(good.size() + 3);
  EXPECT_EQ(error_of(bytes), "file: 3 bytes follow the last layer of the payload");
  const auto longer = PayloadReader::open(good, payload_at, uint64_t{1} << 62, small_layout(), {}, "file");
  ASSERT_FALSE(longer);
  EXPECT_EQ(longer.error().message, "file: the payload is longer than the file");
  EXPECT_FALSE(PayloadReader::open(good, UINT64_MAX, 1, small_layout(), {}, "file"));
}

TEST(Dsv4PayloadDamage, NumbersThatAreNoneOrDoNotFitAreTold) {
  const MemoryBytes good = write(MadeState(small_layout(), 200));
  const auto places = payload_places(small_layout(), 200);
  const auto message = [&](uint64_t at, float value) {
    MemoryBytes bytes = good;
    bytes.put(payload_at + at, value);
    return error_of(bytes);
  };
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {infinity, -infinity, std::nanf("")}) {
    EXPECT_THAT(message(52 + 4 * 200, value), HasSubstr("the logits hold numbers"));
    EXPECT_THAT(message(places[0].window + 5 * 4, value), HasSubstr("rows of layer 0 hold numbers"));
    EXPECT_THAT(message(places[2].rows + 5 * 4, value), HasSubstr("rows of layer 2 hold numbers"));
    EXPECT_THAT(message(places[3].index_rows + 45 * 512, value), HasSubstr("rows of layer 3 hold numbers"));
    EXPECT_THAT(message(places[3].values, value), HasSubstr("the compressor of layer 3 holds numbers"));
  }
  EXPECT_THAT(message(places[0].window + 448 * 4, 65520.0f), HasSubstr("too large"));
  EXPECT_EQ(message(places[0].window + 448 * 4, 65504.0f), "");
  // Rounded up, it would be infinite.
  EXPECT_THAT(message(places[0].window + 4, 3.39e38f), HasSubstr("too large"));
}

// Any byte of what comes before the rows: an error, or a state that differs in its tokens, logits or chunk.
TEST(Dsv4PayloadDamage, AnyByteBeforeTheRowsIsSafe) {
  const MemoryBytes good = write(MadeState(small_layout(), 9));
  const size_t end = payload_places(small_layout(), 9).front().window;
  for (size_t at = 0; at < end; ++at) {
    for (const uint8_t flip : {0x01, 0x80, 0xff}) {
      MemoryBytes bytes = good;
      bytes.bytes[payload_at + at] ^= std::byte{flip};
      const std::string message = error_of(bytes);
      EXPECT_TRUE(message.empty() || message.starts_with("file: ")) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace ds4::store
