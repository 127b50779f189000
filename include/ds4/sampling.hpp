// Choosing the next token from logits (docs/sampling.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ds4/token.hpp"

namespace ds4 {

struct SamplingParams {
  float temperature = 1.0f;  // <= 0: the most likely token
  int top_k = 0;             // <= 0: off; at most 1024
  float top_p = 1.0f;        // outside (0, 1]: off
  float min_p = 0.05f;       // keep tokens at least this times as likely as the best one
};

/// xorshift64*; the same numbers from the same seed everywhere.
class Rng {
 public:
  explicit Rng(uint64_t seed = 0) : state_(seed) {}
  uint64_t next();
  float uniform();  // [0, 1), 24 bits
  uint64_t state() const { return state_; }

 private:
  uint64_t state_;
};

/// Draws a token. Consumes one random number, none when greedy. Non-finite logits are never chosen unless
/// there is nothing else (then the result is 0).
Token sample(std::span<const float> logits, const SamplingParams& params, Rng& rng);
/// The first index of the largest finite logit; 0 if there is none.
Token argmax(std::span<const float> logits);

struct TokenLogprob {
  Token token = -1;
  float logit = 0;
  float logprob = 0;
};
/// The `k` most likely tokens, best first, ties by lower id; log-probabilities over the whole vocabulary.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, size_t k);
/// Log-probability of one token; -infinity if it is outside the vocabulary or not finite.
float token_logprob(std::span<const float> logits, Token token);

}  // namespace ds4
