// The commands of ds4-quantize, each with its own options.
#pragma once

#include <cstdio>
#include <string_view>

namespace ds4::quantize {

inline constexpr int exit_failure = 1;
inline constexpr int exit_usage = 2;

/// Arguments from the command's name on; return the exit status.
int run_splice(int argc, char** argv);
int run_score(int argc, char** argv);
int run_compare(int argc, char** argv);

/// Unlike fmt::print, which throws when the stream cannot be written.
inline bool print(std::FILE* stream, std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stream) == text.size() && std::fflush(stream) == 0;
}

}  // namespace ds4::quantize
