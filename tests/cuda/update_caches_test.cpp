// What a decode pass leaves in the caches of a layer: against the CPU's functions, and the same bits however
// tokens of one or several sequences are put into passes.
#include "backend/cuda/state/update_caches.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "layer_caches.hpp"
#include "mixer_data.hpp"
#include "packed_rows.hpp"

namespace ds4::cuda {
namespace {

class UpdateCachesTest : public DeviceTest {};

// A sequence of the test, and what passes left for each of its tokens.
struct Sequence {
  const Layer& layer;
  uint64_t start;
  DeviceLayerCache cache;
  std::vector<float> q_low, q_scales;  // [tokens][rank], [tokens][rank / 32]
  std::vector<int8_t> q_codes;

  Sequence(const Layer& of, uint64_t first) : layer(of), start(first), cache(of, first) {}
  size_t left() const { return layer.tokens - cache.taken(); }
};

// `count` next tokens of a sequence.
struct Piece {
  Sequence* sequence;
  size_t count;
};

// Runs passes. Beside its other work a pass ends the mixing of a sublayer, of the same streams every time.
class Passes {
 public:
  explicit Passes(const Layer& layer, std::mt19937& random)
      : layer_(layer),
        parameters_(layer),
        mixer_(TensorType::f16, 24, width, random),
        streams_(normal_values(size_t{max_rows} * 4 * width, 1.0f, random)),
        device_streams_(streams_),
        partial_(size_t{max_rows} * (width / mix_slice_columns) * mix_values) {
    const DeviceMixer mixer = mixer_.device();
    require(leave_and_mix(buffers(nullptr), nullptr, &mixer, max_rows, nullptr));
    require(cudaDeviceSynchronize());
  }

  void run(const std::vector<Piece>& pieces) {
    std::vector<RowInfo> infos;
    std::vector<float> q_low, kv, values, gates, index_values, index_gates;
    const auto add = [](std::vector<float>& all, const std::vector<float>& more) {
      all.insert(all.end(), more.begin(), more.end());
    };
    for (const auto& [sequence, count] : pieces) {
      const Layer& layer = sequence->layer;
      const size_t begin = sequence->cache.taken();
      for (size_t i = 0; i < count; ++i) {
        infos.push_back({0,
                         static_cast<uint32_t>(i),
                         sequence->cache.position() + i,
                         static_cast<uint32_t>(count),
                         0,
                         sequence->cache.layers(),
                         {}});
      }
      add(q_low, part_of(layer.q_low, layer.rank, begin, count));
      add(kv, part_of(layer.kv, 512, begin, count));
      add(values, part_of(layer.values, layer.width, begin, count));
      add(gates, part_of(layer.gates, layer.width, begin, count));
      add(index_values, part_of(layer.index_values, layer.index_width, begin, count));
      add(index_gates, part_of(layer.index_gates, layer.index_width, begin, count));
    }
    const size_t rows = infos.size(), rank = layer_.rank;
    const DeviceCopy<RowInfo> device_rows(infos);
    const DeviceCopy<float> device_q(q_low), device_kv(kv), device_values(values), device_gates(gates),
        device_index_values(index_values), device_index_gates(index_gates), scales(rows * rank / 32),
        weights(rows * 20);
    const DeviceCopy<int8_t> codes(rows * rank);
    CacheUpdate u;
    u.rows = device_rows.data();
    u.layer = layer_number;
    u.ratio = layer_.ratio;
    u.frequencies = parameters_.all_frequencies.data();
    u.q_low = device_q.data();
    u.q_codes = codes.data();
    u.q_scales = scales.data();
    u.q_norm = parameters_.q_norm.data();
    u.rank = static_cast<int>(rank);
    u.kv = device_kv.data();
    u.kv_norm = parameters_.kv_norm.data();
    u.compressor = {device_values.data(), device_gates.data(), parameters_.ape.data(),
                    parameters_.norm.data()};
    u.index_compressor = {device_index_values.data(), device_index_gates.data(), parameters_.index_ape.data(),
                          parameters_.index_norm.data()};
    u.mix = MixFinish(buffers(weights.data()), mixer_.device());
    require(update_caches(u, static_cast<int>(rows), nullptr));
    require(cudaDeviceSynchronize());
    const auto q = device_q.read(), q_scales = scales.read();
    const auto q_codes = codes.read();
    size_t row = 0;
    for (const auto& [sequence, count] : pieces) {
      add(sequence->q_low, part_of(q, rank, row, count));
      add(sequence->q_scales, part_of(q_scales, rank / 32, row, count));
      const auto first = q_codes.begin() + static_cast<std::ptrdiff_t>(row * rank);
      sequence->q_codes.insert(sequence->q_codes.end(), first,
                               first + static_cast<std::ptrdiff_t>(count * rank));
      sequence->cache.advance(count);
      row += count;
    }
    keep_mixing(weights.read());
  }

