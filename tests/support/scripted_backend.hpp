// A backend without a model: a function says which token follows a history. Drives everything above the seam
// with texts that are known in advance.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "ds4/engine.hpp"
#include "ds4/tokenizer.hpp"

namespace ds4::testing {

/// The token to follow a history; -1: the logits are NaN.
using NextToken = std::function<Token(std::span<const Token>)>;

struct ScriptedOptions {
  NextToken next;
  std::chrono::microseconds per_pass{0};  // how long a pass of decoding takes
  std::chrono::microseconds per_prompt_token{0};
  /// How many of the next passes fail as on a device that lost its state; not owned, may be null.
  std::atomic<size_t>* failing_passes = nullptr;
  size_t memory_tokens = SIZE_MAX;     // of all states together; beyond them: out_of_memory
  bool decoding_takes_memory = false;  // of the same
};

/// What was computed so far.
struct ScriptedCounters {
  std::atomic<uint64_t> prefill_tokens{0}, decode_passes{0}, decode_rows{0};
};

/// An engine whose tokens come from a script. The tokenizer is that of the GGUF file at `tokenizer_path`,
/// whose weights are not used. `counters` may be null, and must outlive the engine.
Engine make_scripted_engine(const std::string& tokenizer_path, ScriptedOptions options,
                            ScriptedCounters* counters = nullptr);

/// One thing that the scripted assistant says.
struct ScriptedReply {
  std::string when;      // in the last turn of user or tools; empty: always
  std::string text;      // special spellings are special tokens; EOS follows
  bool endless = false;  // the text is repeated without end
  bool no_end = false;   // no EOS: the last token is repeated
};

/// Answers each prompt with the first reply whose `when` occurs in its last turn. When tokens were put in
/// that are not the script's (a closing tag that was forced), the script goes on behind its own closing tag.
NextToken scripted_assistant(std::shared_ptr<const Tokenizer> tokenizer, std::vector<ScriptedReply> replies);

/// The tokenizer in a GGUF file.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path);

}  // namespace ds4::testing
