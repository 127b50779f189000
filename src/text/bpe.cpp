#include "text/bpe.hpp"

#include <algorithm>
#include <queue>
#include <string>
#include <unordered_map>

#include "base/error.hpp"
#include "text/byte_alphabet.hpp"
#include "text/utf8.hpp"

namespace ds4::text {
namespace {

// Below this many symbols a scan over all pairs costs less than keeping a heap.
constexpr size_t kShortPieceSymbols = 64;
// Positions inside a piece are 32-bit; longer pieces are cut here.
constexpr size_t kLongestPieceBytes = size_t{1} << 30;
constexpr size_t kMostMerges = size_t{1} << 30;

uint64_t pair_key(uint32_t left, uint32_t right) {
  return uint64_t{left} << 32 | right;
}

/// Finaliser of MurmurHash3 (public domain): spreads all 64 bits.
uint64_t mix(uint64_t key) {
  key = (key ^ key >> 33) * 0xFF51AFD7ED558CCD;
  key = (key ^ key >> 33) * 0xC4CEB9FE1A85EC53;
  return key ^ key >> 33;
}

}  // namespace

/// Gives numbers to the strings that merges mention.
class BytePairMerges::Builder {
 public:
  Builder(BytePairMerges& merges, const FindToken& find_token) : merges_(merges), find_token_(find_token) {}

  Symbol symbol_of(std::string_view string) {
    const Token token = find_token_(string);
    if (token >= 0) return static_cast<Symbol>(token);
    const auto fresh = static_cast<Symbol>(merges_.vocabulary_size_ + merges_.extra_parts_.size());
    const auto [entry, inserted] = extra_.try_emplace(std::string(string), fresh);
    if (inserted) merges_.extra_parts_.emplace_back(fresh, fresh);
    return entry->second;
  }

  Symbol merged_symbol(std::string_view left_string, std::string_view right_string, Symbol left,
                       Symbol right) {
    const Symbol symbol = symbol_of(std::string(left_string).append(right_string));
    if (symbol >= merges_.vocabulary_size_) {
      merges_.extra_parts_[symbol - merges_.vocabulary_size_] = {left, right};
    }
    return symbol;
  }

 private:
  BytePairMerges& merges_;
  const FindToken& find_token_;
  std::unordered_map<std::string, Symbol> extra_;
};

Result<BytePairMerges> BytePairMerges::create(size_t vocabulary_size,
                                              std::span<const std::string_view> merges,
                                              const FindToken& find_token) {
  if (merges.size() > kMostMerges) return fail(ErrorCode::format, "{} merges are too many", merges.size());
  BytePairMerges result;
  result.vocabulary_size_ = vocabulary_size;
  size_t slots = 16;
  while (slots < merges.size() * 2) slots *= 2;
  result.slots_.resize(slots);
  result.merged_.reserve(merges.size());

  Builder builder(result, find_token);
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string character;
    append_utf8(character, kByteAlphabet[byte]);
    result.byte_symbols_[byte] = builder.symbol_of(character);
  }
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view line = merges[rank];
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos ||
        space == 0 || space + 1 == line.size()) {
      return fail(ErrorCode::format, "merge {} is not two symbols with one space between them", rank);
    }
    const std::string_view left_string = line.substr(0, space);
    const std::string_view right_string = line.substr(space + 1);
    const Symbol left = builder.symbol_of(left_string);
    const Symbol right = builder.symbol_of(right_string);
    result.merged_.push_back(builder.merged_symbol(left_string, right_string, left, right));
    result.insert(left, right, static_cast<Rank>(rank));
  }
  return result;
}

void BytePairMerges::insert(Symbol left, Symbol right, Rank rank) {
  const uint64_t key = pair_key(left, right);
  size_t i = mix(key) & (slots_.size() - 1);
  while (slots_[i].pair != UINT64_MAX && slots_[i].pair != key) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {key, rank};
}

BytePairMerges::Rank BytePairMerges::rank_of(Symbol left, Symbol right) const {
  const uint64_t key = pair_key(left, right);
  size_t i = mix(key) & (slots_.size() - 1);
  for (; slots_[i].pair != UINT64_MAX; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].pair == key) return slots_[i].rank;
  }
  return kNoMerge;
}

