// The character classes that the pre-tokeniser distinguishes.
#pragma once

#include <cstdint>

namespace ds4::text {

/// Classes are disjoint; the first that applies, in this order, is the class of a character.
enum class CharacterClass : uint8_t {
  number,       // general categories Nd, Nl, No
  word,         // letters and marks (L*, M*)
  punctuation,  // punctuation and symbols (P*, S*)
  newline,      // CR, LF
  space,        // the rest of the White_Space property
  other,        // control and format characters, unassigned code points, invalid bytes
};

/// `code_point` may be any value; everything above U+10FFFF is `other`.
CharacterClass character_class(char32_t code_point);

/// The ideographs and kana that are cut apart from everything else. The ranges hold a few marks and
/// punctuation characters, and unassigned ones.
constexpr bool is_cjk(char32_t code_point) {
  return (code_point >= 0x4E00 && code_point <= 0x9FA5) || (code_point >= 0x3040 && code_point <= 0x30FF);
}

}  // namespace ds4::text
