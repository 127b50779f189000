// `ds4-kv`: one subcommand per file, each of which adds itself to the command line.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "ds4/error.hpp"
#include "store/store_directory.hpp"

namespace ds4::kv {

/// What a subcommand does once the command line is read; its exit status, or why it failed.
using Action = std::function<Result<int>()>;

/// Each adds a subcommand that sets `action` if it is chosen.
void add_list(CLI::App& app, Action& action);
void add_show(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_pins(CLI::App& app, Action& action);
void add_purge(CLI::App& app, Action& action);
void add_import(CLI::App& app, Action& action);
void add_export(CLI::App& app, Action& action);

/// Opens a folder that must be one of a disk cache; nothing is evicted from it.
Result<std::unique_ptr<store::StoreDirectory>> open_store(const std::string& folder);
/// The state whose key begins with `text`, at least four digits.
Result<store::StoreEntry> find_entry(store::StoreDirectory& store, const std::string& text);
/// Writes to standard output.
Result<void> print(std::string_view text);

int run_program(int argc, const char* const* argv);

}  // namespace ds4::kv