/// A symbol without a token is taken apart the way it was merged.
void BytePairMerges::emit(Symbol symbol, std::vector<Token>& tokens) const {
  if (symbol < vocabulary_size_) {
    tokens.push_back(static_cast<Token>(symbol));
    return;
  }
  std::vector<Symbol> pending{symbol};
  while (!pending.empty()) {
    const Symbol top = pending.back();
    pending.pop_back();
    if (top < vocabulary_size_) {
      tokens.push_back(static_cast<Token>(top));
      continue;
    }
    const auto [left, right] = extra_parts_[top - vocabulary_size_];
    if (left == top) continue;
    pending.push_back(right);
    pending.push_back(left);
  }
}

void BytePairMerges::encode_short(std::string_view piece, std::vector<Token>& tokens) const {
  std::array<Symbol, kShortPieceSymbols> symbols;
  std::array<Rank, kShortPieceSymbols> ranks;  // ranks[i]: of the pair (i, i + 1)
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) symbols[i] = byte_symbols_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_of(symbols[i], symbols[i + 1]);
  while (count > 1) {
    const auto lowest = std::min_element(ranks.begin(), ranks.begin() + count - 1);
    if (*lowest == kNoMerge) break;
    const size_t at = lowest - ranks.begin();
    symbols[at] = merged_[*lowest];
    std::copy(symbols.begin() + at + 2, symbols.begin() + count, symbols.begin() + at + 1);
    std::copy(ranks.begin() + at + 1, ranks.begin() + count - 1, ranks.begin() + at);
    --count;
    if (at + 1 < count) ranks[at] = rank_of(symbols[at], symbols[at + 1]);
    if (at > 0) ranks[at - 1] = rank_of(symbols[at - 1], symbols[at]);
  }
  for (size_t i = 0; i < count; ++i) emit(symbols[i], tokens);
}

/// A linked list of symbols and a heap of mergeable pairs, the lowest rank and then the leftmost first.
/// Entries of pairs that have changed since stay in the heap; `ranks` tells them apart, since a rank belongs
/// to one pair only.
void BytePairMerges::encode_long(std::string_view piece, std::vector<Token>& tokens) const {
  struct Node {
    Symbol symbol;
    Rank rank;  // of the pair (this, next)
    uint32_t previous;
    uint32_t next;
  };
  constexpr uint32_t kNone = UINT32_MAX;
  const auto count = static_cast<uint32_t>(piece.size());
  std::vector<Node> nodes(count);
  std::vector<uint64_t> candidates;  // rank << 32 | position
  for (uint32_t i = 0; i < count; ++i) {
    nodes[i] = {byte_symbols_[static_cast<unsigned char>(piece[i])], kNoMerge, i == 0 ? kNone : i - 1,
                i + 1 == count ? kNone : i + 1};
  }
  for (uint32_t i = 0; i + 1 < count; ++i) {
    nodes[i].rank = rank_of(nodes[i].symbol, nodes[i + 1].symbol);
    if (nodes[i].rank != kNoMerge) candidates.push_back(pair_key(nodes[i].rank, i));
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>(),
                                                                             std::move(candidates));
  const auto update_pair = [&](uint32_t position) {
    Node& node = nodes[position];
    node.rank = node.next == kNone ? kNoMerge : rank_of(node.symbol, nodes[node.next].symbol);
    if (node.rank != kNoMerge) queue.push(pair_key(node.rank, position));
  };
  while (!queue.empty()) {
    const uint64_t top = queue.top();
    queue.pop();
    const auto position = static_cast<uint32_t>(top);
    const auto rank = static_cast<Rank>(top >> 32);
    Node& node = nodes[position];
    if (node.rank != rank) continue;
    Node& absorbed = nodes[node.next];
    absorbed.rank = kNoMerge;
    node.symbol = merged_[rank];
    node.next = absorbed.next;
    if (node.next != kNone) nodes[node.next].previous = position;
    update_pair(position);
    if (node.previous != kNone) update_pair(node.previous);
  }
  for (uint32_t i = 0; i != kNone; i = nodes[i].next) emit(nodes[i].symbol, tokens);
}

void BytePairMerges::encode(std::string_view piece, std::vector<Token>& tokens) const {
  while (piece.size() > kLongestPieceBytes) {
    encode_long(piece.substr(0, kLongestPieceBytes), tokens);
    piece.remove_prefix(kLongestPieceBytes);
  }
  if (piece.size() <= kShortPieceSymbols) {
    encode_short(piece, tokens);
  } else {
    encode_long(piece, tokens);
  }
}

}  // namespace ds4::text
