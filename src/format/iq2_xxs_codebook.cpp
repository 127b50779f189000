#include "format/iq2_xxs_codebook.hpp"

#include <algorithm>

#include "format/iq2_xxs_tables.hpp"

namespace ds4::format {
namespace {

using Levels = std::array<int, 8>;

Levels grid_levels(uint64_t entry) {
  Levels levels{};
  for (size_t i = 0; i < 8; ++i) {
    const uint64_t value = entry >> (8 * i) & 255;
    levels[i] = value == 8 ? 0 : value == 25 ? 1 : 2;
  }
  return levels;
}

}  // namespace

const Iq2XxsCodebook& Iq2XxsCodebook::instance() {
  static const Iq2XxsCodebook codebook;
  return codebook;
}

Iq2XxsCodebook::Iq2XxsCodebook() {
  std::array<Levels, 256> grid{};
  std::array<uint16_t, 256> packed{};
  for (size_t entry = 0; entry < 256; ++entry) {
    grid[entry] = grid_levels(kIq2XxsGrid[entry]);
    size_t octet = 0;
    for (size_t i = 8; i-- > 0;) {
      octet = 3 * octet + static_cast<size_t>(grid[entry][i]);
      packed[entry] = static_cast<uint16_t>(packed[entry] | grid[entry][i] << (2 * i));
    }
    places_[octet].index = static_cast<int16_t>(entry);
  }
  for (size_t octet = 0; octet < kOctets; ++octet) {
    if (places_[octet].index >= 0) continue;
    Levels wanted{};
    for (size_t i = 0, rest = octet; i < 8; ++i, rest /= 3) wanted[i] = static_cast<int>(rest % 3);
    std::array<int, 256> distances{};
    for (size_t entry = 0; entry < 256; ++entry) {
      for (size_t i = 0; i < 8; ++i) {
        const int difference = grid[entry][i] - wanted[i];
        distances[entry] += difference * difference;
      }
    }
    const int nearest = *std::min_element(distances.begin(), distances.end());
    int second = distances[0] > nearest ? distances[0] : 1 << 20;
    for (const int distance : distances) {
      if (distance > nearest) second = std::min(second, distance);
    }
    places_[octet].first = static_cast<uint32_t>(levels_.size());
    for (const int distance : {nearest, second}) {
      for (size_t entry = 0; entry < 256; ++entry) {
        if (distances[entry] == distance) levels_.push_back(packed[entry]);
      }
    }
    const uint16_t first = levels_[places_[octet].first];
    while ((levels_.size() - places_[octet].first) % kPadding != 0) levels_.push_back(first);
    places_[octet].count = static_cast<uint16_t>(levels_.size() - places_[octet].first);
  }
}

}  // namespace ds4::format
