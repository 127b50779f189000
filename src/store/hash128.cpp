#include "store/hash128.hpp"

#include <xxhash.h>

#include <algorithm>
#include <new>

namespace ds4::store {
namespace {

Hash128 canonical(XXH128_hash_t hash) {
  XXH128_canonical_t text;
  XXH128_canonicalFromHash(&text, hash);
  Hash128 result;
  std::copy(std::begin(text.digest), std::end(text.digest), result.bytes.begin());
  return result;
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string Hash128::hex() const {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

std::optional<Hash128> Hash128::from_hex(std::string_view text) {
  Hash128 hash;
  if (text.size() != 2 * hash.bytes.size()) return std::nullopt;
  for (size_t i = 0; i < hash.bytes.size(); ++i) {
    const int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    hash.bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return hash;
}

std::optional<Hash128> Hash128::from_bytes(std::span<const std::byte> bytes) {
  Hash128 hash;
  if (bytes.size() != hash.bytes.size()) return std::nullopt;
  std::memcpy(hash.bytes.data(), bytes.data(), bytes.size());
  return hash;
}

Hash128 hash_of(std::span<const std::byte> bytes) {
  return canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

Hasher::Hasher() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  reset();
}

Hasher::Hasher(const Hasher& other) : Hasher() {
  XXH3_copyState(state_.get(), other.state_.get());
}

void Hasher::reset() {
  XXH3_128bits_reset(state_.get());
}

void Hasher::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

void Hasher::add_u64(uint64_t value) {
  std::array<std::byte, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
  add(bytes);
}

Hash128 Hasher::digest() const {
  return canonical(XXH3_128bits_digest(state_.get()));
}

void Hasher::Free::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

}  // namespace ds4::store
