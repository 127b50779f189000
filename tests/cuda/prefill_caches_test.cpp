// What a prefill chunk leaves in the caches of a layer: against the CPU's functions, and the same for any
// cuts.
#include "backend/cuda/prefill/prefill_caches.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <numeric>

#include "backend/cpu/compressor.hpp"
#include "backend/cpu/rms_norm.hpp"
#include "product_data.hpp"

namespace ds4::cuda {
namespace {

class PrefillCachesTest : public DeviceTest {};

std::vector<float> normal_values(size_t count, float spread, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = spread * normal(random);
  return values;
}

// Projections of a sequence's tokens and the parameters of one layer.
struct Layer {
  uint32_t ratio;
  size_t tokens, rank, width, index_width;
  std::vector<float> q_low, q_norm, kv, kv_norm;
  std::vector<float> values, gates, ape, norm, index_values, index_gates, index_ape, index_norm;
  std::array<float, cpu::rope_pairs> frequencies;

  Layer(uint32_t layer_ratio, size_t count, size_t q_rank, std::mt19937& random)
      : ratio(layer_ratio),
        tokens(count),
        rank(q_rank),
        width(ratio == 0 ? 0 : model::compressor_width(ratio, 512)),
        index_width(ratio == 4 ? 256 : 0),
        q_low(normal_values(count * q_rank, 3.0f, random)),
        q_norm(normal_values(q_rank, 1.0f, random)),
        kv(normal_values(count * 512, 2.0f, random)),
        kv_norm(normal_values(512, 1.0f, random)),
        values(normal_values(count * width, 1.0f, random)),
        gates(normal_values(count * width, 2.0f, random)),
        ape(normal_values(ratio * width, 1.0f, random)),
        norm(normal_values(512, 1.0f, random)),
        index_values(normal_values(count * index_width, 1.0f, random)),
        index_gates(normal_values(count * index_width, 2.0f, random)),
        index_ape(normal_values(ratio * index_width, 1.0f, random)),
        index_norm(normal_values(128, 1.0f, random)),
        frequencies(cpu::rope_frequencies(ratio != 0)) {}
};

std::vector<uint16_t> decoded_halves(const uint8_t* packed) {
  float values[512];
  cpu::RowCodec(true).decode_attention(reinterpret_cast<const std::byte*>(packed), values);
  std::vector<uint16_t> halves(512);
  for (size_t i = 0; i < 512; ++i) halves[i] = format::f32_to_f16(values[i]);
  return halves;
}

// A sequence on the device that takes the layer's tokens chunk by chunk.
class DeviceLayerCache {
 public:
  explicit DeviceLayerCache(const Layer& layer)
      : layer_(layer),
        ring_(size_t{ring_slots} * attention_row_bytes),
        caches_(1),
        frequencies_(std::vector<float>(layer.frequencies.begin(), layer.frequencies.end())),
        q_norm_(layer.q_norm),
        kv_norm_(layer.kv_norm),
        ape_(layer.ape),
        norm_(layer.norm),
        index_ape_(layer.index_ape),
        index_norm_(layer.index_norm) {
    const auto state = [this](size_t width, float fill) {
      const auto rows =
          static_cast<size_t>(compressor_slots(layer_.ratio == 0 ? 4 : static_cast<int>(layer_.ratio)));
      states_.emplace_back(std::vector<float>(rows * width, fill));
      return states_.back().data();
    };
    const auto pages = [this](size_t rows, size_t row_bytes) {
      std::vector<uint8_t*> addresses;
      for (size_t page = 0; page < rows / rows_per_page + 1; ++page) {
        pages_.emplace_back(rows_per_page * row_bytes);
        addresses.push_back(pages_.back().data());
      }
      tables_.emplace_back(addresses);
      return tables_.back().data();
    };
    const float infinity = std::numeric_limits<float>::infinity();
    LayerCache cache;
    cache.ring = ring_.data();
    cache.values = state(layer.width, 0);
    cache.scores = state(layer.width, -infinity);
    cache.index_values = state(layer.index_width, 0);
    cache.index_scores = state(layer.index_width, -infinity);
    const size_t rows = layer.ratio == 0 ? 0 : layer.tokens / layer.ratio;
    cache.pages = pages(rows, attention_row_bytes);
    cache.index_pages = pages(rows, index_row_bytes);
    index_first_page_ = pages_.size() - (rows / rows_per_page + 1);
    require(cudaMemcpy(caches_.data(), &cache, sizeof cache, cudaMemcpyHostToDevice));
  }

