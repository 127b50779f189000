// The fixed tables of IQ2_XXS (from GGML, see NOTICE).
#pragma once

#include <array>
#include <cstdint>

namespace ds4::format {

/// Grid entry i: eight levels, byte j (bits 8j..8j+7) for element j of an octet; each is 8, 25 or 43.
extern const std::array<uint64_t, 256> kIq2XxsGrid;
/// Sign pattern n: the low seven bits are n, bit 7 makes the number of set bits even.
extern const std::array<uint8_t, 128> kIq2XxsSigns;

}  // namespace ds4::format
