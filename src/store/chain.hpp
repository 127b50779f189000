// The names of beginnings of token sequences: one hash per block of a sequence, each built on the one before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ds4/token.hpp"
#include "store/hash128.hpp"

namespace ds4::store {

/// h_0 = H(fingerprint, tokens per block); h_(b+1) = H(h_b, tokens of block b as i32). Two sequences have the
/// same hash b if and only if (to 2^-128) they have the same first b blocks and come from the same model.
class Chain {
 public:
  Chain(const Hash128& fingerprint, size_t block_tokens);

  /// Follows the tokens that come after those so far; whole blocks are hashed.
  void append(std::span<const Token> tokens);

  size_t blocks() const { return hashes_.size() - 1; }
  /// After `block` blocks; block <= blocks().
  const Hash128& hash(size_t block) const { return hashes_[block]; }
  std::span<const Token> tail() const { return tail_; }
  uint64_t position() const { return blocks() * block_tokens_ + tail_.size(); }
  /// The key of the state after all tokens so far.
  Hash128 key() const { return key_of(hashes_.back(), tail_, position()); }

  static Hash128 start(const Hash128& fingerprint, size_t block_tokens);
  static Hash128 next(const Hash128& before, std::span<const Token> block);
  /// H(h_(position / block), tokens behind it, position).
  static Hash128 key_of(const Hash128& base, std::span<const Token> tail, uint64_t position);

 private:
  size_t block_tokens_;
  std::vector<Hash128> hashes_;
  std::vector<Token> tail_;
};

}  // namespace ds4::store
