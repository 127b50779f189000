// Index scores and the choice of rows on the device.
#include "backend/cuda/indexer/indexer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cpu/rope.hpp"
#include "format/fp4_row.hpp"
#include "format/hadamard.hpp"
#include "random_sequences.hpp"
#include "references.hpp"
#include "row_codec_kernels.hpp"

namespace ds4::cuda {
namespace {

class IndexerTest : public DeviceTest {};

// Heads as the scores see them: the device's own rotation and rounding, compared with the CPU's in
// QueriesArePrepared.
std::vector<float> prepared_queries(const std::vector<PassRow>& pass, const std::vector<float>& raw) {
  const DeviceCopy<float> device(raw), frequencies(frequency_table(4)), prepared(raw.size());
  const size_t width = raw.size() / pass.size();
  for (size_t r = 0; r < pass.size(); ++r) {
    launch_index_queries(device.data() + r * width, width / 128, pass[r].position, frequencies.data(),
                         prepared.data() + r * width);
  }
  require(cudaDeviceSynchronize());
  return prepared.read();
}

struct Scored {
  std::vector<float> scores;  // [rows][stride]
  std::vector<uint32_t> selected;
};

Scored run(const std::vector<PassRow>& pass, uint32_t heads, uint32_t top_k, const std::vector<float>& query,
           const std::vector<float>& weights, uint32_t max_compressed) {
  const DeviceCopy<RowInfo> rows = make_rows(pass);
  const DeviceCopy<float> q(query), w(weights), frequencies(frequency_table(4));
  const DeviceCopy<float> scores(pass.size() * index_score_stride(max_compressed));
  const DeviceCopy<uint32_t> selected(pass.size() * top_k);
  IndexerArguments a;
  a.rows = rows.data();
  a.row_count = static_cast<uint32_t>(pass.size());
  a.layer = 1;
  a.heads = heads;
  a.top_k = top_k;
  a.max_compressed = max_compressed;
  a.query = q.data();
  a.frequencies = frequencies.data();
  a.head_weights = w.data();
  a.scores = scores.data();
  a.selected = selected.data();
  require(score_index_rows(a, nullptr));
  require(select_rows(a, nullptr));
  require(cudaDeviceSynchronize());
  return {scores.read(), selected.read()};
}

void check_pass(const std::vector<PassRow>& pass, uint32_t heads, uint32_t top_k, std::mt19937& random) {
  uint32_t most = 0;
  for (const PassRow& row : pass) most = std::max(most, visible_rows(row.position, 4));
  const size_t stride = index_score_stride(most);
  const std::vector<float> raw = random_values(pass.size() * heads * 128, 1.0f, random);
  const std::vector<float> query = prepared_queries(pass, raw);
  const std::vector<float> weights = random_values(pass.size() * heads, 1.0f, random);
  const Scored got = run(pass, heads, top_k, raw, weights, most);
  for (size_t r = 0; r < pass.size(); ++r) {
    const uint32_t visible = visible_rows(pass[r].position, 4);
    const auto selected = got.selected.begin() + static_cast<std::ptrdiff_t>(r * top_k);
    if (visible <= top_k) {
      EXPECT_TRUE(std::all_of(selected, selected + top_k, [](uint32_t x) { return x == 0xffffffffu; }));
      continue;
    }
    double error = 0, norm = 0;
    for (uint32_t c = 0; c < visible; ++c) {
      const std::vector<float> key = pass[r].sequence->index_row(c);
      double expected = 0;
      for (uint32_t h = 0; h < heads; ++h) {
        double dot = 0;
        for (size_t i = 0; i < 128; ++i) dot += double{query[(r * heads + h) * 128 + i]} * key[i];
        expected += weights[r * heads + h] * std::max(0.0, dot) / std::sqrt(128.0 * heads);
      }
      error += std::pow(got.scores[r * stride + c] - expected, 2);
      norm += expected * expected;
    }
    EXPECT_LT(std::sqrt(error / norm), 2e-6) << "position " << pass[r].position;
    EXPECT_EQ(std::vector<uint32_t>(selected, selected + top_k),
              best_rows(got.scores.data() + r * stride, visible, top_k));

    const auto part = [r](const std::vector<float>& all, size_t width) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(r * width);
      return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(width));
    };
    const Scored one =
        run({pass[r]}, heads, top_k, part(raw, size_t{heads} * 128), part(weights, heads), visible);
    EXPECT_EQ(std::memcmp(one.scores.data(), got.scores.data() + r * stride, visible * sizeof(float)), 0);
    EXPECT_TRUE(std::equal(selected, selected + top_k, one.selected.begin()));
  }
}

