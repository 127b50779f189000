// The character classes that the pre-tokeniser distinguishes.
#pragma once

#include <cstdint>

namespace ds4::text {

/// Classes are disjoint; the first that applies, in this order, is the class of a character.
enum class CharacterClass : uint8_t {
  number,       // general categories Nd, Nl, No
  cjk,          // U+4E00..U+9FA5 and U+3040..U+30FF (kana with the marks and punctuation among them)
  word,         // letters and marks (L*, M*)
  punctuation,  // punctuation and symbols (P*, S*)
  newline,      // CR, LF
  space,        // the rest of the White_Space property
  other,        // control and format characters, unassigned code points, invalid bytes
};

/// `code_point` may be any value; everything above U+10FFFF is `other`.
CharacterClass character_class(char32_t code_point);

}  // namespace ds4::text