  struct Rows {
    std::vector<uint16_t> attention, q_low;  // [older + tokens + compressed][512], [tokens][rank]
  };

  Rows take(size_t count) {
    const auto part = [&](const std::vector<float>& all, size_t width) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(position_ * width);
      return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(count * width));
    };
    const DeviceCopy<float> q_low(part(layer_.q_low, layer_.rank)), kv(part(layer_.kv, 512)),
        values(part(layer_.values, layer_.width)), gates(part(layer_.gates, layer_.width)),
        index_values(part(layer_.index_values, layer_.index_width)),
        index_gates(part(layer_.index_gates, layer_.index_width));
    const size_t compressed = layer_.ratio == 0 ? 0 : (position_ + count) / layer_.ratio;
    const DeviceCopy<uint16_t> rows((prefill_older_rows(position_) + count + compressed) * 512),
        q_half(count * layer_.rank);
    PrefillCaches u;
    u.cache = caches_.data();
    u.position = position_;
    u.tokens = static_cast<uint32_t>(count);
    u.ratio = layer_.ratio;
    u.frequencies = frequencies_.data();
    u.q_low = q_low.data();
    u.q_norm = q_norm_.data();
    u.q_rank = static_cast<uint32_t>(layer_.rank);
    u.q_low_half = reinterpret_cast<__half*>(q_half.data());
    u.kv = kv.data();
    u.kv_norm = kv_norm_.data();
    u.compressor = {values.data(), gates.data(), ape_.data(), norm_.data()};
    u.index_compressor = {index_values.data(), index_gates.data(), index_ape_.data(), index_norm_.data()};
    u.rows = reinterpret_cast<__half*>(rows.data());
    require(prefill_update_caches(u, nullptr));
    require(cudaDeviceSynchronize());
    position_ += count;
    return {rows.read(), q_half.read()};
  }

  size_t position() const { return position_; }
  std::vector<uint8_t> raw_row(size_t position) const {
    const auto all = ring_.read();
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(position % ring_slots * attention_row_bytes);
    return {at, at + attention_row_bytes};
  }
  std::vector<std::vector<uint8_t>> compressed_rows() const { return rows_of(0, attention_row_bytes); }
  std::vector<std::vector<uint8_t>> index_rows() const {
    return layer_.ratio == 4 ? rows_of(index_first_page_, index_row_bytes)
                             : std::vector<std::vector<uint8_t>>();
  }
  // values, scores, index values, index scores.
  std::vector<float> state(size_t which) const { return states_[which].read(); }

 private:
  std::vector<std::vector<uint8_t>> rows_of(size_t first_page, std::ptrdiff_t row_bytes) const {
    std::vector<std::vector<uint8_t>> rows;
    std::vector<uint8_t> page;
    const size_t count = layer_.ratio == 0 ? 0 : position_ / layer_.ratio;
    for (size_t r = 0; r < count; ++r) {
      if (r % rows_per_page == 0) page = pages_[first_page + r / rows_per_page].read();
      const auto at = page.begin() + static_cast<std::ptrdiff_t>(r % rows_per_page) * row_bytes;
      rows.emplace_back(at, at + row_bytes);
    }
    return rows;
  }

