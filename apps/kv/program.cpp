#include "program.hpp"

#include <unistd.h>

#include <vector>

#include "base/error.hpp"
#include "common/console.hpp"
#include "common/interrupt.hpp"
#include "ds4/version.hpp"

namespace ds4::kv {
namespace {

constexpr size_t shortest_key = 4;

constexpr const char* footer = R"(
A folder of the disk cache is the one that ds4-server was given with --kv-disk-dir. It may be in use meanwhile.
KEY is the key of a state as list shows it, or the beginning of one.

Exit status: 0 success, 1 failure (verify: something is damaged), 2 wrong usage.)";

}  // namespace

Result<std::unique_ptr<store::StoreDirectory>> open_store(const std::string& folder) {
  if (!store::StoreFolder::is_one(folder)) {
    return fail(ErrorCode::not_found, "{} is not a folder of the disk cache", folder);
  }
  store::StoreDirectoryOptions options;
  options.directory = folder;
  options.budget_bytes = UINT64_MAX;  // the server's business
  options.log = [](std::string_view line) { cli::say(line); };
  return store::StoreDirectory::open(std::move(options));
}

Result<store::StoreEntry> find_entry(store::StoreDirectory& store, const std::string& text) {
  if (text.size() < shortest_key) {
    return fail(ErrorCode::invalid_argument, "'{}' is too short for a key: give at least {} digits", text,
                shortest_key);
  }
  DS4_ASSIGN(const auto entries, store.list());
  const store::StoreEntry* found = nullptr;
  for (const store::StoreEntry& entry : entries) {
    if (!entry.key.hex().starts_with(text)) continue;
    if (found != nullptr) return fail(ErrorCode::invalid_argument, "more than one key begins with {}", text);
    found = &entry;
  }
  if (found == nullptr) return fail(ErrorCode::not_found, "there is no state with the key {}", text);
  return *found;
}

Result<void> print(std::string_view text) {
  cli::Writer output(STDOUT_FILENO);
  if (output.write(text) || output.pipe_closed()) return {};
  return output.error("standard output");
}

int run_program(int argc, const char* const* argv) {
  cli::set_program_name("ds4-kv");
  cli::install_signal_handlers();
  CLI::App app("Looks after the folders of the disk cache: states of conversations that survive a restart.",
               "ds4-kv");
  app.footer(footer);
  app.set_version_flag("--version", std::string("ds4-kv ") + version);
  app.require_subcommand(1);
  Action action;
  add_list(app, action);
  add_show(app, action);
  add_verify(app, action);
  add_pins(app, action);
  add_purge(app, action);
  add_import(app, action);
  add_export(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& problem) {
    const bool unknown = app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-';
    cli::say_error(unknown ? fmt::format("there is no command '{}'", argv[1]) : problem.what());
    cli::Writer(STDERR_FILENO).write("usage: ds4-kv COMMAND DIR [OPTION...]; see ds4-kv --help\n");
    return cli::exit_usage;
  }
  const auto status = action();
  if (status) return *status;
  cli::say_error(status.error().message);
  return status.error().code == ErrorCode::invalid_argument ? cli::exit_usage : cli::exit_failure;
}

}  // namespace ds4::kv
