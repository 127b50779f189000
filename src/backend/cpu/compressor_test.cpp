#include "backend/cpu/compressor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <tuple>
#include <vector>

#include "backend/cpu/reference.hpp"
#include "format/fp4_row.hpp"
#include "format/fp8_row.hpp"
#include "format/hadamard.hpp"
#include "support/kernel_checks.hpp"

namespace ds4::cpu {
namespace {

using test::random_floats;
using test::widen;

/// Projections of a sequence and the weights of its compressor.
struct Inputs {
  Inputs(uint32_t ratio_, uint32_t dim_, size_t tokens_, unsigned seed, float gate_deviation = 2.0f)
      : ratio(ratio_), dim(dim_), width(model::compressor_width(ratio_, dim_)), tokens(tokens_) {
    values = random_floats(tokens * width, seed);
    gates = random_floats(tokens * width, seed + 1, gate_deviation);
    ape = random_floats(ratio * width, seed + 2);
    norm = random_floats(dim, seed + 3);
  }

  CompressorParameters parameters() const { return {ape.data(), norm.data(), dim, &frequencies}; }

  void feed(CompressorState& state, const RowCodec& codec, size_t begin, size_t end, RowPages& rows) const {
    for (size_t t = begin; t < end; ++t) {
      compress_token(state, parameters(), codec, t, &values[t * width], &gates[t * width], rows);
    }
  }

  std::vector<double> exact_row(size_t j) const {
    std::vector<double> angles;
    for (float f : frequencies) angles.push_back(static_cast<double>(j * ratio) * f);
    return reference::compress_window(widen(values).data(), widen(gates).data(), widen(ape).data(),
                                      widen(norm).data(), angles.data(), ratio, dim, j);
  }

