// Numbers as JSON writes them, by their bounds and divisors, as automata over digits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "grammar/dfa.hpp"

namespace ds4::grammar {

struct Bound {
  std::string decimal;  // "-12.5": no exponent
  bool exclusive = false;
};

struct NumberRules {
  bool integer = false;
  std::vector<Bound> least, most;  // all of them hold
  /// Integers only; at most kMostDivisor.
  std::optional<uint32_t> multiple_of;

  bool free() const { return least.empty() && most.empty() && !multiple_of; }
};

inline constexpr uint32_t kMostDivisor = 1000;

/// With bounds or a divisor, numbers are written without an exponent and zero without a sign.
std::optional<Dfa> dfa_of_numbers(const NumberRules& rules);

}  // namespace ds4::grammar
