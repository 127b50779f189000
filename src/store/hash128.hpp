// XXH3-128 values: names of files, keys of entries, checksums.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace ds4::store {

/// In canonical byte order, so that it is the same in files of all machines.
struct Hash128 {
  std::array<uint8_t, 16> bytes{};

  auto operator<=>(const Hash128&) const = default;
  std::string hex() const;  // 32 digits, lower case
  static std::optional<Hash128> from_hex(std::string_view text);
  static std::optional<Hash128> from_bytes(std::span<const std::byte> bytes);
};

Hash128 hash_of(std::span<const std::byte> bytes);

/// The hash of bytes that come in pieces.
class Hasher {
 public:
  Hasher();
  Hasher(const Hasher& other);
  Hasher(Hasher&&) noexcept = default;
  Hasher& operator=(const Hasher&) = delete;
  Hasher& operator=(Hasher&&) noexcept = default;
  ~Hasher() = default;

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  void add(const Hash128& hash) { add(std::as_bytes(std::span(hash.bytes))); }
  void add_u64(uint64_t value);  // as eight bytes, little-endian
  /// Of everything so far; more may be added.
  Hash128 digest() const;
  void reset();

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

/// For unordered containers: the bytes are a hash already.
struct HashOfHash128 {
  size_t operator()(const Hash128& hash) const {
    size_t value = 0;
    std::memcpy(&value, hash.bytes.data(), sizeof(value));
    return value;
  }
};

}  // namespace ds4::store
