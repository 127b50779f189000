#include "backend/cpu/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/reference.hpp"
#include "support/kernel_checks.hpp"

namespace ds4::cpu {
namespace {

using test::for_every_target;
using test::random_floats;
using test::widen;

constexpr size_t dim = model::head_dim;

TEST(Attention, RawRowCount) {
  EXPECT_EQ(raw_row_count(0), 1u);
  EXPECT_EQ(raw_row_count(126), 127u);
  EXPECT_EQ(raw_row_count(127), 128u);
  EXPECT_EQ(raw_row_count(128), 128u);
  EXPECT_EQ(raw_row_count(1000000), 128u);
}

struct Attended {
  std::vector<float> ours;
  std::vector<double> exact;
};

Attended run(size_t heads, size_t count, float deviation, float sink) {
  std::vector<float> query = random_floats(heads * dim, 1, deviation);
  const std::vector<float> rows = random_floats(count * dim, 2);
  std::vector<float> sinks = random_floats(heads, 3);
  for (float& z : sinks) z += sink;
  std::vector<double> exact = widen(query);
  reference::attend(exact.data(), heads, widen(sinks).data(), widen(rows).data(), count);
  std::vector<float> scores(attention_score_floats(count));
  attend(query.data(), heads, sinks.data(), rows.data(), count, scores.data());
  return {std::move(query), std::move(exact)};
}

TEST(Attention, AgreesWithDoublePrecision) {
  for_every_target([] {
    for (size_t heads : {1u, 3u, 4u, 15u, 16u, 17u, 64u}) {
      for (size_t count : {1u, 2u, 5u, 128u, 130u}) {
        const Attended result = run(heads, count, 1.0f, 0.0f);
        for (size_t i = 0; i < result.ours.size(); ++i) {
          ASSERT_NEAR(result.ours[i], result.exact[i], 3e-6) << heads << " " << count << " " << i;
        }
      }
    }
  });
}

TEST(Attention, ExtremeLogits) {
  for_every_target([] {
    for (float sink : {-1000.0f, 0.0f, 30.0f, 1000.0f}) {
      for (float deviation : {1e-4f, 1.0f, 100.0f}) {
        const Attended result = run(5, 67, deviation, sink);
        for (size_t i = 0; i < result.ours.size(); ++i) {
          ASSERT_NEAR(result.ours[i], result.exact[i], 1e-5 * (1 + deviation)) << sink << " " << deviation;
        }
      }
    }
  });
}

// One row and a sink far below it: the output is the row. A sink far above: nothing.
TEST(Attention, SinkTakesWeightAndGivesNoValue) {
  const std::vector<float> row = random_floats(dim, 4);
  std::vector<float> query(dim, 0.0f), scores(attention_score_floats(1));
  float sink = -1e30f;
  attend(query.data(), 1, &sink, row.data(), 1, scores.data());
  EXPECT_EQ(query, row);
  std::fill(query.begin(), query.end(), 0.0f);
  sink = 0.0f;  // as large as the score: half
  attend(query.data(), 1, &sink, row.data(), 1, scores.data());
  for (size_t i = 0; i < dim; ++i) ASSERT_EQ(query[i], row[i] * 0.5f);
  std::fill(query.begin(), query.end(), 0.0f);
  sink = 1e30f;
  attend(query.data(), 1, &sink, row.data(), 1, scores.data());
  EXPECT_EQ(query, std::vector<float>(dim, 0.0f));
}

TEST(Attention, AHeadDoesNotDependOnTheOthers) {
  constexpr size_t heads = 21, count = 45;
  const std::vector<float> query = random_floats(heads * dim, 5), rows = random_floats(count * dim, 6),
                           sinks = random_floats(heads, 7);
  std::vector<float> scores(attention_score_floats(count));
  for_every_target([&] {
    std::vector<float> all = query;
    attend(all.data(), heads, sinks.data(), rows.data(), count, scores.data());
    for (size_t h = 0; h < heads; ++h) {
      std::vector<float> alone(query.begin() + static_cast<ptrdiff_t>(h * dim),
                               query.begin() + static_cast<ptrdiff_t>((h + 1) * dim));
      attend(alone.data(), 1, &sinks[h], rows.data(), count, scores.data());
      ASSERT_TRUE(std::equal(alone.begin(), alone.end(), all.data() + h * dim)) << h;
    }
  });
}

/// A sequence of rows that carry their number: window rows before the chunk, chunk rows, compressed rows.
class GatherTest : public ::testing::Test {
 protected:
  static constexpr float chunk_mark = 10000, compressed_mark = 20000;

