#include "store/chain.hpp"

#include <algorithm>
#include <bit>

namespace ds4::store {
namespace {

// Files and hashes hold tokens as the machine does.
static_assert(sizeof(Token) == 4 && std::endian::native == std::endian::little);

}  // namespace

Chain::Chain(const Hash128& fingerprint, size_t block_tokens)
    : block_tokens_(block_tokens), hashes_{start(fingerprint, block_tokens)} {}

Hash128 Chain::start(const Hash128& fingerprint, size_t block_tokens) {
  Hasher hasher;
  hasher.add(fingerprint);
  hasher.add_u64(block_tokens);
  return hasher.digest();
}

Hash128 Chain::next(const Hash128& before, std::span<const Token> block) {
  Hasher hasher;
  hasher.add(before);
  hasher.add(std::as_bytes(block));
  return hasher.digest();
}

Hash128 Chain::key_of(const Hash128& base, std::span<const Token> tail, uint64_t position) {
  Hasher hasher;
  hasher.add(base);
  hasher.add(std::as_bytes(tail));
  hasher.add_u64(position);
  return hasher.digest();
}

void Chain::append(std::span<const Token> tokens) {
  while (!tokens.empty()) {
    const size_t count = std::min(tokens.size(), block_tokens_ - tail_.size());
    tail_.insert(tail_.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count));
    tokens = tokens.subspan(count);
    if (tail_.size() < block_tokens_) return;
    hashes_.push_back(next(hashes_.back(), tail_));
    tail_.clear();
  }
}

}  // namespace ds4::store
