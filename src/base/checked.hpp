// Arithmetic on sizes and counts that come from files: the result, or nothing when it does not fit.
#pragma once

#include <cstdint>
#include <optional>

namespace ds4 {

inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<uint64_t> checked_multiply(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// `value` rounded up to a multiple of `alignment`, which need not be a power of two. Precondition: alignment
/// > 0.
inline std::optional<uint64_t> checked_round_up(uint64_t value, uint64_t alignment) {
  const uint64_t remainder = value % alignment;
  if (remainder == 0) return value;
  return checked_add(value, alignment - remainder);
}

}  // namespace ds4
