// The indexer of a prefill pass: queries against decode's, scores against float64, the choice against
// sorting, and the same rows however the pass is cut.
#include "backend/cuda/indexer/prefill_indexer.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "random_sequences.hpp"
#include "references.hpp"
#include "row_codec_kernels.hpp"

namespace ds4::cuda {
namespace {

constexpr uint32_t untouched = 0xffffffffu;

const uint8_t* const* pages_of(const RandomSequence& sequence) {
  LayerCache cache;
  require(cudaMemcpy(&cache, sequence.layers() + 1, sizeof cache, cudaMemcpyDeviceToHost));
  return cache.index_pages;
}

// Index queries of a stretch of a sequence.
struct Problem {
  uint64_t first;
  uint32_t tokens, heads, top_k;
  const uint8_t* const* pages;
  std::vector<float> query, weights, frequencies = frequency_table(4);

  Problem(uint64_t first_, uint32_t tokens_, uint32_t heads_, uint32_t top_k_, const uint8_t* const* pages_,
          std::mt19937& random)
      : first(first_),
        tokens(tokens_),
        heads(heads_),
        top_k(top_k_),
        pages(pages_),
        query(random_values(size_t{tokens_} * heads_ * 128, 1.0f, random)),
        weights(random_values(size_t{tokens_} * heads_, 1.0f, random)) {}

  uint32_t visible(uint32_t token) const { return visible_rows(first + token, 4); }
  size_t groups() const { return (heads + 63) / 64; }
};

template <class T>
std::vector<T> part(const std::vector<T>& values, size_t begin, size_t end, size_t width) {
  return {values.begin() + static_cast<std::ptrdiff_t>(begin * width),
          values.begin() + static_cast<std::ptrdiff_t>(end * width)};
}

// Tokens begin .. end - 1 as a pass of their own.
class Pass {
 public:
  Pass(const Problem& p, uint32_t begin, uint32_t end)
      : query_(part(p.query, begin, end, size_t{p.heads} * 128)),
        weights_(part(p.weights, begin, end, p.heads)),
        frequencies_(p.frequencies),
        selected_(size_t{end - begin} * p.top_k) {
    arguments.tokens = end - begin;
    arguments.position = p.first + begin;
    arguments.heads = p.heads;
    arguments.top_k = p.top_k;
    arguments.query = query_.data();
    arguments.head_weights = weights_.data();
    arguments.frequencies = frequencies_.data();
    arguments.pages = p.pages;
    arguments.selected = selected_.data();
  }

  std::vector<uint32_t> run(PrefillKernel kernel) {
    const uint32_t compressed = visible_rows(arguments.position + arguments.tokens - 1, 4);
    const DeviceCopy<uint8_t> scratch(
        prefill_indexer_scratch_bytes(arguments.tokens, arguments.heads, compressed));
    arguments.scratch = scratch.data();
    require(prefill_index_rows(arguments, nullptr, kernel));
    require(cudaDeviceSynchronize());
    return selected_.read();
  }

  PrefillIndexer arguments;

