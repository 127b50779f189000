// Query heads and attention on the device against float64, and the same bits alone as in a batch.
#include "backend/cuda/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "format/q8_0.hpp"
#include "random_sequences.hpp"
#include "references.hpp"

namespace ds4::cuda {
namespace {

constexpr uint32_t top_k = 512;
constexpr double error_limit = 1e-4;  // relative L2 error against float64

const std::vector<uint64_t> positions = {0,   1,   3,   4,   126,  127,  128,  129,
                                         255, 256, 511, 512, 2047, 2051, 2049, 5000};

// A pass and everything attention reads.
struct Problem {
  uint32_t heads, ratio, max_compressed = 0;
  std::vector<PassRow> rows;
  std::vector<float> query, sinks, frequencies;
  std::vector<uint32_t> selected;  // [rows][top_k]

  Problem(uint32_t heads_, uint32_t ratio_, std::vector<PassRow> rows_, std::mt19937& random)
      : heads(heads_), ratio(ratio_), rows(std::move(rows_)), frequencies(frequency_table(ratio_)) {
    query = random_values(rows.size() * heads * 512, 1.0f, random);
    sinks = random_values(heads, 2.0f, random);
    selected.resize(rows.size() * top_k, 0xffffffffu);
    for (size_t r = 0; r < rows.size(); ++r) {
      const uint32_t visible = visible_rows(rows[r].position, ratio);
      max_compressed = std::max(max_compressed, visible);
      if (ratio != 4 || visible <= top_k) continue;
      std::vector<uint32_t> all(visible);
      for (uint32_t i = 0; i < visible; ++i) all[i] = i;
      std::shuffle(all.begin(), all.end(), random);
      std::sort(all.begin(), all.begin() + top_k);
      std::copy(all.begin(), all.begin() + top_k, selected.begin() + static_cast<std::ptrdiff_t>(r * top_k));
    }
  }

  // The same problem for one row.
  Problem only(size_t row) const {
    Problem one = *this;
    const auto part = [row](const auto& values, size_t width) {
      auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * width);
      return std::decay_t<decltype(values)>(begin, begin + static_cast<std::ptrdiff_t>(width));
    };
    one.rows = {rows[row]};
    one.query = part(query, heads * 512);
    one.selected = part(selected, top_k);
    one.max_compressed = visible_rows(rows[row].position, ratio);
    return one;
  }

  // Divided by its root mean square, rotated.
  std::vector<double> prepared_query(size_t row, uint32_t head) const {
    return prepare_double(query.data() + (row * heads + head) * 512, rows[row].position, frequencies);
  }

