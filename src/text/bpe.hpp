// Byte-pair merging over symbol numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/token.hpp"

namespace ds4::text {

/// Merge rules, immutable after creation. A symbol is a token id, or a number from the vocabulary size
/// upwards for a string that merges use but that has no token of its own.
class BytePairMerges {
 public:
  /// The id of a vocabulary string, or -1.
  using FindToken = std::function<Token(std::string_view)>;

  /// `merges[r]` is "LEFT RIGHT" with rank r; of equal pairs the last one counts. Error for a line of another
  /// form.
  static Result<BytePairMerges> create(size_t vocabulary_size, std::span<const std::string_view> merges,
                                       const FindToken& find_token);

  /// Appends the tokens of one piece. Bytes without a token are left out (the real vocabulary has all 256).
  void encode(std::string_view piece, std::vector<Token>& tokens) const;

 private:
  using Symbol = uint32_t;
  using Rank = uint32_t;
  static constexpr Rank kNoMerge = UINT32_MAX;

  class Builder;

  Rank rank_of(Symbol left, Symbol right) const;
  void insert(Symbol left, Symbol right, Rank rank);
  void encode_short(std::string_view piece, std::vector<Token>& tokens) const;
  void encode_long(std::string_view piece, std::vector<Token>& tokens) const;
  void emit(Symbol symbol, std::vector<Token>& tokens) const;

  struct Slot {
    uint64_t pair = UINT64_MAX;  // left << 32 | right; all ones = free
    Rank rank = 0;
  };

  size_t vocabulary_size_ = 0;
  std::array<Symbol, 256> byte_symbols_{};
  std::vector<Symbol> merged_;  // by rank
  std::vector<std::pair<Symbol, Symbol>>
      extra_parts_;          // of symbol vocabulary_size_ + i; equal to itself = one byte
  std::vector<Slot> slots_;  // open addressing, size a power of two
};

}  // namespace ds4::text
