// What the user of `ds4-eval` asked for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/option_table.hpp"
#include "common/program_options.hpp"
#include "ds4/chat.hpp"
#include "ds4/sampling.hpp"
#include "item.hpp"
#include "think_budget.hpp"

namespace ds4::eval {

inline constexpr uint64_t most_tokens = 1000000;

struct Options : cli::ProgramOptions {
  std::string suite = "core";
  std::string suite_path;  // a file instead of a built-in suite
  std::string source, domain, case_id;
  uint64_t questions = 0;               // 0: all
  std::vector<uint64_t> case_sequence;  // numbers from 1; empty: as they come

  uint64_t context_tokens = 0;  // 0: as large as the questions need
  uint64_t max_tokens = 16000;
  bool max_tokens_given = false;  // then items have no limits of their own
  ThinkMode think = ThinkMode::high;
  ReplyBudget budget;
  SamplingParams sampling{.temperature = 0};
  uint64_t seed = 0;  // 0: from the clock
  bool retry_incomplete = false;

  bool plain = false;
  uint64_t pause_ms = 350;
  std::string trace_path;
  std::string baseline_path;
  std::string regrade_path;
  bool list_cases = false, validate_cases = false, self_test = false;

  bool needs_model() const { return regrade_path.empty() && !list_cases && !validate_cases && !self_test; }
};

enum class Section { runtime, cases, evaluation, sampling, output, refused };
using Row = cli::OptionRow<Options, Section>;
std::span<const Row> option_table();

/// Reads the arguments after the program name. An error is one sentence for the user; its code is unsupported
/// for an option of the original that this build cannot serve.
Result<Options> parse_options(std::span<const char* const> arguments);

/// The cases that the options select, in the order in which they are asked.
Result<std::vector<Item>> select_cases(const Options& options, const std::vector<Item>& items);

/// The help page of a topic: "", "runtime", "sampling", "evaluation" or "all". Any other topic gives a notice
/// and the default page.
std::string help_page(const std::string& topic, bool color);
/// The few lines that go with a usage error.
std::string short_help();

}  // namespace ds4::eval
