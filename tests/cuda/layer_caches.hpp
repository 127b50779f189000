// One layer's caches of a sequence on the device, filled from random projections, and the CPU's for
// comparison.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "backend/cpu/compressor.hpp"
#include "backend/cpu/rms_norm.hpp"
#include "backend/cuda/device_types.hpp"
#include "device_copy.hpp"
#include "format/f16.hpp"
#include "values.hpp"

namespace ds4::cuda {

/// The layer that the caches belong to; the one before it is not to be touched.
inline constexpr int layer_number = 1;

/// Projections of a sequence's tokens and the parameters of one layer.
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

  /// Another sequence's tokens in the same layer.
  Layer with_other_tokens(size_t count, std::mt19937& random) const {
    Layer other(ratio, count, rank, random);
    other.q_norm = q_norm;
    other.kv_norm = kv_norm;
    other.ape = ape;
    other.norm = norm;
    other.index_ape = index_ape;
    other.index_norm = index_norm;
    return other;
  }
};

/// Rows [begin, begin + count) of a matrix [rows][width].
inline std::vector<float> part_of(const std::vector<float>& all, size_t width, size_t begin, size_t count) {
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin * width);
  return {first, first + static_cast<std::ptrdiff_t>(count * width)};
}

/// The layer's parameters on the device.
struct DeviceParameters {
  DeviceCopy<float> frequencies;      // [32]: the layer's
  DeviceCopy<float> all_frequencies;  // [2][32]: without and with compression
  DeviceCopy<float> q_norm, kv_norm, ape, norm, index_ape, index_norm;

  explicit DeviceParameters(const Layer& layer)
      : frequencies(std::vector<float>(layer.frequencies.begin(), layer.frequencies.end())),
        all_frequencies(both_tables()),
        q_norm(layer.q_norm),
        kv_norm(layer.kv_norm),
        ape(layer.ape),
        norm(layer.norm),
        index_ape(layer.index_ape),
        index_norm(layer.index_norm) {}

 private:
  static std::vector<float> both_tables() {
    const auto plain = cpu::rope_frequencies(false), compressed = cpu::rope_frequencies(true);
    std::vector<float> tables(plain.begin(), plain.end());
    tables.insert(tables.end(), compressed.begin(), compressed.end());
    return tables;
  }
};

/// Caches on the device of a sequence whose tokens are those of `layer`, the first at position `start`, with
/// nothing known of what came before.
class DeviceLayerCache {
 public:
  explicit DeviceLayerCache(const Layer& layer, uint64_t start = 0)
      : ratio_(layer.ratio),
        start_(start),
        ring_(size_t{ring_slots} * attention_row_bytes),
        caches_(layer_number + 1) {
    const auto state = [this](size_t width, float fill) {
      const auto rows = static_cast<size_t>(compressor_slots(ratio_ == 0 ? 4 : static_cast<int>(ratio_)));
      states_.emplace_back(std::vector<float>(rows * width, fill));
      return states_.back().data();
    };
    const auto pages = [this](size_t end, size_t row_bytes) {
      std::vector<uint8_t*> addresses(first_row() / rows_per_page, nullptr);
      for (size_t page = addresses.size(); page <= end / rows_per_page; ++page) {
        pages_.emplace_back(rows_per_page * row_bytes);
        addresses.push_back(pages_.back().data());
      }
      tables_.emplace_back(addresses);
      return tables_.back().data();
    };
    const float infinity = std::numeric_limits<float>::infinity();
    const size_t end = ratio_ == 0 ? 0 : (start + layer.tokens) / ratio_;
    LayerCache cache;
    cache.ring = ring_.data();
    cache.values = state(layer.width, 0);
    cache.scores = state(layer.width, -infinity);
    cache.index_values = state(layer.index_width, 0);
    cache.index_scores = state(layer.index_width, -infinity);
    cache.pages = pages(end, attention_row_bytes);
    index_first_page_ = pages_.size();
    cache.index_pages = pages(end, index_row_bytes);
    require(cudaMemcpy(caches_.data() + layer_number, &cache, sizeof cache, cudaMemcpyHostToDevice));
  }

  const LayerCache* layers() const { return caches_.data(); }
  size_t taken() const { return taken_; }
  uint64_t position() const { return start_ + taken_; }
  /// After a call that appended `count` tokens.
  void advance(size_t count) { taken_ += count; }

  std::vector<uint8_t> ring() const { return ring_.read(); }
  std::vector<uint8_t> raw_row(uint64_t position) const {
    const auto all = ring_.read();
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(position % ring_slots * attention_row_bytes);
    return {at, at + attention_row_bytes};
  }
  /// Rows that the tokens so far completed.
  std::vector<std::vector<uint8_t>> compressed_rows() const { return rows_of(0, attention_row_bytes); }
  std::vector<std::vector<uint8_t>> index_rows() const {
    return ratio_ == 4 ? rows_of(index_first_page_, index_row_bytes) : std::vector<std::vector<uint8_t>>();
  }
  /// Values, scores, index values, index scores.
  std::vector<float> state(size_t which) const { return states_[which].read(); }

