// What tests of sessions share.
#pragma once

#include <cstdint>
#include <vector>

#include "ds4/session.hpp"
#include "support/loaded_model.hpp"

namespace ds4::testing {

/// Of the 4096 of the bundled model.
inline std::vector<Token> random_tokens(size_t count, uint64_t seed) {
  std::vector<Token> tokens(count);
  for (Token& token : tokens) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    token = static_cast<Token>((seed >> 33) % 4096);
  }
  return tokens;
}

inline std::vector<float> logits_of(const Session& session) {
  const auto logits = must(session.logits());
  return {logits.begin(), logits.end()};
}

}  // namespace ds4::testing
