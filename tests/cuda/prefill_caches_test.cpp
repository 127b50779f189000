// What a prefill chunk leaves in the caches of a layer: against the CPU's functions, and the same for any
// cuts.
#include "backend/cuda/prefill/prefill_caches.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "layer_caches.hpp"

namespace ds4::cuda {
namespace {

class PrefillCachesTest : public DeviceTest {};

std::vector<uint16_t> decoded_halves(const uint8_t* packed) {
  float values[512];
  cpu::RowCodec(true).decode_attention(reinterpret_cast<const std::byte*>(packed), values);
  std::vector<uint16_t> halves(512);
  for (size_t i = 0; i < 512; ++i) halves[i] = format::f32_to_f16(values[i]);
  return halves;
}

// A sequence on the device that takes the layer's tokens chunk by chunk.
class PrefillCache : public DeviceLayerCache {
 public:
  explicit PrefillCache(const Layer& layer) : DeviceLayerCache(layer), layer_(layer), parameters_(layer) {}

  struct Rows {
    std::vector<uint16_t> attention, q_low;  // [older + tokens + compressed][512], [tokens][rank]
  };

  Rows take(size_t count) {
    const size_t begin = taken();
    const auto part = [begin, count](const std::vector<float>& all, size_t width) {
      return part_of(all, width, begin, count);
    };
    const DeviceCopy<float> q_low(part(layer_.q_low, layer_.rank)), kv(part(layer_.kv, 512)),
        values(part(layer_.values, layer_.width)), gates(part(layer_.gates, layer_.width)),
        index_values(part(layer_.index_values, layer_.index_width)),
        index_gates(part(layer_.index_gates, layer_.index_width));
    const size_t compressed = layer_.ratio == 0 ? 0 : (begin + count) / layer_.ratio;
    const DeviceCopy<uint16_t> rows((prefill_older_rows(begin) + count + compressed) * 512),
        q_half(count * layer_.rank);
    PrefillCaches u;
    u.cache = layers() + layer_number;
    u.position = begin;
    u.tokens = static_cast<uint32_t>(count);
    u.ratio = layer_.ratio;
    u.frequencies = parameters_.frequencies.data();
    u.q_low = q_low.data();
    u.q_norm = parameters_.q_norm.data();
    u.q_rank = static_cast<uint32_t>(layer_.rank);
    u.q_low_half = reinterpret_cast<__half*>(q_half.data());
    u.kv = kv.data();
    u.kv_norm = parameters_.kv_norm.data();
    u.compressor = {values.data(), gates.data(), parameters_.ape.data(), parameters_.norm.data()};
    u.index_compressor = {index_values.data(), index_gates.data(), parameters_.index_ape.data(),
                          parameters_.index_norm.data()};
    u.rows = reinterpret_cast<__half*>(rows.data());
    require(prefill_update_caches(u, nullptr));
    require(cudaDeviceSynchronize());
    advance(count);
    return {rows.read(), q_half.read()};
  }

