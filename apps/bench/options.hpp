// What the user of `ds4-bench` asked for.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/option_table.hpp"
#include "common/program_options.hpp"
#include "frontiers.hpp"

namespace ds4::bench {

enum class PromptKind { builtin, raw_file, chat_file };

struct Options : cli::ProgramOptions {
  std::string raw_prompt_path;   // tokenised as it is
  std::string chat_prompt_path;  // one message of a chat without reasoning
  std::string system = "You are a helpful assistant.";

  FrontierSteps steps;
  uint64_t context_tokens = 0;  // 0 on the command line: what the run needs
  uint64_t gen_tokens = 128;
  bool teacher_forced = false;

  std::string csv_path;  // empty: standard output
  std::string json_path;
  std::string logits_folder;
  std::string kv_folder;   // write each state into it and read it back; empty: do not
  bool describe = false;   // begin the CSV with comments
  bool bandwidth = false;  // add the columns about memory traffic

  PromptKind prompt_kind() const {
    return !raw_prompt_path.empty()    ? PromptKind::raw_file
           : !chat_prompt_path.empty() ? PromptKind::chat_file
                                       : PromptKind::builtin;
  }
};

enum class Section { runtime, benchmark, output, refused };
using Row = cli::OptionRow<Options, Section>;
std::span<const Row> option_table();

/// Reads the arguments after the program name. An error is one sentence for the user; its code is unsupported
/// for an option of the original that this build cannot serve.
Result<Options> parse_options(std::span<const char* const> arguments);

/// The help page of a topic: "", "runtime", "benchmark" or "all". Any other topic gives a notice and the
/// default page.
std::string help_page(const std::string& topic, bool color);
/// The few lines that go with a usage error.
std::string short_help();

}  // namespace ds4::bench