 private:
  DeviceCopy<float> query_, weights_, frequencies_;
  DeviceCopy<uint32_t> selected_;
};

struct Prepared {
  std::vector<float> query;  // [tokens][heads][128], in the order of the elements
  std::vector<float> weights, scores;
};

// The first two steps over a whole pass as one slice.
Prepared prepare_and_score(const Problem& p, PrefillKernel kernel, size_t stride) {
  Pass pass(p, 0, p.tokens);
  const size_t items = p.tokens * p.groups() * 64;
  const DeviceCopy<uint16_t> queries(items * 128);
  const DeviceCopy<float> weights(items), scores(p.tokens * stride);
  IndexSlice slice;
  slice.tokens = p.tokens;
  slice.groups = static_cast<uint32_t>(p.groups());
  slice.score_stride = stride;
  slice.queries = queries.data();
  slice.weights = weights.data();
  slice.scores = scores.data();
  require(prepare_index_queries(pass.arguments, slice, nullptr));
  require(score_index_slice(pass.arguments, slice, kernel, nullptr));
  require(cudaDeviceSynchronize());
  const std::vector<uint16_t> bits = queries.read();
  const std::vector<float> all_weights = weights.read();
  Prepared out;
  out.scores = scores.read();
  for (size_t i = 0; i < items; ++i) {
    if (i % (p.groups() * 64) >= p.heads) {
      EXPECT_EQ(all_weights[i], 0.0f);
      continue;
    }
    out.weights.push_back(all_weights[i]);
    for (size_t e = 0; e < 128; ++e) {
      const size_t block = e / 32, column = 8 * (e % 16) + 2 * block + e % 32 / 16;
      out.query.push_back(std::bit_cast<float>(uint32_t{bits[i * 128 + column]} << 16));
    }
  }
  return out;
}

// By the function that decode uses.
std::vector<float> rounded(const Problem& p) {
  const DeviceCopy<float> query(p.query), frequencies(p.frequencies), out(p.query.size());
  const size_t width = size_t{p.heads} * 128;
  for (uint32_t t = 0; t < p.tokens; ++t) {
    launch_index_queries(query.data() + t * width, p.heads, p.first + t, frequencies.data(),
                         out.data() + t * width);
  }
  require(cudaDeviceSynchronize());
  return out.read();
}

class PrefillIndexerTest : public DeviceTest, public testing::WithParamInterface<PrefillKernel> {
 protected:
  void check(const Problem& p, const RandomSequence& sequence, const std::vector<uint32_t>& cuts) {
    const std::string where = std::to_string(p.heads) + " heads, top " + std::to_string(p.top_k) + ", from " +
                              std::to_string(p.first);
    const std::vector<uint32_t> selected = Pass(p, 0, p.tokens).run(GetParam());
    if (p.visible(p.tokens - 1) <= p.top_k) {
      EXPECT_TRUE(std::all_of(selected.begin(), selected.end(), [](uint32_t x) { return x == untouched; }));
      return;
    }
    const size_t stride = (size_t{p.visible(p.tokens - 1)} + 127) / 128 * 128;
    const Prepared prepared = prepare_and_score(p, GetParam(), stride);
    const std::vector<float> reference = rounded(p);
    std::vector<std::vector<float>> keys;
    for (uint32_t c = 0; c < p.visible(p.tokens - 1); ++c) keys.push_back(sequence.index_row(c));
    for (uint32_t t = 0; t < p.tokens; ++t) {
      const uint32_t visible = p.visible(t);
      const std::vector<uint32_t> own = part(selected, t, t + 1, p.top_k);
      if (visible <= p.top_k) {
        EXPECT_TRUE(std::all_of(own.begin(), own.end(), [](uint32_t x) { return x == untouched; })) << where;
        continue;
      }
      const float* query = prepared.query.data() + size_t{t} * p.heads * 128;
      ASSERT_TRUE(
          std::equal(query, query + size_t{p.heads} * 128, reference.data() + size_t{t} * p.heads * 128))
          << where;
      std::vector<double> expected(visible);
      for (uint32_t c = 0; c < visible; ++c) {
        for (uint32_t h = 0; h < p.heads; ++h) {
          double dot = 0;
          for (size_t i = 0; i < 128; ++i) dot += double{query[h * 128 + i]} * keys[c][i];
          expected[c] += p.weights[size_t{t} * p.heads + h] * std::max(0.0, dot) / std::sqrt(128.0 * p.heads);
        }
      }
      const float* scores = prepared.scores.data() + t * stride;
      ASSERT_LT(relative_error(scores, expected), 2e-6) << where << ", token " << t;
      EXPECT_EQ(own, best_rows(scores, visible, p.top_k)) << where << ", token " << t;
    }
    for (uint32_t cut : cuts) {
      std::vector<uint32_t> parts = Pass(p, 0, cut).run(GetParam());
      const std::vector<uint32_t> rest = Pass(p, cut, p.tokens).run(GetParam());
      parts.insert(parts.end(), rest.begin(), rest.end());
      EXPECT_TRUE(parts == selected) << where << ", cut at " << cut;
    }
  }
};

TEST_P(PrefillIndexerTest, ScoresAndRows) {
  std::mt19937 random(1);
  const RandomSequence sequence(3000, 4, random);
  check(Problem(0, 1, 64, 512, pages_of(sequence), random), sequence, {});
  check(Problem(2050, 1, 64, 512, pages_of(sequence), random), sequence, {});         // exactly top_k rows
  check(Problem(2051, 1, 64, 512, pages_of(sequence), random), sequence, {});         // one more
  check(Problem(2040, 15, 64, 512, pages_of(sequence), random), sequence, {11, 12});  // both
  check(Problem(2989, 11, 64, 512, pages_of(sequence), random), sequence, {1, 5});
  check(Problem(0, 131, 64, 7, pages_of(sequence), random), sequence, {31, 32, 65});
  check(Problem(901, 70, 4, 64, pages_of(sequence), random), sequence, {3, 64});
  check(Problem(1020, 9, 100, 200, pages_of(sequence), random), sequence, {4});  // two groups of heads
  check(Problem(1020, 5, 200, 1, pages_of(sequence), random), sequence, {2});    // four
}

// Key tiles of 256 and pages of 64, their ends.
TEST_P(PrefillIndexerTest, EndsOfTiles) {
  std::mt19937 random(2);
  const RandomSequence sequence(2100, 4, random);
  for (uint64_t first : {251, 255, 1019, 1023, 1027, 2043, 2047, 2051})
    check(Problem(first, 5, 8, 16, pages_of(sequence), random), sequence, {1});
}

// A million tokens: the scores are worked through in slices. Pages repeat, so that many scores are equal.
TEST_P(PrefillIndexerTest, SlicesOfALongContext) {
  std::mt19937 random(3);
  constexpr size_t distinct = 67, page_bytes = size_t{rows_per_page} * index_row_bytes;
  std::vector<uint8_t> rows(distinct * page_bytes);
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<uint8_t>(i % index_row_bytes < 64 ? random() : 124 + random() % 4);
  const DeviceCopy<uint8_t> device_rows(rows);
  std::vector<const uint8_t*> pages;
  for (size_t i = 0; i < 4096; ++i) pages.push_back(device_rows.data() + random() % distinct * page_bytes);
  const DeviceCopy<const uint8_t*> table(pages);

  const Problem p((1u << 20) - 131, 131, 8, 512, table.data(), random);
  EXPECT_LT(prefill_indexer_scratch_bytes(4096, 64, 262144), size_t{160} << 20);
  const std::vector<uint32_t> selected = Pass(p, 0, p.tokens).run(GetParam());
  const size_t stride = 262144;
  const Prepared prepared = prepare_and_score(p, GetParam(), stride);
  for (uint32_t t : {0u, 63u, 64u, 127u, 128u, 130u}) {
    const std::vector<uint32_t> own = part(selected, t, t + 1, p.top_k);
    EXPECT_EQ(own, best_rows(prepared.scores.data() + t * stride, p.visible(t), p.top_k)) << "token " << t;
    EXPECT_TRUE(own == Pass(p, t, t + 1).run(GetParam())) << "token " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PrefillIndexerTest,
                         testing::Values(PrefillKernel::best, PrefillKernel::portable),
                         [](const auto& kernel) {
                           return kernel.param == PrefillKernel::best ? "Best" : "Portable";
                         });

using PrefillSelectionTest = DeviceTest;

TEST_F(PrefillSelectionTest, IsExact) {
  std::mt19937 random(5);
  for (uint32_t visible : {2u, 513u, 1024u, 1025u, 2500u, 8193u, 32768u, 60001u, 262144u}) {
    for (uint32_t top_k : {1u, 512u, 1024u}) {
      if (visible <= top_k) continue;
      for (const std::vector<float>& scores : hard_scores(visible, random)) {
        std::vector<float> padded = scores;
        padded.resize((size_t{visible} + 127) / 128 * 128, INFINITY);  // beyond the end: must never be chosen
        const DeviceCopy<float> device_scores(padded);
        const DeviceCopy<uint32_t> selected(top_k);
        PrefillIndexer a;
        a.tokens = 1;
        a.position = uint64_t{visible} * 4 - 1;
        a.top_k = top_k;
        a.selected = selected.data();
        IndexSlice slice;
        slice.tokens = 1;
        slice.score_stride = padded.size();
        slice.scores = device_scores.data();
        require(select_slice_rows(a, slice, nullptr));
        require(cudaDeviceSynchronize());
        EXPECT_EQ(selected.read(), best_rows(scores.data(), visible, top_k))
            << visible << " rows, top " << top_k;
      }
    }
  }
}

}  // namespace
}  // namespace ds4::cuda