 private:
  const Layer& layer_;
  DeviceParameters parameters_;
};

// Bytes of two packed rows that differ: a last bit of a sum may become a step of FP8 or FP4.
size_t differing(const std::vector<uint8_t>& got, const std::byte* expected) {
  size_t count = 0;
  for (size_t i = 0; i < got.size(); ++i) count += got[i] != static_cast<uint8_t>(expected[i]);
  return count;
}

// Tails are F16: they may differ by a step of 2^-10.
size_t differing_attention(const std::vector<uint8_t>& got, const std::byte* expected) {
  size_t count = differing({got.begin(), got.begin() + 456}, expected);
  for (size_t i = 456; i < 584; i += 2) {
    uint16_t a, b;
    std::memcpy(&a, got.data() + i, 2);
    std::memcpy(&b, expected + i, 2);
    count += std::abs(int{a} - int{b}) > 1;
  }
  return count;
}

void check_against_cpu(const Layer& layer, const PrefillCache& device, const PrefillCache::Rows& rows) {
  CpuLayerCache cpu_cache(layer);
  size_t bad = 0, bytes = 0;
  double worst_query = 0;
  for (size_t t = 0; t < layer.tokens; ++t) {
    std::vector<float> q(layer.rank);
    const std::vector<std::byte> packed = cpu_cache.raw_row(t);
    const auto expected = decoded_halves(reinterpret_cast<const uint8_t*>(packed.data()));
    for (size_t i = 0; i < 512; ++i) {
      bad += std::abs(int{expected[i]} - int{rows.attention[t * 512 + i]}) > (i < 448 ? 0 : 1);
    }
    bytes += 512;
    cpu::rms_norm(layer.q_low.data() + t * layer.rank, layer.q_norm.data(), layer.rank, q.data());
    for (size_t i = 0; i < layer.rank; ++i) {
      const double got = format::f16_to_f32(rows.q_low[t * layer.rank + i]);
      worst_query = std::max(worst_query, std::abs(got - q[i]) / (std::abs(q[i]) + 1e-4));
    }
    if (t + 144 >= layer.tokens) {
      const auto raw = device.raw_row(t);
      const auto again = decoded_halves(raw.data());
      ASSERT_TRUE(std::equal(again.begin(), again.end(),
                             rows.attention.begin() + static_cast<std::ptrdiff_t>(t * 512)))
          << "raw row " << t;
      EXPECT_EQ(raw[455], 0);
    }
    cpu_cache.take_token();
  }
  EXPECT_LT(worst_query, 6e-4);  // half a step of F16
  const auto compressed = device.compressed_rows(), index_rows = device.index_rows();
  ASSERT_EQ(compressed.size(), cpu_cache.state.compressed.size());
  ASSERT_EQ(index_rows.size(), cpu_cache.state.index_rows.size());
  for (size_t c = 0; c < compressed.size(); ++c) {
    bad += differing_attention(compressed[c], cpu_cache.state.compressed[c]);
    bytes += 584;
    const auto again = decoded_halves(compressed[c].data());
    ASSERT_TRUE(std::equal(again.begin(), again.end(),
                           rows.attention.begin() + static_cast<std::ptrdiff_t>((layer.tokens + c) * 512)))
        << "compressed row " << c;
  }
  for (size_t c = 0; c < index_rows.size(); ++c) {
    bad += differing(index_rows[c], cpu_cache.state.index_rows[c]);
    bytes += 68;
  }
  EXPECT_LT(static_cast<double>(bad) / static_cast<double>(bytes), 3e-4) << bad << " of " << bytes;
  printf("ratio %u, %zu tokens: %zu of %zu cached values differ from the CPU's\n", layer.ratio, layer.tokens,
         bad, bytes);

  cpu_cache.expect_states_of(device);
}

TEST_F(PrefillCachesTest, EqualTheCpu) {
  std::mt19937 random(1);
  for (const uint32_t ratio : {0u, 4u, 128u}) {
    for (const size_t tokens :
         {1ul,  2ul,   3ul,   4ul,   5ul,   6ul,   7ul,   8ul,   9ul,   63ul,  64ul,
          65ul, 127ul, 128ul, 129ul, 255ul, 256ul, 257ul, 511ul, 512ul, 513ul, 1030ul}) {
      const Layer layer(ratio, tokens, tokens % 2 == 0 ? 1024 : 160, random);
      PrefillCache device(layer);
      const auto rows = device.take(tokens);
      check_against_cpu(layer, device, rows);
    }
  }
}

// The same tokens in chunks of all kinds of lengths leave the same bits.
TEST_F(PrefillCachesTest, CutsDoNotMatter) {
  const std::vector<size_t> lengths = {1,  2,   3,   4,   5,   6,   7,   8,   9,   63, 64,
                                       65, 127, 128, 129, 255, 256, 257, 511, 512, 513};
  const size_t tokens = std::accumulate(lengths.begin(), lengths.end(), size_t{0});
  std::mt19937 random(2);
  for (const uint32_t ratio : {0u, 4u, 128u}) {
    const Layer layer(ratio, tokens, 64, random);
    PrefillCache whole(layer);
    const auto all = whole.take(tokens);
    for (int order = 0; order < 4; ++order) {
      std::vector<size_t> cuts = lengths;
      if (order == 1) std::reverse(cuts.begin(), cuts.end());
      if (order > 1) std::shuffle(cuts.begin(), cuts.end(), random);
      PrefillCache pieces(layer);
      for (const size_t count : cuts) {
        const size_t begin = pieces.position(), older = prefill_older_rows(begin);
        const auto rows = pieces.take(count);
        const auto same = [&](size_t row, size_t of_all, size_t n) {
          return std::memcmp(rows.attention.data() + row * 512, all.attention.data() + of_all * 512,
                             n * 512 * sizeof(uint16_t)) == 0;
        };
        ASSERT_TRUE(same(0, begin - older, older + count)) << count << " tokens at " << begin;
        const size_t compressed = ratio == 0 ? 0 : (begin + count) / ratio;
        ASSERT_TRUE(same(older + count, tokens, compressed)) << count << " tokens at " << begin;
        ASSERT_EQ(
            std::memcmp(rows.q_low.data(), all.q_low.data() + begin * layer.rank, rows.q_low.size() * 2), 0);
      }
      EXPECT_EQ(pieces.compressed_rows(), whole.compressed_rows());
      EXPECT_EQ(pieces.index_rows(), whole.index_rows());
      for (size_t position = tokens - 144; position < tokens; ++position) {
        ASSERT_EQ(pieces.raw_row(position), whole.raw_row(position)) << position;
      }
      const size_t open = ratio == 0 ? 0 : tokens % ratio;
      for (size_t which = 0; which < (ratio == 4 ? 4u : ratio == 0 ? 0u : 2u); ++which) {
        const size_t width = which < 2 ? layer.width : layer.index_width;
        const auto a = pieces.state(which), b = whole.state(which);
        const size_t used = ratio == 4 ? 4 + open : open;
        EXPECT_EQ(std::memcmp(a.data(), b.data(), used * width * sizeof(float)), 0) << "state " << which;
      }
    }
  }
}

}  // namespace
}  // namespace ds4::cuda
