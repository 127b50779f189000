// The conversation on a terminal.
#pragma once

#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "options.hpp"

namespace ds4::cli {

/// Reads messages and commands until the user leaves. Returns the exit status.
int run_repl(const Options& options, const Engine& engine, const std::vector<std::string>& tool_schemas);

/// Tells that the longest effort was asked for with a small context; nothing is changed.
void say_if_context_is_small(ThinkMode think, uint64_t context_tokens);
/// The seed to use: the user's, or one from the clock.
uint64_t choose_seed(uint64_t wanted);

}  // namespace ds4::cli
