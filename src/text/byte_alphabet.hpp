// The GPT-2 byte alphabet: every byte has a printable character that stands for it in vocabulary strings.
#pragma once

#include <array>
#include <cstdint>

namespace ds4::text {

/// Bytes that print as themselves in Latin-1 stand for themselves; the other 68 are numbered from U+0100
/// upwards in increasing order.
constexpr std::array<char32_t, 256> make_byte_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
    alphabet[byte] = printable ? byte : next++;
  }
  return alphabet;
}

inline constexpr std::array<char32_t, 256> kByteAlphabet = make_byte_alphabet();

/// The byte that a character stands for, or -1.
constexpr int byte_of_character(char32_t character) {
  if (character < 256 && kByteAlphabet[character] == character) return static_cast<int>(character);
  for (int byte = 0; byte < 256; ++byte) {
    if (kByteAlphabet[byte] == character) return byte;
  }
  return -1;
}

}  // namespace ds4::text
