// A short way to bring a text to an end that its grammar allows.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "grammar/automaton.hpp"
#include "grammar/stacks.hpp"

namespace ds4::grammar {

/// What to write from one of `configurations` to the end of the text: the fewest bytes, or where schemas ask
/// for several items or characters, nearly so. White space is written only where it must be. None if it takes
/// more than `most_bytes`, or more than some milliseconds to find.
std::optional<std::string> find_shortest_end(const Automaton& automaton, Stacks stacks,
                                             const std::vector<Configuration>& configurations,
                                             size_t most_bytes);

}  // namespace ds4::grammar