  uint32_t ratio, dim;
  size_t width, tokens;
  std::vector<float> values, gates, ape, norm;
  std::array<float, rope_pairs> frequencies = rope_frequencies(true);
};

size_t row_bytes(const RowCodec& codec, uint32_t dim) {
  return dim == model::head_dim ? codec.attention_bytes() : codec.index_bytes();
}

std::vector<float> decode(const RowCodec& codec, uint32_t dim, const std::byte* row) {
  std::vector<float> out(dim);
  if (dim == model::head_dim) codec.decode_attention(row, out.data());
  if (dim != model::head_dim) codec.decode_index(row, out.data());
  return out;
}

class CompressorTest : public ::testing::TestWithParam<std::tuple<uint32_t, uint32_t>> {
 protected:
  uint32_t ratio = std::get<0>(GetParam()), dim = std::get<1>(GetParam());
};

TEST_P(CompressorTest, RowsAgreeWithDoublePrecision) {
  const RowCodec codec(false);
  for (float gate_deviation : {0.1f, 2.0f, 50.0f}) {
    const Inputs inputs(ratio, dim, 3 * ratio + 1, 10, gate_deviation);
    CompressorState state(ratio, dim);
    RowPages rows(row_bytes(codec, dim));
    inputs.feed(state, codec, 0, inputs.tokens, rows);
    ASSERT_EQ(rows.size(), 3u);
    for (size_t j = 0; j < rows.size(); ++j) {
      const std::vector<float> ours = decode(codec, dim, rows[j]);
      const std::vector<double> exact = inputs.exact_row(j);
      for (size_t i = 0; i < dim; ++i) {
        ASSERT_NEAR(ours[i], exact[i], 2e-5 * (1 + std::fabs(exact[i]))) << "row " << j << " value " << i;
      }
    }
  }
}

TEST_P(CompressorTest, ARowAppearsWithTheLastTokenOfItsWindow) {
  const RowCodec codec(true);
  const Inputs inputs(ratio, dim, 2 * ratio + 5, 20);
  CompressorState state(ratio, dim);
  RowPages rows(row_bytes(codec, dim));
  for (size_t t = 0; t < inputs.tokens; ++t) {
    inputs.feed(state, codec, t, t + 1, rows);
    ASSERT_EQ(rows.size(), (t + 1) / ratio) << "after " << t + 1 << " tokens";
  }
}

// The rows of a prefix are those of the whole, whatever the length: later tokens do not reach back.
TEST_P(CompressorTest, APrefixHasTheSameRows) {
  const RowCodec codec(true);
  const Inputs inputs(ratio, dim, 2 * ratio + 2, 30);
  RowPages all(row_bytes(codec, dim));
  CompressorState whole(ratio, dim);
  inputs.feed(whole, codec, 0, inputs.tokens, all);
  for (size_t length : {size_t{1}, size_t{ratio} - 1, size_t{ratio}, size_t{ratio} + 1, size_t{2 * ratio} - 1,
                        size_t{2 * ratio}}) {
    CompressorState state(ratio, dim);
    RowPages rows(row_bytes(codec, dim));
    inputs.feed(state, codec, 0, length, rows);
    ASSERT_EQ(rows.size(), length / ratio);
    for (size_t j = 0; j < rows.size(); ++j) {
      ASSERT_EQ(std::memcmp(rows[j], all[j], rows.row_bytes()), 0) << length << " " << j;
    }
    // A copied state goes on as the original would.
    CompressorState copy = state;
    RowPages continued = rows;
    inputs.feed(copy, codec, length, inputs.tokens, continued);
    ASSERT_EQ(continued.size(), all.size());
    for (size_t j = 0; j < all.size(); ++j) {
      ASSERT_EQ(std::memcmp(continued[j], all[j], rows.row_bytes()), 0) << length << " " << j;
    }
  }
}

// Tokens that are taken back leave no trace: what follows is what would have followed without them.
TEST_P(CompressorTest, RetractedTokensLeaveNoTrace) {
  const RowCodec codec(true);
  const Inputs inputs(ratio, dim, 3 * ratio + 2, 30), other(ratio, dim, 3 * ratio + 40, 77);
  RowPages all(row_bytes(codec, dim));
  CompressorState whole(ratio, dim);
  inputs.feed(whole, codec, 0, inputs.tokens, all);
  for (size_t length = 0; length < inputs.tokens; length += 1 + ratio / 5) {
    CompressorState state(ratio, dim);
    RowPages rows(row_bytes(codec, dim));
    inputs.feed(state, codec, 0, length, rows);
    other.feed(state, codec, length, length + retractable_tokens, rows);
    rows.truncate(length / ratio);
    inputs.feed(state, codec, length, inputs.tokens, rows);
    ASSERT_EQ(rows.size(), all.size());
    for (size_t j = 0; j < all.size(); ++j) {
      ASSERT_EQ(std::memcmp(rows[j], all[j], rows.row_bytes()), 0) << length << " " << j;
    }
  }
}

TEST_P(CompressorTest, PackedRowsAreTheRoundedOnes) {
  const RowCodec exact(false), packed(true);
  const Inputs inputs(ratio, dim, 2 * ratio, 40);
  RowPages plain_rows(row_bytes(exact, dim)), packed_rows(row_bytes(packed, dim));
  CompressorState a(ratio, dim), b(ratio, dim);
  inputs.feed(a, exact, 0, inputs.tokens, plain_rows);
  inputs.feed(b, packed, 0, inputs.tokens, packed_rows);
  for (size_t j = 0; j < 2; ++j) {
    std::vector<float> expected = decode(exact, dim, plain_rows[j]);
    const std::vector<float> ours = decode(packed, dim, packed_rows[j]);
    if (dim == model::head_dim) {
      format::fp8_round_trip(expected.data());
      for (size_t i = model::nope_dim; i < dim; ++i) {
        ASSERT_NEAR(ours[i], expected[i], std::fabs(expected[i]) * 0x1p-11f + 0x1p-25f);
      }
      expected.resize(model::nope_dim);
    } else {
      format::hadamard_128(expected.data());
      format::fp4_round_trip(expected.data());
    }
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(ours[i], expected[i]) << j << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CompressorTest,
                         ::testing::Combine(::testing::Values(4u, 128u), ::testing::Values(512u, 128u)),
                         [](const auto& parameters) {
                           return "ratio" + std::to_string(std::get<0>(parameters.param)) + "_dim" +
                                  std::to_string(std::get<1>(parameters.param));
                         });

// The first window of ratio 4 has no predecessor: only its own second halves count.
TEST(Compressor, FirstWindowPoolsFourTokens) {
  const RowCodec codec(false);
  Inputs inputs(4, 512, 4, 50);
  RowPages rows(codec.attention_bytes()), changed_rows(codec.attention_bytes());
  CompressorState state(4, 512), changed_state(4, 512);
  inputs.feed(state, codec, 0, 4, rows);
  for (size_t t = 0; t < 4; ++t) {
    for (size_t i = 0; i < 512; ++i) inputs.values[t * 1024 + i] = 1e6f, inputs.gates[t * 1024 + i] = 1e6f;
  }
  inputs.feed(changed_state, codec, 0, 4, changed_rows);
  EXPECT_EQ(decode(codec, 512, rows[0]), decode(codec, 512, changed_rows[0]));
}

// Row j of ratio 4 sees tokens 4j-4 .. 4j+3 and no others.
TEST(Compressor, WindowsOverlapByOne) {
  const RowCodec codec(false);
  const Inputs inputs(4, 128, 16, 60, 0.1f);
  RowPages rows(codec.index_bytes());
  CompressorState state(4, 128);
  inputs.feed(state, codec, 0, 16, rows);
  for (size_t token = 0; token < 16; ++token) {
    Inputs other = inputs;
    for (size_t i = 0; i < other.width; ++i) other.values[token * other.width + i] += 1.0f;
    RowPages other_rows(codec.index_bytes());
    CompressorState other_state(4, 128);
    other.feed(other_state, codec, 0, 16, other_rows);
    for (size_t j = 0; j < 4; ++j) {
      const bool sees = token + 4 >= 4 * j && token < 4 * j + 4;
      EXPECT_EQ(decode(codec, 128, rows[j]) != decode(codec, 128, other_rows[j]), sees) << token << " " << j;
    }
  }
}

}  // namespace
}  // namespace ds4::cpu