  const Layer& layer_;
  DeviceCopy<uint8_t> ring_;
  DeviceCopy<LayerCache> caches_;
  DeviceCopy<float> frequencies_, q_norm_, kv_norm_, ape_, norm_, index_ape_, index_norm_;
  std::deque<DeviceCopy<float>> states_;
  std::deque<DeviceCopy<uint8_t>> pages_;
  std::deque<DeviceCopy<uint8_t*>> tables_;
  size_t index_first_page_ = 0, position_ = 0;
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

void check_against_cpu(const Layer& layer, const DeviceLayerCache& device,
                       const DeviceLayerCache::Rows& rows) {
  const cpu::RowCodec codec(true);
  cpu::LayerState state(layer.ratio, codec);
  const cpu::CompressorParameters main{layer.ape.data(), layer.norm.data(), 512, &layer.frequencies};
  const cpu::CompressorParameters index{layer.index_ape.data(), layer.index_norm.data(), 128,
                                        &layer.frequencies};
  size_t bad = 0, bytes = 0;
  double worst_query = 0;
  for (size_t t = 0; t < layer.tokens; ++t) {
    std::vector<float> row(512), q(layer.rank);
    cpu::rms_norm(layer.kv.data() + t * 512, layer.kv_norm.data(), 512, row.data());
    cpu::rotate(row.data() + 448, cpu::rope_angles(t, layer.frequencies));
    std::vector<std::byte> packed(584);
    codec.encode_attention(row.data(), packed.data());
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
    if (layer.ratio != 0) {
      cpu::compress_token(state.compressor, main, codec, t, layer.values.data() + t * layer.width,
                          layer.gates.data() + t * layer.width, state.compressed);
    }
    if (layer.ratio == 4) {
      cpu::compress_token(state.index_compressor, index, codec, t,
                          layer.index_values.data() + t * layer.index_width,
                          layer.index_gates.data() + t * layer.index_width, state.index_rows);
    }
  }
  EXPECT_LT(worst_query, 6e-4);  // half a step of F16
  const auto compressed = device.compressed_rows(), index_rows = device.index_rows();
  ASSERT_EQ(compressed.size(), state.compressed.size());
  ASSERT_EQ(index_rows.size(), state.index_rows.size());
  for (size_t c = 0; c < compressed.size(); ++c) {
    bad += differing_attention(compressed[c], state.compressed[c]);
    bytes += 584;
    const auto again = decoded_halves(compressed[c].data());
    ASSERT_TRUE(std::equal(again.begin(), again.end(),
                           rows.attention.begin() + static_cast<std::ptrdiff_t>((layer.tokens + c) * 512)))
        << "compressed row " << c;
  }
  for (size_t c = 0; c < index_rows.size(); ++c) {
    bad += differing(index_rows[c], state.index_rows[c]);
    bytes += 68;
  }
  EXPECT_LT(static_cast<double>(bad) / static_cast<double>(bytes), 3e-4) << bad << " of " << bytes;
  printf("ratio %u, %zu tokens: %zu of %zu cached values differ from the CPU's\n", layer.ratio, layer.tokens,
         bad, bytes);

  // What is kept are copies and one sum: the same bits.
  const auto check_state = [&](cpu::CompressorState& expected, size_t which, size_t width) {
    const auto values = device.state(which), scores = device.state(which + 1);
    const auto tokens = static_cast<int64_t>(layer.tokens);
    const int64_t slots = compressor_slots(static_cast<int>(layer.ratio));
    for (int64_t t = std::max<int64_t>(0, tokens - slots); t < tokens; ++t) {
      const int64_t row = t % slots;
      const auto same = [&](const std::vector<float>& got, const float* cpu_row) {
        return std::memcmp(got.data() + static_cast<size_t>(row) * width, cpu_row, width * sizeof(float)) ==
               0;
      };
      EXPECT_TRUE(same(values, expected.value_row(t))) << "token " << t << " of " << tokens;
      EXPECT_TRUE(same(scores, expected.score_row(t))) << "token " << t << " of " << tokens;
    }
  };
  if (layer.ratio != 0) check_state(state.compressor, 0, layer.width);
  if (layer.ratio == 4) check_state(state.index_compressor, 2, layer.index_width);
}

TEST_F(PrefillCachesTest, EqualTheCpu) {
  std::mt19937 random(1);
  for (const uint32_t ratio : {0u, 4u, 128u}) {
    for (const size_t tokens :
         {1ul,  2ul,   3ul,   4ul,   5ul,   6ul,   7ul,   8ul,   9ul,   63ul,  64ul,
          65ul, 127ul, 128ul, 129ul, 255ul, 256ul, 257ul, 511ul, 512ul, 513ul, 1030ul}) {
      const Layer layer(ratio, tokens, tokens % 2 == 0 ? 1024 : 160, random);
      DeviceLayerCache device(layer);
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
    DeviceLayerCache whole(layer);
    const auto all = whole.take(tokens);
    for (int order = 0; order < 4; ++order) {
      std::vector<size_t> cuts = lengths;
      if (order == 1) std::reverse(cuts.begin(), cuts.end());
      if (order > 1) std::shuffle(cuts.begin(), cuts.end(), random);
      DeviceLayerCache pieces(layer);
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
