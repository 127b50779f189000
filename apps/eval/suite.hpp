// Where questions come from: the built-in suites and files of the user (docs/eval.md §2).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "item.hpp"

namespace ds4::eval {

/// The items of a built-in suite: "core", "nano", or "all" for both.
Result<std::vector<Item>> builtin_suite(std::string_view name);

/// The items of a file: our JSON lines, or the files of GPQA (CSV), SuperGPQA (JSON lines) and AIME (either).
Result<std::vector<Item>> load_suite_file(const std::string& path);
/// The same for its text; `path` is for messages and for the source of AIME items.
Result<std::vector<Item>> parse_suite(std::string_view text, const std::string& path);
/// Rows of comma-separated values with quotes, as in RFC 4180.
Result<std::vector<std::vector<std::string>>> parse_csv(std::string_view text);

/// Checks every item, and that names are unique. All complaints, one sentence each.
std::vector<std::string> check_items(const std::vector<Item>& items);

/// The bytes of suites/NAME.jsonl at the time of the build; empty if there is no such file.
std::string_view embedded_suite(std::string_view name);

}  // namespace ds4::eval
