// Whether a model says what was recorded (docs/official-vectors.md).
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ds4/engine.hpp"
#include "recorded_reply.hpp"

namespace ds4::vectors {

/// A case with what belongs to it.
struct Vector {
  RecordedCase recorded;
  std::string prompt;
  bool has_reply = false;  // whether there is a JSON file
  RecordedReply reply;
};

/// Reads FOLDER/official.vec and, for each case, FOLDER/prompts/FILE and FOLDER/official/ID.official.json,
/// which may be missing.
Result<std::vector<Vector>> read_vectors(const std::string& folder);

/// The prompt as the hosted model got it: no system text, no reasoning.
std::vector<Token> prompt_tokens(const Tokenizer& tokenizer, const std::string& prompt);

/// Tokens by their bytes.
class TokensByBytes {
 public:
  explicit TokensByBytes(const Tokenizer& tokenizer);
  /// -1 if no token has these bytes.
  Token find(const std::string& bytes) const;

 private:
  std::unordered_map<std::string, Token> tokens_;
};

/// How far a log-probability may be from the recorded one, and among how many of the likeliest tokens a
/// recorded one must be. The hosted model computes with other roundings than any file.
inline constexpr float logprob_tolerance = 4;
inline constexpr size_t local_top = 20;

struct CaseReport {
  size_t prompt_tokens = 0;
  size_t steps = 0, equal_steps = 0;                // whose likeliest token is the recorded one
  float largest_difference = 0;                     // of a log-probability
  size_t alternatives = 0, found_alternatives = 0;  // of those without a log-probability: among the likeliest
  std::vector<std::string> complaints;              // empty: passed
};

/// Evaluates the prompt, then the recorded tokens one by one. Errors are those of the engine.
Result<CaseReport> check_case(const Engine& engine, const TokensByBytes& tokens, const Vector& vector,
                              const SyncOptions& options);

}  // namespace ds4::vectors
