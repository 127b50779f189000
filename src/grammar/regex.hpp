// The regular part of ECMAScript's regular expressions, as automata.
#pragma once

#include <optional>
#include <string_view>

#include "ds4/error.hpp"
#include "grammar/dfa.hpp"

namespace ds4::grammar {

/// The strings in which the pattern is found (anywhere, unless it is anchored). Look-around, word borders,
/// references back and properties of characters are errors; the message says what is not supported.
Result<Dfa> dfa_of_pattern(std::string_view pattern);

/// The strings of a named format of JSON Schema ("date", "uuid", ...); nothing for a name without rules here.
std::optional<Dfa> dfa_of_format(std::string_view name);

}  // namespace ds4::grammar
