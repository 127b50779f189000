// What the user asked for on the command line.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/program_options.hpp"
#include "ds4/chat.hpp"
#include "ds4/error.hpp"
#include "ds4/sampling.hpp"

namespace ds4::cli {

enum class PromptSource { none, text, file, standard_input };

/// Below this context size the longest reasoning effort has little room to unfold.
inline constexpr uint64_t think_max_context_tokens = 393216;

struct Options : ProgramOptions {
  PromptSource prompt_source = PromptSource::none;
  std::string prompt;       // the text, or the path of the file
  bool raw_prompt = false;  // the prompt is already rendered; special tokens in it count
  std::string system = "You are a helpful assistant";
  std::string tools_path;
  std::string session_path;  // a conversation in a file that this run continues
  ThinkMode think = ThinkMode::high;

  uint64_t context_tokens = 32768;
  size_t max_tokens = 50000;

  SamplingParams sampling;
  uint64_t seed = 0;  // 0: from the clock

  bool inspect = false;
  bool memory = false;
  bool dump_tokens = false;
  std::string dump_logits_path;
  std::string dump_logprobs_path;
  size_t logprobs_top_k = 20;
  std::string perplexity_path;

  std::string imatrix_dataset_path;  // calibration file; empty: none is collected
  std::string imatrix_out_path;
  size_t imatrix_max_prompts = largest_integer;
  size_t imatrix_max_tokens = largest_integer;
  uint64_t imatrix_min_expert_samples = 0;
};

/// Reads the arguments after the program name by the rules of read_arguments, except that there is one prompt
/// only. An error is one sentence for the user.
Result<Options> parse_options(std::span<const char* const> arguments);

/// The help page of a topic: "", "runtime", "sampling", "diagnostics", "commands" or "all". Any other topic
/// gives a notice and the default page.
std::string help_page(const std::string& topic, bool color);
/// The few lines that go with a usage error.
std::string short_help();
/// The commands of a conversation, one per line.
std::string command_list();

}  // namespace ds4::cli
