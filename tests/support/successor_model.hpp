// A model made by hand that writes a given text, cut into tokens in a given way, whatever it is asked.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ds4/error.hpp"

namespace ds4::testing {

/// The most pieces of a text.
inline constexpr size_t most_successor_pieces = 236;

/// A tiny model whose layers add nothing to the streams and whose output names, for each token, the one that
/// follows it: after <think> the pieces of `reasoning`, then </think>, then those of `answer`, then EOS. Each
/// piece is a token of its own and may hold any bytes, also a part of a character. No two may be equal. With
/// pieces in `infill`, the vocabulary has the tokens for it, and they follow the last of those, then EOS.
Result<void> write_successor_model(const std::string& path, const std::vector<std::string>& reasoning,
                                   const std::vector<std::string>& answer,
                                   const std::vector<std::string>& infill = {});

}  // namespace ds4::testing
