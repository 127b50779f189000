#include "random_sequences.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "format/f16.hpp"
#include "format/fp4_row.hpp"
#include "format/fp8_row.hpp"
#include "format/hadamard.hpp"

namespace ds4::cuda {
namespace {

// Packed rows of very different scale, as norms of different layers leave them.
std::vector<uint8_t> random_attention_rows(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<uint8_t> rows(count * attention_row_bytes);
  for (size_t r = 0; r < count; ++r) {
    const float spread = std::ldexp(1.0f, static_cast<int>(random() % 6) - 4);
    float values[512];
    for (float& x : values) x = spread * normal(random);
    format::Fp8Row packed;
    format::encode_fp8_row(values, packed);
    uint8_t* row = rows.data() + r * attention_row_bytes;
    std::memcpy(row, &packed, sizeof packed);
    for (size_t i = 0; i < 64; ++i) {
      const uint16_t half = format::f32_to_f16(values[448 + i]);
      std::memcpy(row + 456 + 2 * i, &half, 2);
    }
  }
  return rows;
}

std::vector<uint8_t> random_index_rows(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<uint8_t> rows(count * index_row_bytes);
  for (size_t r = 0; r < count; ++r) {
    float values[128];
    for (float& x : values) x = normal(random);
    format::Fp4Row packed;
    format::encode_fp4_row(values, packed);
    std::memcpy(rows.data() + r * index_row_bytes, &packed, sizeof packed);
  }
  return rows;
}

std::vector<float> decode_attention(const uint8_t* row) {
  std::vector<float> values(512);
  format::Fp8Row packed;
  std::memcpy(&packed, row, sizeof packed);
  format::decode_fp8_row(packed, values.data());
  for (size_t i = 0; i < 64; ++i) {
    uint16_t half;
    std::memcpy(&half, row + 456 + 2 * i, 2);
    values[448 + i] = format::f16_to_f32(half);
  }
  return values;
}

}  // namespace

RandomSequence::RandomSequence(uint64_t position, uint32_t ratio, std::mt19937& random)
    : position_(position),
      ring_(random_attention_rows(ring_slots, random)),
      compressed_(random_attention_rows(visible_rows(position, ratio), random)),
      index_(random_index_rows(ratio == 4 ? visible_rows(position, 4) : 0, random)),
      caches_(2) {
  LayerCache cache;
  device_.emplace_back(ring_);
  cache.ring = device_.back().data();
  // Pages are taken in descending order of the rows, so that nothing holds by lying next to each other.
  const auto upload = [&](const std::vector<uint8_t>& rows, size_t row_bytes) {
    const size_t page_bytes = rows_per_page * row_bytes;
    std::vector<uint8_t*> pages((rows.size() + page_bytes - 1) / page_bytes);
    for (size_t p = pages.size(); p-- > 0;) {
      std::vector<uint8_t> page(
          rows.begin() + static_cast<std::ptrdiff_t>(p * page_bytes),
          rows.begin() + static_cast<std::ptrdiff_t>(std::min(rows.size(), (p + 1) * page_bytes)));
      page.resize(page_bytes, 0xff);
      device_.emplace_back(page);
      pages[p] = device_.back().data();
    }
    tables_.emplace_back(pages);
    return tables_.back().data();
  };
  cache.pages = upload(compressed_, attention_row_bytes);
  cache.index_pages = upload(index_, index_row_bytes);
  require(cudaMemcpy(caches_.data() + 1, &cache, sizeof cache, cudaMemcpyHostToDevice));
}

std::vector<float> RandomSequence::raw_row(uint64_t position) const {
  return decode_attention(ring_.data() + position % ring_slots * attention_row_bytes);
}

std::vector<float> RandomSequence::compressed_row(size_t row) const {
  return decode_attention(compressed_.data() + row * attention_row_bytes);
}

std::vector<float> RandomSequence::index_row(size_t row) const {
  format::Fp4Row packed;
  std::memcpy(&packed, index_.data() + row * index_row_bytes, sizeof packed);
  std::vector<float> values(128);
  format::decode_fp4_row(packed, values.data());
  return values;
}

DeviceCopy<RowInfo> make_rows(const std::vector<PassRow>& rows) {
  std::vector<RowInfo> infos(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    infos[i].position = rows[i].position;
    infos[i].layers = rows[i].sequence->layers();
    infos[i].place = i > 0 && rows[i].sequence == rows[i - 1].sequence ? infos[i - 1].place + 1 : 0;
  }
  for (size_t i = rows.size(); i-- > 0;) {
    const bool last = i + 1 == rows.size() || rows[i].sequence != rows[i + 1].sequence;
    infos[i].rows_of_sequence = last ? infos[i].place + 1 : infos[i + 1].rows_of_sequence;
  }
  return DeviceCopy<RowInfo>(infos);
}

std::vector<float> random_values(size_t count, float spread, std::mt19937& random) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  return values;
}

std::vector<std::vector<float>> hard_scores(size_t visible, std::mt19937& random) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(),
                  infinity = std::numeric_limits<float>::infinity();
  std::vector<float> few(visible), zeros(visible), broken(visible), close(visible), falling(visible);
  for (size_t i = 0; i < visible; ++i) {
    few[i] = static_cast<float>(random() % 5) - 2.0f;
    zeros[i] = random() % 3 == 0 ? (random() % 2 == 0 ? 0.0f : -0.0f) : -1.0f;
    broken[i] = random() % 3 == 0    ? nan
                : random() % 50 == 0 ? infinity
                : random() % 3 == 0  ? -infinity
                                     : -3.0f;
    close[i] = std::nextafter(1.0f + static_cast<float>(random() % 64) * 0x1p-23f, 2.0f);
    falling[i] = -static_cast<float>(i);
  }
  return {random_values(visible, 1.0f, random),
          std::vector<float>(visible, -2.5f),
          std::vector<float>(visible, nan),
          few,
          zeros,
          broken,
          close,
          falling};
}

}  // namespace ds4::cuda
