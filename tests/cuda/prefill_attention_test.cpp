// Attention of a prefill pass against float64, and the same bits however the pass is cut.
#include "backend/cuda/attention/prefill_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device_copy.hpp"
#include "format/f16.hpp"
#include "random_sequences.hpp"
#include "references.hpp"

namespace ds4::cuda {
namespace {

// Relative L2: queries, weights and results are rounded to 11 bits, and scores have a spread of up to 2.
constexpr double error_limit = 2e-3;

std::vector<uint16_t> to_halves(const std::vector<float>& values) {
  std::vector<uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), format::f32_to_f16);
  return halves;
}

const __half* half_pointer(const DeviceCopy<uint16_t>& values) {
  return reinterpret_cast<const __half*>(values.data());
}

struct Shape {
  uint32_t heads, ratio, top_k;
};

// A stretch of a sequence: everything its tokens first .. first + tokens - 1 read.
struct Problem {
  Shape shape;
  uint64_t first;
  uint32_t tokens;
  std::vector<float> raw, compressed, query;  // raw: from position first - older on; already F16 values
  std::vector<float> sinks, frequencies;
  std::vector<uint32_t> selected;

  Problem(Shape shape_, uint64_t first_, uint32_t tokens_, float spread, std::mt19937& random)
      : shape(shape_), first(first_), tokens(tokens_), frequencies(frequency_table(shape_.ratio)) {
    const auto rows = [&](size_t count) {
      std::vector<float> values;
      for (size_t i = 0; i < count; ++i) {
        const float scale = std::ldexp(1.0f, static_cast<int>(random() % 6) - 4);
        for (float x : random_values(512, scale, random))
          values.push_back(format::f16_to_f32(format::f32_to_f16(x)));
      }
      return values;
    };
    raw = rows(older() + tokens);
    compressed = rows(visible_rows(first + tokens - 1, shape.ratio));
    query = random_values(size_t{tokens} * shape.heads * 512, spread, random);
    for (float& x : query) x = format::f16_to_f32(format::f32_to_f16(x));
    sinks = random_values(shape.heads, 2.0f, random);
    selected.resize(size_t{tokens} * shape.top_k, 0xffffffffu);
    for (uint32_t t = 0; t < tokens; ++t) {
      const uint32_t visible = visible_rows(first + t, shape.ratio);
      if (shape.ratio != 4 || visible <= shape.top_k) continue;
      std::vector<uint32_t> all(visible);
      std::iota(all.begin(), all.end(), 0u);
      std::shuffle(all.begin(), all.end(), random);
      std::sort(all.begin(), all.begin() + shape.top_k);
      std::copy_n(all.begin(), shape.top_k, selected.begin() + std::ptrdiff_t{t} * shape.top_k);
    }
  }

  uint32_t older() const { return static_cast<uint32_t>(std::min<uint64_t>(first, 127)); }

  std::vector<double> expected(uint32_t token, uint32_t head) const {
    const uint64_t position = first + token;
    const std::vector<double> prepared =
        prepare_double(query.data() + (size_t{token} * shape.heads + head) * 512, position, frequencies);
    const size_t raw_count = std::min<uint64_t>(position + 1, 128), oldest = older() + token + 1 - raw_count;
    uint32_t seen = visible_rows(position, shape.ratio);
    const bool choose = shape.ratio == 4 && seen > shape.top_k;
    if (choose) seen = shape.top_k;
    std::vector<double> out = attend_double(prepared, raw_count + seen, sinks[head], [&](size_t t, size_t i) {
      if (t < raw_count) return double{raw[(oldest + t) * 512 + i]};
      const size_t c = t - raw_count;
      return double{compressed[(choose ? selected[size_t{token} * shape.top_k + c] : c) * 512 + i]};
    });
    rotate_double(out.data() + 448, position, frequencies, -1.0);
    return out;
  }

