// How programs end: what they say last, and their exit status.
#pragma once

#include <string_view>

#include "ds4/error.hpp"

namespace ds4::cli {

/// Says why a program ends, unless Ctrl+C ended it. Returns the exit status.
int failure(const Error& error);
/// Writes to standard output. Returns the exit status; a closed pipe needs no words.
int print(std::string_view text);

}  // namespace ds4::cli