  // post and comb of the most rows that a pass had.
  void expect_mixing() const {
    const std::vector<double> streams = wide(streams_);
    for (size_t row = 0; row < mixing_.size() / 20; ++row) {
      const std::vector<double> expected = mixer_.weights(streams.data() + row * 4 * width);
      for (size_t k = 0; k < 20; ++k) {
        EXPECT_NEAR(mixing_[row * 20 + k], expected[4 + k], mixing_weight_bound) << "row " << row;
      }
    }
  }

 private:
  static constexpr uint32_t width = 256;  // of the streams

  StreamBuffers buffers(float* weights) const {
    StreamBuffers b;
    b.streams = device_streams_.data();
    b.partial = partial_.data();
    b.weights = weights;
    b.width = static_cast<int>(width);
    return b;
  }
  void keep_mixing(const std::vector<float>& weights) {
    const size_t both = std::min(weights.size(), mixing_.size());
    EXPECT_EQ(std::memcmp(weights.data(), mixing_.data(), both * sizeof(float)), 0) << "mixing weights";
    if (weights.size() > mixing_.size()) mixing_ = weights;
  }

  const Layer& layer_;
  DeviceParameters parameters_;
  TestMixer mixer_;
  std::vector<float> streams_, mixing_;
  DeviceCopy<float> device_streams_, partial_;
};

// Norm of the query rank: x / rms * weight, within 11 roundings (a sum of squares is at most 13 deep, halved
// by the root); the int8 form is that of the F32 values, bit for bit.
void check_queries(const Sequence& s) {
  const size_t rank = s.layer.rank, tokens = s.layer.tokens;
  const std::vector<double> norm = wide(s.layer.q_norm), q = wide(s.layer.q_low);
  std::vector<double> expected(rank);
  size_t wrong = 0;
  for (size_t t = 0; t < tokens; ++t) {
    cpu::reference::rms_norm(q.data() + t * rank, norm.data(), rank, expected.data());
    for (size_t i = 0; i < rank; ++i) {
      const double error = std::abs(expected[i] - s.q_low[t * rank + i]);
      wrong += !(error <= 12 * f32_rounding * std::abs(expected[i]));
    }
  }
  EXPECT_EQ(wrong, 0u) << "values of the query rank";
  std::vector<int8_t> codes(tokens * rank);
  std::vector<float> scales(tokens * rank / 32);
  format::quantize_activations_q8_0(s.q_low.data(), codes.size(), codes.data(), scales.data());
  EXPECT_EQ(codes, s.q_codes);
  EXPECT_EQ(scales, s.q_scales);
}

// Rows equal the CPU's but for codes whose rounding hangs on the order of additions: of the codes of all rows
// no more than 3 in 10,000.
void check_rows(const Sequence& s, RowDifference& total) {
  const auto add = [&](const RowDifference& d, const char* what, size_t row) {
    EXPECT_EQ(d.wrong, 0u) << what << " row " << row << " after token " << s.start;
    total.codes += d.codes;
    total.differing += d.differing;
  };
  CpuLayerCache expected(s.layer, s.start);
  const size_t tokens = s.layer.tokens;
  const std::vector<uint8_t> ring = s.cache.ring();
  for (size_t t = 0; t < tokens; ++t) {
    expected.take_token();
    if (t + ring_slots < tokens) continue;
    const uint8_t* slot = ring.data() + (s.start + t) % ring_slots * attention_row_bytes;
    add(compare_attention_rows(slot, expected.raw_row(t).data()), "raw", t);
  }
  const auto compressed = s.cache.compressed_rows(), index = s.cache.index_rows();
  ASSERT_EQ(compressed.size(), expected.state.compressed.size());
  ASSERT_EQ(index.size(), expected.state.index_rows.size());
  for (size_t r = 0; r < compressed.size(); ++r) {
    add(compare_attention_rows(compressed[r].data(), expected.state.compressed[r]), "compressed", r);
  }
  for (size_t r = 0; r < index.size(); ++r) {
    add(compare_index_rows(index[r].data(), expected.state.index_rows[r]), "index", r);
  }
  expected.expect_states_of(s.cache);
}

void expect_same_bits(const Sequence& a, const Sequence& b) {
  SCOPED_TRACE(a.start);
  EXPECT_EQ(a.q_low, b.q_low);
  EXPECT_EQ(a.q_codes, b.q_codes);
  EXPECT_EQ(a.q_scales, b.q_scales);
  EXPECT_TRUE(a.cache.ring() == b.cache.ring()) << "raw rows";
  EXPECT_TRUE(a.cache.compressed_rows() == b.cache.compressed_rows()) << "compressed rows";
  EXPECT_TRUE(a.cache.index_rows() == b.cache.index_rows()) << "index rows";
  CpuLayerCache expected(a.layer, a.start);
  for (size_t t = 0; t < a.layer.tokens; ++t) expected.take_token();
  expected.expect_states_of(a.cache);
  expected.expect_states_of(b.cache);
}

// Sequences that begin before, at and after the edges of windows of 4 and 128, of a page of rows (256 and
// 8192 tokens) and of the ring, and one far out.
struct Group {
  std::vector<Layer> layers;
  std::vector<uint64_t> starts;