  // Tokens begin .. end - 1 as a pass of their own; results as F16 bits.
  std::vector<uint16_t> run(uint32_t begin, uint32_t end, PrefillKernel kernel) const {
    const uint64_t position = first + begin;
    const auto own_older = static_cast<uint32_t>(std::min<uint64_t>(position, 127));
    const size_t width = size_t{shape.heads} * 512;
    std::vector<float> rows(raw.begin() + std::ptrdiff_t{older() + begin - own_older} * 512,
                            raw.begin() + std::ptrdiff_t{older() + end} * 512);
    rows.insert(rows.end(), compressed.begin(),
                compressed.begin() + std::ptrdiff_t{visible_rows(first + end - 1, shape.ratio)} * 512);
    const DeviceCopy<uint16_t> device_rows(to_halves(rows));
    const DeviceCopy<uint16_t> device_query(
        to_halves({query.begin() + static_cast<std::ptrdiff_t>(begin * width),
                   query.begin() + static_cast<std::ptrdiff_t>(end * width)}));
    const DeviceCopy<uint32_t> device_selected(
        std::vector<uint32_t>(selected.begin() + std::ptrdiff_t{begin} * shape.top_k,
                              selected.begin() + std::ptrdiff_t{end} * shape.top_k));
    const DeviceCopy<float> device_sinks(sinks), device_frequencies(frequencies);
    const DeviceCopy<uint16_t> out((end - begin) * width);
    PrefillAttention a;
    a.rows = half_pointer(device_rows);
    a.older = own_older;
    a.tokens = end - begin;
    a.position = position;
    a.heads = shape.heads;
    a.ratio = shape.ratio;
    a.top_k = shape.top_k;
    a.selected = shape.ratio == 4 ? device_selected.data() : nullptr;
    a.query = half_pointer(device_query);
    a.sinks = device_sinks.data();
    a.frequencies = device_frequencies.data();
    a.out = reinterpret_cast<__half*>(out.data());
    require(prefill_attention(a, nullptr, kernel));
    require(cudaDeviceSynchronize());
    return out.read();
  }
};

class PrefillAttentionTest : public DeviceTest, public testing::WithParamInterface<PrefillKernel> {
 protected:
  // Accuracy of some tokens and heads; then cuts at odd places give the same bits.
  void check(const Problem& p, const std::vector<uint32_t>& cuts, double limit = error_limit) {
    const std::vector<uint16_t> got = p.run(0, p.tokens, GetParam());
    const std::string where = std::to_string(p.shape.heads) + " heads, ratio " +
                              std::to_string(p.shape.ratio) + ", top " + std::to_string(p.shape.top_k) +
                              ", from " + std::to_string(p.first);
    for (uint32_t t = 0; t < p.tokens;
         t += p.tokens - 1 - t > 0 && t % 5 == 4 ? std::min(p.tokens - 1 - t, 9u) : 1) {
      for (uint32_t head = 0; head < p.shape.heads; head += head % 4 == 3 ? 14 : 1) {
        float values[512];
        for (size_t i = 0; i < 512; ++i)
          values[i] = format::f16_to_f32(got[(size_t{t} * p.shape.heads + head) * 512 + i]);
        ASSERT_LT(relative_error(values, p.expected(t, head)), limit)
            << where << ", token " << t << ", head " << head;
      }
    }
    for (uint32_t cut : cuts) {
      std::vector<uint16_t> parts = p.run(0, cut, GetParam());
      const std::vector<uint16_t> rest = p.run(cut, p.tokens, GetParam());
      parts.insert(parts.end(), rest.begin(), rest.end());
      EXPECT_TRUE(parts == got) << where << ", cut at " << cut;
    }
  }
};

TEST_P(PrefillAttentionTest, OneToken) {
  std::mt19937 random(1);
  for (uint32_t heads : {4u, 8u, 64u, 128u}) {
    for (uint32_t ratio : {0u, 4u, 128u}) {
      for (uint64_t position : {0, 5001, 127, 1, 3, 62, 63, 64, 126, 128, 300, 2047, 2050, 2051}) {
        check(Problem({heads, ratio, 512}, position, 1, 1.0f, random), {});
        if (HasFatalFailure()) return;
        if (heads % 64 != 0 && position == 127) break;
      }
    }
  }
}