  std::vector<std::byte> packed(float value) const {
    std::vector<float> row(dim, value);
    std::vector<std::byte> out(codec.attention_bytes());
    codec.encode_attention(row.data(), out.data());
    return out;
  }

  void put_window(uint64_t positions) {
    for (uint64_t p = 0; p < positions; ++p) {
      const auto row = packed(static_cast<float>(p));
      std::copy(row.begin(), row.end(), window.slot(p));
    }
  }

  void put_chunk(uint64_t start, size_t count) {
    chunk.clear();
    for (size_t i = 0; i < count; ++i) {
      const auto row = packed(chunk_mark + static_cast<float>(start + i));
      chunk.insert(chunk.end(), row.begin(), row.end());
    }
  }

  std::vector<float> gather(const VisibleRows& visible, size_t begin, size_t end) const {
    std::vector<float> rows((end - begin) * dim), marks;
    gather_rows(visible, codec, begin, end, rows.data());
    for (size_t i = 0; i < end - begin; ++i) {
      EXPECT_EQ(rows[i * dim], rows[i * dim + dim - 1]);
      marks.push_back(rows[i * dim]);
    }
    return marks;
  }

  RowCodec codec{false};
  RawWindow window{RowCodec(false).attention_bytes()};
  std::vector<std::byte> chunk;
};

TEST_F(GatherTest, RawRowsComeFromTheWindowThenTheChunk) {
  for (uint64_t start : {0u, 1u, 5u, 126u, 127u, 128u, 129u, 255u, 256u, 300u}) {
    constexpr size_t count = 260;
    window = RawWindow(codec.attention_bytes());
    put_window(start);
    put_chunk(start, count);
    for (size_t i : {0u, 1u, 2u, 126u, 127u, 128u, 129u, 259u}) {
      const uint64_t position = start + i;
      const VisibleRows visible{&window, chunk.data(), start, position};
      const size_t raw = raw_row_count(position);
      std::vector<float> expected;
      for (uint64_t p = position + 1 - raw; p <= position; ++p) {
        expected.push_back(static_cast<float>(p) + (p >= start ? chunk_mark : 0));
      }
      ASSERT_EQ(gather(visible, 0, raw), expected) << start << " " << i;
    }
  }
}

TEST_F(GatherTest, CompressedRowsFollowTheRawOnes) {
  put_window(10);
  put_chunk(10, 3);
  RowPages compressed(codec.attention_bytes());
  for (size_t i = 0; i < 70; ++i) compressed.append(packed(compressed_mark + static_cast<float>(i)).data());
  VisibleRows visible{&window, chunk.data(), 10, 11, &compressed, 70};
  const std::vector<float> all = gather(visible, 0, 82);
  for (size_t i = 0; i < 82; ++i) {
    const float expected = static_cast<float>(i) + (i < 10 ? 0 : chunk_mark);
    ASSERT_EQ(all[i], i < 12 ? expected : compressed_mark + static_cast<float>(i - 12)) << i;
  }
  // Any part of the list is that part of the whole.
  for (size_t begin : {0u, 9u, 11u, 12u, 13u, 75u}) {
    const std::vector<float> part = gather(visible, begin, 82);
    ASSERT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<ptrdiff_t>(begin))) << begin;
  }
  EXPECT_TRUE(gather(visible, 12, 12).empty());
}

TEST_F(GatherTest, SelectedRowsOnly) {
  put_window(0);
  put_chunk(0, 2);
  RowPages compressed(codec.attention_bytes());
  for (size_t i = 0; i < 130; ++i) compressed.append(packed(compressed_mark + static_cast<float>(i)).data());
  const uint32_t selected[] = {0, 5, 63, 64, 129};
  const VisibleRows visible{&window, chunk.data(), 0, 1, &compressed, 5, selected};
  EXPECT_EQ(gather(visible, 0, 7),
            (std::vector<float>{chunk_mark, chunk_mark + 1, compressed_mark, compressed_mark + 5,
                                compressed_mark + 63, compressed_mark + 64, compressed_mark + 129}));
  EXPECT_EQ(gather(visible, 4, 6), (std::vector<float>{compressed_mark + 63, compressed_mark + 64}));
}

}  // namespace
}  // namespace ds4::cpu
