// Replies of the hosted model, token by token, as they were recorded: official.vec and its JSON files
// (docs/official-vectors.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"

namespace ds4::vectors {

/// A token by its bytes; ids never appear in the records.
struct RecordedToken {
  std::string bytes;
  float logprob = 0;
};

/// The API writes this, or less, where it has no log-probability.
inline constexpr float unavailable_logprob = -1000;

struct RecordedStep {
  std::string selected;
  std::vector<RecordedToken> top;
};

/// One `case` of official.vec.
struct RecordedCase {
  std::string id;
  uint64_t context = 0;     // tokens
  std::string prompt_file;  // without folders: it lies in the folder `prompts`
  std::vector<RecordedStep> steps;
};

/// One JSON file. `steps` also list tokens whose log-probability is unavailable.
struct RecordedReply {
  std::string id;
  std::string prompt;
  size_t prompt_tokens = 0;
  std::string content;
  std::vector<RecordedStep> steps;
};

inline constexpr size_t max_steps = 16;
inline constexpr size_t max_top = 32;
inline constexpr size_t max_token_bytes = 128;

/// The text of official.vec. `name` begins the error sentences.
Result<std::vector<RecordedCase>> parse_cases(std::string_view text, const std::string& name);
/// The text of a JSON file.
Result<RecordedReply> parse_reply(std::string_view text, const std::string& name);
/// Error unless both tell of the same prompt and the same reply.
Result<void> check_agreement(const RecordedCase& recorded, const RecordedReply& reply,
                             std::string_view prompt);

}  // namespace ds4::vectors
