// The grid of IQ2_XXS for encoding: which octets of levels it holds, and the entries next to those it does
// not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ds4::format {

/// Octets are numbered by their levels in base 3: sum of level_i * 3^i with level 0, 1, 2 for 8, 25, 43.
class Iq2XxsCodebook {
 public:
  static constexpr size_t kOctets = 6561;
  static constexpr size_t kPadding = 16;          // lists are whole multiples of this
  static constexpr size_t kMostNeighbours = 256;  // all of the grid

  /// Built at the first call; safe from several threads.
  static const Iq2XxsCodebook& instance();

  /// Grid index of an octet, or -1.
  int index(size_t octet) const { return places_[octet].index; }
  /// For an octet that the grid does not hold: the entries at the two smallest distances, nearest first, each
  /// as its levels in two bits (element i at bits 2i, 2i+1). Padded with repetitions of the first.
  const uint16_t* neighbours(size_t octet) const { return levels_.data() + places_[octet].first; }
  size_t neighbour_count(size_t octet) const { return places_[octet].count; }  // with padding

 private:
  Iq2XxsCodebook();
  struct Place {
    int16_t index = -1;
    uint16_t count = 0;
    uint32_t first = 0;
  };
  std::array<Place, kOctets> places_;
  std::vector<uint16_t> levels_;
};

}  // namespace ds4::format
