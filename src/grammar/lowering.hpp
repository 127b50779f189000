// Automata over characters become states over bytes: UTF-8, and inside JSON strings escape sequences.
#pragma once

#include <cstdint>
#include <string_view>

#include "grammar/automaton.hpp"
#include "grammar/dfa.hpp"

namespace ds4::grammar {

/// How the strings of a Dfa are written.
struct StringForm {
  enum class Escapes {
    none,    // as they are
    needed,  // as in a JSON string; only what must be escaped is, and in one way
    any,     // as in a JSON string, with any escape sequence for any character; leads back to the start
  };
  Escapes escapes = Escapes::none;
  /// What follows the string; if empty, the rule may end where the Dfa accepts.
  std::string_view terminator;
  /// Characters that the rule's counter lets through (an escape sequence is one).
  uint32_t least = 0, most = kUnlimited;
};

/// Adds states that read what `dfa` accepts and then the terminator, which leads to `end`. Returns the first.
/// Precondition: the Dfa is not empty.
uint32_t lower(AutomatonBuilder& builder, const Dfa& dfa, const StringForm& form, uint32_t end);

}  // namespace ds4::grammar
