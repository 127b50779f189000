// tokenizer.json and tokenizer_config.json of a checkpoint folder, in the form GGUF stores them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ds4/error.hpp"

namespace ds4::quantize {

/// Values of tokenizer.ggml.token_type.
enum class TokenType : int32_t { normal = 1, control = 3, user_defined = 4, unused = 5 };

struct CheckpointTokenizer {
  std::vector<std::string> tokens;  // by id, in the GPT-2 byte alphabet
  std::vector<int32_t> types;       // by id, TokenType
  std::vector<std::string> merges;  // by rank, "left right"
  std::optional<std::string> chat_template;
};

/// Reads the byte-level BPE tokenizer of `folder`. Ids that the files leave out become "[PADn]" of type
/// unused. The special tokens of the chat format must be there.
Result<CheckpointTokenizer> read_checkpoint_tokenizer(const std::string& folder, uint32_t vocabulary);

}  // namespace ds4::quantize