  std::vector<double> expected(size_t row, uint32_t head) const {
    const PassRow& r = rows[row];
    std::vector<std::vector<float>> seen;
    const uint64_t first = r.position + 1 > 128 ? r.position + 1 - 128 : 0;
    for (uint64_t p = first; p <= r.position; ++p) seen.push_back(r.sequence->raw_row(p));
    const uint32_t visible = visible_rows(r.position, ratio);
    const bool choose = ratio == 4 && visible > top_k;
    for (uint32_t i = 0; i < (choose ? top_k : visible); ++i) {
      seen.push_back(r.sequence->compressed_row(choose ? selected[row * top_k + i] : i));
    }
    std::vector<double> out = attend_double(prepared_query(row, head), seen.size(), sinks[head],
                                            [&](size_t t, size_t k) { return double{seen[t][k]}; });
    rotate_double(out.data() + 448, r.position, frequencies, -1.0);
    return out;
  }
};

struct Output {
  std::vector<float> values, scales;
  std::vector<int8_t> codes;
};

Output run(const Problem& p) {
  const size_t count = p.rows.size(), width = p.heads * size_t{512};
  const DeviceCopy<RowInfo> rows = make_rows(p.rows);
  const DeviceCopy<float> query(p.query), sinks(p.sinks), frequencies(p.frequencies);
  const DeviceCopy<uint32_t> selected(p.selected);
  const DeviceCopy<uint8_t> scratch(
      attention_scratch_bytes(static_cast<uint32_t>(count), p.heads, p.ratio, top_k, p.max_compressed));
  const DeviceCopy<float> out(count * width), scales(count * width / 32);
  const DeviceCopy<int8_t> codes(count * width);
  AttentionArguments a;
  a.rows = rows.data();
  a.row_count = static_cast<uint32_t>(count);
  a.heads = p.heads;
  a.layer = 1;
  a.ratio = p.ratio;
  a.top_k = top_k;
  a.max_compressed = p.max_compressed;
  a.query = query.data();
  a.sinks = sinks.data();
  a.frequencies = frequencies.data();
  a.selected = selected.data();
  a.scratch = scratch.data();
  a.out = out.data();
  a.codes = codes.data();
  a.scales = scales.data();
  require(attend(a, nullptr));
  require(cudaDeviceSynchronize());
  return {out.read(), scales.read(), codes.read()};
}

template <class T>
bool same_bits(const std::vector<T>& all, size_t row, const std::vector<T>& one) {
  return std::memcmp(all.data() + row * one.size(), one.data(), one.size() * sizeof(T)) == 0;
}

// Every row alone gives the bits of the batch, and a rerun too.
void expect_same_bits_alone(const Problem& problem, const Output& output) {
  const Output again = run(problem);
  EXPECT_TRUE(same_bits(output.values, 0, again.values));
  for (size_t row = 0; row < problem.rows.size(); ++row) {
    const Output one = run(problem.only(row));
    EXPECT_TRUE(same_bits(output.values, row, one.values) && same_bits(output.codes, row, one.codes) &&
                same_bits(output.scales, row, one.scales))
        << "position " << problem.rows[row].position;
  }
}

void expect_accurate(const Problem& problem, const Output& output, double limit = error_limit) {
  for (size_t row = 0; row < problem.rows.size(); ++row) {
    for (uint32_t head = 0; head < problem.heads; head += head % 4 == 3 ? 13 : 1) {
      const float* got = output.values.data() + (row * problem.heads + head) * 512;
      EXPECT_LT(relative_error(got, problem.expected(row, head)), limit)
          << "position " << problem.rows[row].position << " head " << head;
    }
  }
}

class AttentionTest : public DeviceTest,
                      public testing::WithParamInterface<std::tuple<uint32_t, uint32_t>> {};

TEST_P(AttentionTest, SixteenSequences) {
  const auto [heads, ratio] = GetParam();
  std::mt19937 random(heads + ratio);
  std::deque<RandomSequence> sequences;
  std::vector<PassRow> rows;
  for (uint64_t position : positions) {
    sequences.emplace_back(position, ratio, random);
    rows.push_back({&sequences.back(), position});
  }
  const Problem problem(heads, ratio, rows, random);
  const Output output = run(problem);
  expect_accurate(problem, output);
  expect_same_bits_alone(problem, output);
  std::vector<int8_t> codes(output.codes.size());
  std::vector<float> scales(output.scales.size());
  format::quantize_activations_q8_0(output.values.data(), output.values.size(), codes.data(), scales.data());
  EXPECT_TRUE(codes == output.codes);
  EXPECT_TRUE(scales == output.scales);
}

TEST_P(AttentionTest, RowsOfOneSequenceBesideOthers) {
  const auto [heads, ratio] = GetParam();
  std::mt19937 random(heads + ratio + 1);
  const RandomSequence a(2060, ratio, random), b(1, ratio, random), c(300, ratio, random);
  std::vector<PassRow> rows;
  for (uint64_t p = 2051; p <= 2060; ++p) rows.push_back({&a, p});
  rows.push_back({&b, 1});
  for (uint64_t p = 296; p <= 300; ++p) rows.push_back({&c, p});
  const Problem problem(heads, ratio, rows, random);
  const Output output = run(problem);
  expect_accurate(problem, output);
  expect_same_bits_alone(problem, output);

  const Problem three(heads, ratio, {{&a, 2060}, {&b, 1}, {&c, 300}}, random);
  const Output output_of_three = run(three);
  expect_accurate(three, output_of_three);
  expect_same_bits_alone(three, output_of_three);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest,
                         testing::Combine(testing::Values(4u, 64u), testing::Values(0u, 4u, 128u)));

using LongAttentionTest = DeviceTest;

// 8,192 compressed rows of ratio 128: the whole declared context, chunks of several tiles.
TEST_F(LongAttentionTest, MillionTokens) {
  std::mt19937 random(3);
  const RandomSequence sequence((1u << 20) - 1, 128, random), other(200000, 128, random);
  const Problem problem(16, 128, {{&sequence, (1u << 20) - 2}, {&sequence, (1u << 20) - 1}, {&other, 200000}},
                        random);
  const Output output = run(problem);
  expect_accurate(problem, output);
  expect_same_bits_alone(problem, output);
}

// Large scores: each query points at a KV row, which takes nearly all the weight.
TEST_F(LongAttentionTest, SharpWeights) {
  std::mt19937 random(4);
  const RandomSequence sequence(5000, 4, random);
  Problem problem(20, 4, {{&sequence, 5000}}, random);
  for (uint32_t head = 0; head < problem.heads; ++head) {
    const std::vector<float> row = sequence.raw_row(5000 - 6 * head);
    std::vector<double> q(row.begin(), row.end());
    rotate_double(q.data() + 448, 5000, problem.frequencies, -1.0);
    for (size_t i = 0; i < 512; ++i) problem.query[head * size_t{512} + i] = static_cast<float>(q[i]);
  }
  expect_accurate(problem, run(problem), 1e-3);
}

// A head whose query is 0, and queries of very different size.
TEST_F(LongAttentionTest, QueriesAreNormalised) {
  std::mt19937 random(5);
  const RandomSequence sequence(1000000, 128, random);
  Problem problem(8, 128, {{&sequence, 1000000}}, random);
  for (size_t i = 0; i < 512; ++i) {
    problem.query[i] = 0.0f;
    problem.query[512 + i] *= 1e-4f;
    problem.query[1024 + i] *= 1e4f;
  }
  expect_accurate(problem, run(problem));
}

}  // namespace
}  // namespace ds4::cuda
