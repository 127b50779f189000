// Cuts text into the pieces inside which BPE may merge (docs/tokenizer.md §3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/unicode_class.hpp"

namespace ds4::text {

/// Walks over a text piece by piece. The pieces, put together, are the text: nothing is dropped or changed.
/// Time is linear in the text. The text must outlive the walker.
class PreTokenizer {
 public:
  explicit PreTokenizer(std::string_view text) : text_(text) {}

  /// Moves to the next piece; false at the end of the text.
  bool next(std::string_view& piece);

 private:
  /// Text is first cut into runs of these; no rule looks across the border of a run.
  enum class Run : uint8_t { number, cjk, other };

  struct Character {
    CharacterClass kind = CharacterClass::other;
    Run run = Run::other;
    size_t end = 0;        // offset of the byte after it
    bool present = false;  // false at the end of the text, or of the run where one is given
  };

  Character at(size_t position) const;
  Character at(size_t position, Run run) const;

  size_t number_end(size_t begin) const;
  size_t end_while(size_t position, CharacterClass kind, Run run) const;
  size_t space_end(size_t begin) const;
  size_t unmatched_end(size_t begin, Run run) const;
  size_t piece_end(size_t begin) const;

  std::string_view text_;
  size_t position_ = 0;
};

}  // namespace ds4::text
