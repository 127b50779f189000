// Single operations of the CPU backend against reference vectors (tests/data/nano/ops.json).
// Error measure: largest absolute error over the largest absolute reference value.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "backend/cpu/attention.hpp"
#include "backend/cpu/compressor.hpp"
#include "backend/cpu/hyper_connection.hpp"
#include "backend/cpu/indexer.hpp"
#include "backend/cpu/rms_norm.hpp"
#include "backend/cpu/rope.hpp"
#include "backend/cpu/router.hpp"
#include "backend/cpu/vector_ops.hpp"
#include "support/ops_vectors.hpp"

namespace ds4::cpu {
namespace {

using test::OpsArray;
using test::OpsVectors;

constexpr double tolerance = 1e-5;

double error(const std::vector<float>& ours, const std::vector<float>& reference) {
  EXPECT_EQ(ours.size(), reference.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    worst = std::max(worst, std::fabs(static_cast<double>(ours[i]) - reference[i]));
    largest = std::max(largest, std::fabs(static_cast<double>(reference[i])));
  }
  return worst / largest;
}

class OperationsTest : public ::testing::Test {
 protected:
  OpsVectors vectors;
};

TEST_F(OperationsTest, HyperConnection) {
  const auto x = vectors.floats("hc", "x"), fn = vectors.floats("hc", "fn"),
             scales = vectors.floats("hc", "scale");
  const auto base = vectors.floats("hc", "base"), y = vectors.floats("hc", "y");
  const size_t tokens = x.shape[0], width = x.shape[2], flat = 4 * width;
  std::vector<float> pre, post, comb, collapsed, after;
  for (size_t t = 0; t < tokens; ++t) {
    std::array<float, 24> mix;
    for (size_t k = 0; k < 24; ++k) mix[k] = dot(fn.row(k), x.row(t), flat) * inverse_rms(x.row(t), flat);
    const HyperConnection hc = split_mix(mix.data(), scales.values.data(), base.values.data());
    pre.insert(pre.end(), hc.pre.begin(), hc.pre.end());
    post.insert(post.end(), hc.post.begin(), hc.post.end());
    comb.insert(comb.end(), hc.comb.begin(), hc.comb.end());
    std::vector<float> merged(width), streams(x.row(t), x.row(t) + flat);
    mix_streams(streams.data(), hc.pre.data(), width, merged.data());
    collapsed.insert(collapsed.end(), merged.begin(), merged.end());
    post_streams(streams.data(), y.row(t), hc.post.data(), hc.comb.data(), width);
    after.insert(after.end(), streams.begin(), streams.end());
  }
  EXPECT_LE(error(pre, vectors.floats("hc", "pre").values), tolerance);
  EXPECT_LE(error(post, vectors.floats("hc", "post").values), tolerance);
  EXPECT_LE(error(comb, vectors.floats("hc", "comb").values), tolerance);
  EXPECT_LE(error(collapsed, vectors.floats("hc", "collapsed").values), tolerance);
  EXPECT_LE(error(after, vectors.floats("hc", "post_out").values), tolerance);
}

TEST_F(OperationsTest, HeadMerge) {
  const auto x = vectors.floats("hc_head", "x"), fn = vectors.floats("hc_head", "fn");
  const auto base = vectors.floats("hc_head", "base"), w = vectors.floats("hc_head", "w");
  const float scales = vectors.floats("hc_head", "scale").values[0];
  const size_t width = x.shape[2], flat = 4 * width;
  std::vector<float> out;
  for (size_t t = 0; t < x.shape[0]; ++t) {
    std::array<float, 4> mix;
    for (size_t k = 0; k < 4; ++k) mix[k] = dot(fn.row(k), x.row(t), flat) * inverse_rms(x.row(t), flat);
    const auto weights = split_head_mix(mix.data(), scales, base.values.data());
    std::vector<float> merged(width);
    mix_streams(x.row(t), weights.data(), width, merged.data());
    rms_norm(merged.data(), w.values.data(), width, merged.data());
    out.insert(out.end(), merged.begin(), merged.end());
  }
  EXPECT_LE(error(out, vectors.floats("hc_head", "out").values), tolerance);
}

TEST_F(OperationsTest, RmsNorm) {
  const auto x = vectors.floats("rmsnorm", "x"), w = vectors.floats("rmsnorm", "w");
  std::vector<float> weighted(x.values.size()), plain(x.values.size());
  const size_t n = w.values.size();
  for (size_t i = 0; i < x.values.size(); i += n) {
    rms_norm(x.values.data() + i, w.values.data(), n, weighted.data() + i);
    rms_norm(x.values.data() + i, nullptr, n, plain.data() + i);
  }
  EXPECT_LE(error(weighted, vectors.floats("rmsnorm", "weighted").values), tolerance);
  EXPECT_LE(error(plain, vectors.floats("rmsnorm", "plain").values), tolerance);
}

// Rows of a compressor fed token by token, with the rounding of cached rows.
std::vector<float> compress(const OpsVectors& vectors, const char* name, uint32_t dim, bool round_trips) {
  const auto kv = vectors.floats(name, "kv"), gate = vectors.floats(name, "gate"),
             ape = vectors.floats(name, "ape");
  const auto norm = vectors.floats(name, "norm_w");
  const auto frequencies = rope_frequencies(true);
  const RowCodec codec(round_trips);
  const CompressorParameters parameters{ape.values.data(), norm.values.data(), dim, &frequencies};
  CompressorState state(4, dim);
  const bool attention = dim == model::head_dim;
  RowPages rows(attention ? codec.attention_bytes() : codec.index_bytes());
  for (size_t t = 0; t < kv.shape[0]; ++t) {
    compress_token(state, parameters, codec, t, kv.row(t), gate.row(t), rows);
  }
  std::vector<float> out(rows.size() * dim);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (attention) codec.decode_attention(rows[i], out.data() + i * dim);
    if (!attention) codec.decode_index(rows[i], out.data() + i * dim);
  }
  return out;
}

TEST_F(OperationsTest, CompressorOfAttentionRows) {
  EXPECT_LE(error(compress(vectors, "compress_4_512", 512, false),
                  vectors.floats("compress_4_512", "roped").values),
            tolerance);
  const auto rounded = vectors.floats("compress_4_512", "rounded");
  const auto ours = compress(vectors, "compress_4_512", 512, true);
  ASSERT_EQ(ours.size(), rounded.values.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    // The rotary tail is stored as F16; the rest is exact.
    const bool tail = i % 512 >= 448;
    EXPECT_NEAR(ours[i], rounded.values[i], tail ? std::fabs(rounded.values[i]) * 0x1p-11 + 1e-7 : 0.0) << i;
  }
}

TEST_F(OperationsTest, CompressorOfIndexRows) {
  EXPECT_LE(error(compress(vectors, "compress_4_128", 128, false),
                  vectors.floats("compress_4_128", "roped").values),
            tolerance);
  EXPECT_EQ(compress(vectors, "compress_4_128", 128, true),
            vectors.floats("compress_4_128", "rounded").values);
}

TEST_F(OperationsTest, PoolingOver128Tokens) {
  const auto kv = vectors.floats("compress_128_512", "kv"), gate = vectors.floats("compress_128_512", "gate");
  const auto ape = vectors.floats("compress_128_512", "ape"),
             pooled = vectors.floats("compress_128_512", "pooled");
  const size_t n = kv.row_size();
  std::vector<float> out;
  for (size_t j = 0; j < pooled.shape[0]; ++j) {
    std::vector<std::vector<float>> scores(128);
    std::vector<const float*> value_rows, score_rows;
    for (size_t t = 0; t < 128; ++t) {
      scores[t].assign(gate.row(128 * j + t), gate.row(128 * j + t) + n);
      add(ape.row(t), n, scores[t].data());
      value_rows.push_back(kv.row(128 * j + t));
      score_rows.push_back(scores[t].data());
    }
    std::vector<float> row(n);
    pool_columns(value_rows.data(), score_rows.data(), 128, n, row.data());
    out.insert(out.end(), row.begin(), row.end());
  }
  EXPECT_LE(error(out, pooled.values), tolerance);
}

void check_rope(const OpsVectors& vectors, const char* name, bool compressed) {
  const auto frequencies = rope_frequencies(compressed);
  EXPECT_EQ(std::vector<float>(frequencies.begin(), frequencies.end()), vectors.floats(name, "freqs").values);
  const auto positions = vectors.ints(name, "positions");
  const auto x = vectors.floats(name, "x_tail"), out = vectors.floats(name, "out"),
             exact = vectors.floats(name, "out64");
  for (size_t i = 0; i < positions.values.size(); ++i) {
    const auto position = static_cast<uint64_t>(positions.values[i]);
    const float* input =
        x.shape.size() > 1 && x.shape[0] == positions.values.size() ? x.row(i) : x.values.data();
    std::vector<float> tail(input, input + 64);
    rotate(tail.data(), rope_angles(position, frequencies));
    EXPECT_LE(error(tail, {out.row(i), out.row(i) + 64}), tolerance) << "position " << position;
    // Angles are F32 products: their error grows with the position.
    EXPECT_LE(error(tail, {exact.row(i), exact.row(i) + 64}), 2e-6 + 1.2e-7 * static_cast<double>(position));
    rotate_inverse(tail.data(), rope_angles(position, frequencies));
    EXPECT_LE(error(tail, {input, input + 64}), tolerance);
  }
}
TEST_F(OperationsTest, RopePlain) {
  check_rope(vectors, "rope_plain", false);
}
TEST_F(OperationsTest, RopeCompressed) {
  check_rope(vectors, "rope_compressed", true);
}

TEST_F(OperationsTest, Indexer) {
  const auto q = vectors.floats("indexer", "q"), rows = vectors.floats("indexer", "rows");
  const auto w = vectors.floats("indexer", "w");
  const auto scores = vectors.floats("indexer", "scores");
  const auto top8 = vectors.ints("indexer", "top8");
  const size_t heads = 4, count = rows.shape[0];
  const RowCodec codec(false);
  RowPages keys(codec.index_bytes());
  for (size_t i = 0; i < count; ++i) keys.append(reinterpret_cast<const std::byte*>(rows.row(i)));
  std::vector<float> weights = w.values;
  for (float& weight : weights) weight /= std::sqrt(128.0f * heads);
  std::vector<float> out(64), scratch(index_scratch_floats(heads));
  score_index_rows({q.values.data(), 0, weights.data(), 0, heads, 1}, keys, codec, 0, count, out.data(), 64,
                   scratch.data());
  out.resize(count);
  EXPECT_LE(error(out, scores.values), tolerance);
  std::vector<uint32_t> selected(8), order(count);
  select_rows(out.data(), count, 8, selected.data(), order.data());
  EXPECT_EQ(std::vector<int32_t>(selected.begin(), selected.end()), top8.values);
}

TEST_F(OperationsTest, Attention) {
  const auto q = vectors.floats("attention", "q"), raw = vectors.floats("attention", "raw");
  const auto comp = vectors.floats("attention", "comp"), sink = vectors.floats("attention", "sink");
  std::vector<float> rows = raw.values, out = q.values;
  rows.insert(rows.end(), comp.values.begin(), comp.values.end());
  const size_t count = raw.shape[0] + comp.shape[0];
  std::vector<float> scores(attention_score_floats(count));
  attend(out.data(), sink.values.size(), sink.values.data(), rows.data(), count, scores.data());
  EXPECT_LE(error(out, vectors.floats("attention", "out").values), tolerance);
}

TEST_F(OperationsTest, Router) {
  const auto x = vectors.floats("router", "x"), gate = vectors.floats("router", "gate");
  const auto bias = vectors.floats("router", "bias");
  const auto selected = vectors.ints("router", "selected"), hashed = vectors.ints("router", "hash_selected");
  const auto check = [&](const RouterSettings& settings, const OpsArray<int32_t>& ids,
                         const std::vector<float>& wanted) {
    for (size_t t = 0; t < 3; ++t) {
      std::vector<float> logits(8), weights(2);
      std::vector<uint32_t> experts(2);
      for (size_t e = 0; e < 8; ++e) {
        for (size_t i = 0; i < x.row_size(); ++i) logits[e] += gate.row(e)[i] * x.row(t)[i];
      }
      route(logits.data(), static_cast<int32_t>(t), settings, experts.data(), weights.data());
      for (size_t k = 0; k < 2; ++k) {
        const auto expert = static_cast<uint32_t>(ids.row(t)[k]);
        const auto place =
            static_cast<size_t>(std::find(experts.begin(), experts.end(), expert) - experts.begin());
        ASSERT_LT(place, 2u);
        EXPECT_NEAR(weights[place], wanted[t * 2 + k], 1e-5);
      }
    }
  };
  check({8, 2, 1.5f, bias.values.data(), nullptr}, selected, vectors.floats("router", "weights").values);
  check({8, 2, 1.5f, nullptr, hashed.values.data()}, hashed, vectors.floats("router", "hash_weights").values);
}

TEST_F(OperationsTest, Swiglu) {
  const auto gate = vectors.floats("swiglu", "gate"), up = vectors.floats("swiglu", "up");
  const size_t n = gate.values.size(), padded = (n + 15) / 16 * 16;
  std::vector<float> g = gate.values, u = up.values, out(padded);
  g.resize(padded);
  u.resize(padded);
  swiglu(g.data(), u.data(), model::swiglu_clamp, 1.0f, padded, out.data());
  out.resize(n);
  EXPECT_LE(error(out, vectors.floats("swiglu", "out").values), tolerance);
}

}  // namespace
}  // namespace ds4::cpu
