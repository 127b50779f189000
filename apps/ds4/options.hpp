// What the user asked for on the command line.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ds4/chat.hpp"
#include "ds4/engine.hpp"
#include "ds4/error.hpp"
#include "ds4/sampling.hpp"

namespace ds4::cli {

enum class PromptSource { none, text, file, standard_input };

/// Below this context size the longest reasoning effort has little room to unfold.
inline constexpr uint64_t think_max_context_tokens = 393216;

struct Options {
  bool help = false;
  std::string help_topic;  // empty: the default page
  bool version = false;

  PromptSource prompt_source = PromptSource::none;
  std::string prompt;       // the text, or the path of the file
  bool raw_prompt = false;  // the prompt is already rendered; special tokens in it count
  std::string system = "You are a helpful assistant";
  std::string tools_path;
  ThinkMode think = ThinkMode::high;

  std::string model_path;  // empty: search
  uint64_t context_tokens = 32768;
  size_t max_tokens = 50000;
  BackendChoice backend = BackendChoice::automatic;
  unsigned threads = 0;  // 0: one per processor
  uint32_t prefill_chunk_tokens = 4096;
  bool exact_activations = false;
  bool warm_weights = false;

  SamplingParams sampling;
  uint64_t seed = 0;  // 0: from the clock

  bool inspect = false;
  bool dump_tokens = false;
  std::string dump_logits_path;
  std::string dump_logprobs_path;
  size_t logprobs_top_k = 20;
  std::string perplexity_path;
};

/// Reads the arguments after the program name. Every option takes its value from the next argument, whatever
/// that looks like; the last occurrence wins, except that there is one prompt only. An error is one sentence
/// for the user.
Result<Options> parse_options(std::span<const char* const> arguments);

/// A whole decimal number without sign in [minimum, maximum]; `what` begins the error sentence.
Result<uint64_t> parse_integer(const std::string& what, const std::string& text, uint64_t minimum,
                               uint64_t maximum);

/// The help page of a topic: "", "runtime", "sampling", "diagnostics", "commands" or "all". Any other topic
/// gives a notice and the default page.
std::string help_page(const std::string& topic, bool color);
/// The few lines that go with a usage error.
std::string short_help();
/// The commands of a conversation, one per line.
std::string command_list();

}  // namespace ds4::cli