 private:
  size_t first_row() const { return ratio_ == 0 ? 0 : start_ / ratio_; }
  std::vector<std::vector<uint8_t>> rows_of(size_t first_page, std::ptrdiff_t row_bytes) const {
    std::vector<std::vector<uint8_t>> rows;
    std::vector<uint8_t> page;
    const size_t end = ratio_ == 0 ? 0 : position() / ratio_, unused_pages = first_row() / rows_per_page;
    for (size_t r = first_row(); r < end; ++r) {
      if (page.empty() || r % rows_per_page == 0) {
        page = pages_[first_page + r / rows_per_page - unused_pages].read();
      }
      const auto at = page.begin() + static_cast<std::ptrdiff_t>(r % rows_per_page) * row_bytes;
      rows.emplace_back(at, at + row_bytes);
    }
    return rows;
  }

  uint32_t ratio_;
  uint64_t start_;
  DeviceCopy<uint8_t> ring_;
  DeviceCopy<LayerCache> caches_;
  std::deque<DeviceCopy<float>> states_;
  std::deque<DeviceCopy<uint8_t>> pages_;
  std::deque<DeviceCopy<uint8_t*>> tables_;
  size_t index_first_page_ = 0, taken_ = 0;
};

/// The compressors' part of the caches as the CPU fills it, token by token.
class CpuLayerCache {
 public:
  explicit CpuLayerCache(const Layer& layer, uint64_t start = 0)
      : state(layer.ratio, cpu::RowCodec(true)), layer_(layer), start_(start) {}

  void take_token() {
    const size_t t = taken_++;
    const cpu::RowCodec codec(true);
    const cpu::CompressorParameters main{layer_.ape.data(), layer_.norm.data(), 512, &layer_.frequencies};
    const cpu::CompressorParameters index{layer_.index_ape.data(), layer_.index_norm.data(), 128,
                                          &layer_.frequencies};
    if (layer_.ratio != 0) {
      cpu::compress_token(state.compressor, main, codec, start_ + t, layer_.values.data() + t * layer_.width,
                          layer_.gates.data() + t * layer_.width, state.compressed);
    }
    if (layer_.ratio == 4) {
      cpu::compress_token(state.index_compressor, index, codec, start_ + t,
                          layer_.index_values.data() + t * layer_.index_width,
                          layer_.index_gates.data() + t * layer_.index_width, state.index_rows);
    }
  }
  /// Token t's row of the ring, packed.
  std::vector<std::byte> raw_row(size_t t) const {
    std::vector<float> row(512);
    cpu::rms_norm(layer_.kv.data() + t * 512, layer_.kv_norm.data(), 512, row.data());
    cpu::rotate(row.data() + 448, cpu::rope_angles(start_ + t, layer_.frequencies));
    std::vector<std::byte> packed(attention_row_bytes);
    cpu::RowCodec(true).encode_attention(row.data(), packed.data());
    return packed;
  }
  /// Checks that the device's compressor states hold the same bits, where they are in use: copies and one
  /// sum.
  void expect_states_of(const DeviceLayerCache& device) {
    if (layer_.ratio != 0) check_state(device, state.compressor, 0, layer_.width);
    if (layer_.ratio == 4) check_state(device, state.index_compressor, 2, layer_.index_width);
  }

  cpu::LayerState state;

 private:
  void check_state(const DeviceLayerCache& device, cpu::CompressorState& expected, size_t which,
                   size_t width) {
    const auto values = device.state(which), scores = device.state(which + 1);
    const auto begin = static_cast<int64_t>(start_), end = begin + static_cast<int64_t>(taken_);
    const int64_t slots = compressor_slots(static_cast<int>(layer_.ratio));
    for (int64_t t = std::max(begin, end - slots); t < end; ++t) {
      const int64_t row = t % slots;
      const auto same = [&](const std::vector<float>& got, const float* cpu_row) {
        return std::memcmp(got.data() + static_cast<size_t>(row) * width, cpu_row, width * sizeof(float)) ==
               0;
      };
      EXPECT_TRUE(same(values, expected.value_row(t))) << "values of token " << t << ", end " << end;
      EXPECT_TRUE(same(scores, expected.score_row(t))) << "scores of token " << t << ", end " << end;
    }
  }

  const Layer& layer_;
  uint64_t start_;
  size_t taken_ = 0;
};

}  // namespace ds4::cuda