TEST_P(PrefillAttentionTest, CutsGiveTheSameBits) {
  std::mt19937 random(2);
  for (Shape shape : {Shape{64, 0, 0}, Shape{64, 4, 16}, Shape{4, 4, 16}, Shape{128, 4, 64},
                      Shape{64, 128, 0}, Shape{8, 128, 0}, Shape{36, 4, 7}}) {
    check(Problem(shape, 0, 37, 1.0f, random), {1, 3, 36});
    if (HasFatalFailure()) return;
    check(Problem(shape, 61, 75, 1.0f, random), {1, 66, 67, 71});
    if (HasFatalFailure()) return;
    check(Problem(shape, 501, 21, 1.0f, random), {2, 11});
    if (HasFatalFailure()) return;
  }
}

TEST_P(PrefillAttentionTest, AroundTheNumberOfRowsKept) {
  std::mt19937 random(3);
  // 512 rows are visible up to position 2050, 513 from 2051 on.
  check(Problem({64, 4, 512}, 2043, 13, 1.0f, random), {7, 8, 9});
  check(Problem({64, 4, 1024}, 4095, 9, 1.0f, random), {4});
}

TEST_P(PrefillAttentionTest, AllRowsOfRatio128) {
  std::mt19937 random(4);
  check(Problem({64, 128, 0}, 131071, 3, 1.0f, random), {1});
}

// Large scores (one row takes nearly all the weight, maxima grow from block to block), tiny and huge queries,
// sinks far above and below every score.
TEST_P(PrefillAttentionTest, ExtremeValues) {
  std::mt19937 random(5);
  for (float spread : {1e-6f, 1e4f}) {
    Problem p({64, 4, 512}, 3001, 3, spread, random);
    for (float& x : p.raw) x = format::f16_to_f32(format::f32_to_f16(8.0f * x));
    for (float& x : p.compressed) x = format::f16_to_f32(format::f32_to_f16(8.0f * x));
    // Scores near 100 of queries with 11 bits: weights are good to some percent.
    check(p, {1}, spread < 1 ? 1e-3 : 5e-2);
  }
  Problem p({64, 4, 512}, 3001, 2, 1.0f, random);
  std::fill(p.sinks.begin(), p.sinks.end(), -1e6f);
  check(p, {});
  std::fill(p.sinks.begin(), p.sinks.end(), 1e6f);
  const std::vector<uint16_t> zero = p.run(0, 2, GetParam());
  EXPECT_TRUE(std::all_of(zero.begin(), zero.end(), [](uint16_t x) { return (x & 0x7fffu) == 0; }));
}

TEST_P(PrefillAttentionTest, ResultsStayFinite) {
  std::mt19937 random(6);
  Problem p({64, 0, 0}, 200, 2, 1.0f, random);
  std::fill(p.raw.begin(), p.raw.end(), 65504.0f);  // rotated back, some reach 1.4 times that
  std::fill(p.sinks.begin(), p.sinks.end(), -1e6f);
  for (uint16_t x : p.run(0, 2, GetParam())) ASSERT_LE(x & 0x7fffu, 0x7bffu);
}

// A damaged head must show, and nobody else's results change.
TEST_P(PrefillAttentionTest, NanStaysInItsHead) {
  std::mt19937 random(7);
  Problem p({64, 4, 16}, 200, 2, 1.0f, random);
  const std::vector<uint16_t> sound = p.run(0, 2, GetParam());
  p.query[5 * 512 + 100] = std::numeric_limits<float>::quiet_NaN();  // head 5 of the first token
  const std::vector<uint16_t> got = p.run(0, 2, GetParam());
  for (size_t i = 0; i < got.size(); ++i) {
    if (i / 512 == 5) {
      ASSERT_GT(got[i] & 0x7fffu, 0x7c00u) << i;
    } else {
      ASSERT_EQ(got[i], sound[i]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PrefillAttentionTest,
                         testing::Values(PrefillKernel::best, PrefillKernel::portable),
                         [](const auto& kernel) {
                           return kernel.param == PrefillKernel::best ? "Best" : "Portable";
                         });

}  // namespace
}  // namespace ds4::cuda