TEST_F(IndexerTest, ScoresAndSelectionOfMixedPasses) {
  for (uint32_t heads : {4u, 64u}) {
    std::mt19937 random(heads);
    std::deque<RandomSequence> sequences;
    std::vector<PassRow> pass;
    for (uint64_t position : {0, 3, 127, 511, 2047, 2050, 2051, 2055, 2559, 3000, 4095, 5000}) {
      sequences.emplace_back(position, 4, random);
      pass.push_back({&sequences.back(), position});
    }
    sequences.emplace_back(6003, 4, random);
    for (uint64_t position = 6000; position <= 6003; ++position)
      pass.push_back({&sequences.back(), position});
    check_pass(pass, heads, 512, random);
    check_pass({pass[11]}, heads, 1024, random);
    check_pass({pass[3], pass[6], pass[11]}, heads, 7, random);
  }
}

TEST_F(IndexerTest, QueriesArePrepared) {
  std::mt19937 random(11);
  const auto frequencies = cpu::rope_frequencies(true);
  constexpr size_t heads = 64;
  size_t different = 0, count = 0;
  for (const uint64_t position : {0u, 5u, 2051u, 4000u, 900000u}) {
    const std::vector<float> raw = random_values(heads * 128, 2.0f, random);
    const std::vector<float> got = prepared_queries({{nullptr, position}}, raw);
    for (size_t h = 0; h < heads; ++h) {
      std::vector<float> expected(raw.begin() + static_cast<std::ptrdiff_t>(h * 128),
                                  raw.begin() + static_cast<std::ptrdiff_t>((h + 1) * 128));
      cpu::rotate(expected.data() + 64, cpu::rope_angles(position, frequencies));
      format::hadamard_128(expected.data());
      format::fp4_round_trip(expected.data());
      for (size_t j = 0; j < 128; ++j) different += got[h * 128 + j] != expected[j];
      count += 128;
    }
  }
  // Sine and cosine may differ in the last bit, which moves a value over a rounding threshold once in a
  // while.
  EXPECT_LE(different * 2000, count) << different << " of " << count;
}

// Selection alone, on scores made by hand.
std::vector<uint32_t> select(const std::vector<float>& scores, uint32_t top_k) {
  const auto visible = static_cast<uint32_t>(scores.size());
  std::vector<float> padded = scores;
  padded.resize(index_score_stride(visible), INFINITY);  // beyond the end: must never be chosen
  std::vector<RowInfo> info(1);
  info[0].position = uint64_t{visible} * 4 - 1;
  const DeviceCopy<RowInfo> rows(info);
  const DeviceCopy<float> device_scores(padded);
  const DeviceCopy<uint32_t> selected(top_k);
  IndexerArguments a;
  a.rows = rows.data();
  a.row_count = 1;
  a.top_k = top_k;
  a.max_compressed = visible;
  a.scores = device_scores.data();
  a.selected = selected.data();
  require(select_rows(a, nullptr));
  require(cudaDeviceSynchronize());
  return selected.read();
}

TEST_F(IndexerTest, SelectionIsExact) {
  std::mt19937 random(5);
  for (size_t visible : {513u, 1024u, 1025u, 2500u, 8192u, 8193u, 32768u, 262144u}) {
    const std::vector<std::vector<float>> cases = hard_scores(visible, random);
    for (size_t i = 0; i < cases.size(); ++i) {
      for (uint32_t top_k : {1u, 512u, 1024u}) {
        if (visible <= top_k) continue;
        EXPECT_EQ(select(cases[i], top_k), best_rows(cases[i].data(), visible, top_k))
            << "case " << i << ", " << visible << " rows, top " << top_k;
      }
    }
  }
}

}  // namespace
}  // namespace ds4::cuda