  Group(uint32_t ratio, size_t rank, std::mt19937& random) {
    const std::pair<uint64_t, size_t> sequences[] = {
        {0, 300},    {1, 12},    {2, 140},   {125, 9},   {250, 17},
        {8185, 150}, {127, 130}, {128, 128}, {252, 264}, {(1 << 20) - 40, 40}};
    layers.reserve(std::size(sequences));  // sequences refer to them
    for (const auto& [start, tokens] : sequences) {
      starts.push_back(start);
      layers.push_back(layers.empty() ? Layer(ratio, tokens, rank, random)
                                      : layers.front().with_other_tokens(tokens, random));
    }
  }
  std::vector<std::unique_ptr<Sequence>> sequences() const {
    std::vector<std::unique_ptr<Sequence>> all;
    for (size_t i = 0; i < layers.size(); ++i) {
      all.push_back(std::make_unique<Sequence>(layers[i], starts[i]));
    }
    return all;
  }
};

void take_one_by_one(Passes& passes, Sequence& sequence) {
  while (sequence.left() > 0) passes.run({{&sequence, 1}});
}

TEST_F(UpdateCachesTest, EqualTheCpu) {
  std::mt19937 random(1);
  for (const uint32_t ratio : {0u, 4u, 128u}) {
    SCOPED_TRACE("ratio " + std::to_string(ratio));
    const Group group(ratio, ratio == 4 ? 1536 : 128, random);
    Passes passes(group.layers.front(), random);
    RowDifference total;
    for (const auto& sequence : group.sequences()) {
      take_one_by_one(passes, *sequence);
      check_queries(*sequence);
      check_rows(*sequence, total);
    }
    printf("ratio %u: %zu of %zu codes differ from the CPU's\n", ratio, total.differing, total.codes);
    EXPECT_LT(static_cast<double>(total.differing), 3e-4 * static_cast<double>(total.codes));
  }
}

// One token of each of up to 16 sequences, as a batch of sessions has it.
TEST_F(UpdateCachesTest, SequencesTogether) {
  std::mt19937 random(2);
  for (const uint32_t ratio : {0u, 4u, 128u}) {
    SCOPED_TRACE("ratio " + std::to_string(ratio));
    const Group group(ratio, 96, random);
    Passes passes(group.layers.front(), random);
    const auto alone = group.sequences(), together = group.sequences();
    for (const auto& sequence : alone) take_one_by_one(passes, *sequence);
    while (true) {
      std::vector<Piece> pieces;
      for (const auto& sequence : together) {
        if (sequence->left() > 0) pieces.push_back({sequence.get(), 1});
      }
      if (pieces.empty()) break;
      std::shuffle(pieces.begin(), pieces.end(), random);
      passes.run(pieces);
    }
    for (size_t i = 0; i < alone.size(); ++i) expect_same_bits(*together[i], *alone[i]);
    passes.expect_mixing();
  }
}

// Several tokens of a sequence, as the check of drafted tokens and the end of a prompt have it, alone and
// beside other sequences: every length up to 16, from every place of a window.
TEST_F(UpdateCachesTest, SeveralTokensOfASequence) {
  std::mt19937 random(3);
  for (const uint32_t ratio : {0u, 4u, 128u}) {
    SCOPED_TRACE("ratio " + std::to_string(ratio));
    const Group group(ratio, 96, random);
    Passes passes(group.layers.front(), random);
    const auto single = group.sequences(), pieces = group.sequences(), together = group.sequences();
    for (const auto& sequence : single) take_one_by_one(passes, *sequence);
    size_t length = 0;
    for (const auto& sequence : pieces) {
      while (sequence->left() > 0) {
        length = length % max_rows + 1;
        passes.run({{sequence.get(), std::min(length, sequence->left())}});
      }
    }
    while (true) {
      std::vector<Piece> pass;
      size_t room = max_rows;
      std::vector<size_t> order(together.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t i : order) {
        const size_t count = std::min({together[i]->left(), room, size_t{1 + random() % 7}});
        if (count > 0) pass.push_back({together[i].get(), count});
        room -= count;
      }
      if (pass.empty()) break;
      passes.run(pass);
    }
    for (size_t i = 0; i < single.size(); ++i) {
      expect_same_bits(*pieces[i], *single[i]);
      expect_same_bits(*together[i], *single[i]);
    }
    passes.expect_mixing();
  }
}

}  // namespace
}  // namespace ds4::cuda
