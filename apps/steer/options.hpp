// What the user asked for on the command line.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/option_table.hpp"
#include "common/program_options.hpp"
#include "ds4/chat.hpp"
#include "ds4/steering.hpp"

namespace ds4::steer {

enum class Command { none, build, sweep };

/// Which tokens of a prompt are averaged.
struct Positions {
  bool all = false;  // from the user tag on
  size_t last = 1;   // else the last so many
};

struct Options : cli::ProgramOptions {
  Command command = Command::none;
  std::string system = "You are a helpful assistant.";
  ThinkMode think = ThinkMode::none;

  // build
  std::string good_path, bad_path, out;
  Component component = Component::feed_forward;
  bool orthogonalize = false, pair_normalize = false;
  Positions positions;
  size_t first_layer = 0;
  std::optional<size_t> last_layer;  // of the model, unless told

  // sweep
  std::string direction_path, prompts_path;
  std::vector<float> scales{-2, -1, -0.5f, 0, 0.5f, 1, 2};
  float attention_scale = 0;
  size_t max_tokens = 160;
  uint64_t context_tokens = 4096;
  bool show = false;
};

enum class Section { build, sweep, both, runtime };
using Row = cli::OptionRow<Options, Section>;

std::span<const Row> option_table();

/// Reads the arguments after the program name: a command, then its options. An error is one sentence.
Result<Options> parse_options(std::span<const char* const> arguments);

std::string help_page(const std::string& topic, bool color);
std::string short_help();

}  // namespace ds4::steer
