#include "backend/cpu/indexer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/cpu/reference.hpp"
#include "support/kernel_checks.hpp"

namespace ds4::cpu {
namespace {

using test::for_every_target;
using test::random_floats;
using test::widen;
using Rows = std::vector<uint32_t>;

constexpr size_t dim = model::index_head_dim;
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

Rows select(const std::vector<float>& scores, size_t top_k) {
  Rows selected(top_k), order(scores.size());
  select_rows(scores.data(), scores.size(), top_k, selected.data(), order.data());
  return selected;
}

Rows counting(uint32_t count) {
  Rows rows(count);
  std::iota(rows.begin(), rows.end(), 0u);
  return rows;
}

TEST(Indexer, SelectsTheBestInAscendingOrder) {
  EXPECT_EQ(select({0.5f, 3, -1, 2, 1}, 3), (Rows{1, 3, 4}));
  EXPECT_EQ(select({-5, -3, -4}, 1), (Rows{1}));
  EXPECT_EQ(select({1, 2}, 1), (Rows{1}));
}

TEST(Indexer, TiesGoToTheLowerRow) {
  EXPECT_EQ(select({0, 0, 7, 0, 0}, 3), (Rows{0, 1, 2}));
  EXPECT_EQ(select({0.0f, -0.0f, 0.0f, -0.0f}, 2), (Rows{0, 1}));
  EXPECT_EQ(select({1, 2, 1, 2, 1, 2}, 4), (Rows{0, 1, 3, 5}));
  EXPECT_EQ(select(std::vector<float>(3000, 0.0f), 512), counting(512));
}

TEST(Indexer, SelectionAgreesWithASort) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const size_t visible = 20 + 37 * seed;
    std::vector<float> scores = random_floats(visible, seed);
    // Coarse values: many ties, as rows with score 0 make them.
    if (seed % 2 == 0) {
      for (float& x : scores) x = std::round(x);
    }
    for (size_t top_k : {size_t{1}, size_t{8}, visible / 2, visible - 1}) {
      EXPECT_EQ(select(scores, top_k), reference::select_best(widen(scores), top_k)) << seed << " " << top_k;
    }
  }
}

TEST(Indexer, NanRanksLast) {
  EXPECT_EQ(select({nan, 1, nan, -1e30f, 2}, 3), (Rows{1, 3, 4}));
  EXPECT_EQ(select({nan, -infinity, 3, nan}, 2), (Rows{0, 2}));  // no worse than -infinity: lower row
  EXPECT_EQ(select(std::vector<float>(100, nan), 10), counting(10));
  EXPECT_EQ(select({infinity, nan, infinity, 0}, 2), (Rows{0, 2}));
}

/// Keys as the compressor writes them, and their decoded values.
struct Keys {
  Keys(const RowCodec& codec, size_t count, unsigned seed)
      : pages(codec.index_bytes()), decoded(count * dim) {
    std::vector<float> rows = random_floats(count * dim, seed);
    std::vector<std::byte> packed(codec.index_bytes());
    for (size_t i = 0; i < count; ++i) {
      codec.encode_index(&rows[i * dim], packed.data());
      pages.append(packed.data());
      codec.decode_index(pages[i], &decoded[i * dim]);
    }
  }
  RowPages pages;
  std::vector<float> decoded;
};

TEST(Indexer, ScoresAgreeWithDoublePrecision) {
  constexpr size_t heads = 64, tokens = 3;
  for (bool round_trips : {true, false}) {
    const RowCodec codec(round_trips);
    for (size_t count : {1u, 63u, 64u, 65u, 200u}) {
      const Keys keys(codec, count, 1);
      const std::vector<float> query = random_floats(tokens * heads * dim, 2),
                               weights = random_floats(tokens * heads, 3, 0.01f);
      const IndexQueries queries{query.data(), heads * dim, weights.data(), heads, heads, tokens};
      const size_t stride = (count + 63) / 64 * 64;
      for_every_target([&] {
        std::vector<float> out(tokens * stride), scratch(index_scratch_floats(heads));
        score_index_rows(queries, keys.pages, codec, 0, count, out.data(), stride, scratch.data());
        for (size_t t = 0; t < tokens; ++t) {
          const auto exact =
              reference::index_scores(widen(query).data() + t * heads * dim, heads,
                                      widen(weights).data() + t * heads, widen(keys.decoded).data(), count);
          for (size_t row = 0; row < count; ++row) {
            ASSERT_NEAR(out[t * stride + row], exact[row], 1e-5) << count << " " << t << " " << row;
          }
        }
      });
    }
  }
}

// Ranges of rows and groups of tokens are how work is divided among threads: no bit may depend on it.
TEST(Indexer, ScoresDoNotDependOnTheDivision) {
  constexpr size_t heads = 5, tokens = 4, count = 150, stride = 192;
  const RowCodec codec(true);
  const Keys keys(codec, count, 4);
  const std::vector<float> query = random_floats(tokens * heads * dim, 5),
                           weights = random_floats(tokens * heads, 6);
  std::vector<float> scratch(index_scratch_floats(heads));
  const IndexQueries all{query.data(), heads * dim, weights.data(), heads, heads, tokens};
  for_every_target([&] {
    std::vector<float> whole(tokens * stride);
    score_index_rows(all, keys.pages, codec, 0, count, whole.data(), stride, scratch.data());
    for (size_t t = 0; t < tokens; ++t) {
      const IndexQueries one{&query[t * heads * dim], heads * dim, &weights[t * heads], heads, heads, 1};
      std::vector<float> parts(stride);
      score_index_rows(one, keys.pages, codec, 64, count, parts.data(), stride, scratch.data());
      score_index_rows(one, keys.pages, codec, 0, 64, parts.data(), stride, scratch.data());
      for (size_t row = 0; row < count; ++row) ASSERT_EQ(parts[row], whole[t * stride + row]) << row;
      std::vector<float> fewer(stride);
      score_index_rows(one, keys.pages, codec, 0, 71, fewer.data(), stride, scratch.data());
      for (size_t row = 0; row < 71; ++row) ASSERT_EQ(fewer[row], whole[t * stride + row]) << row;
    }
  });
}

}  // namespace
}  // namespace ds4::cpu
