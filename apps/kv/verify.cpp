// `ds4-kv verify`: reads every byte.
#include <algorithm>

#include "base/error.hpp"
#include "common/interrupt.hpp"
#include "program.hpp"

namespace ds4::kv {
namespace {

Result<int> verify(const std::string& folder, bool drop) {
  DS4_ASSIGN(const auto store, open_store(folder));
  DS4_ASSIGN(const auto report, store->verify(drop));
  std::string text;
  for (const auto& file : report.damaged) text += fmt::format("{}: {}\n", file.path, file.reason);
  const auto unreadable = static_cast<size_t>(std::count_if(
      report.damaged.begin(), report.damaged.end(), [](const auto& file) { return file.unreadable; }));
  const size_t damaged = report.damaged.size() - unreadable;
  text += fmt::format("{} files, {:.2f} MiB: {} damaged{}{}\n", report.files,
                      static_cast<double>(report.bytes) / (1 << 20), damaged,
                      drop && damaged > 0 ? " and dropped" : "",
                      unreadable > 0 ? fmt::format(", {} not readable now", unreadable) : "");
  DS4_TRY(print(text));
  return report.damaged.empty() ? cli::exit_success : cli::exit_failure;
}

struct Arguments {
  std::string folder;
  bool drop = false;
};

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("verify", "reads every byte and says what is damaged");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("DIR", arguments->folder, "folder of the disk cache")->required();
  command->add_flag("--drop", arguments->drop, "remove what is damaged, with what builds on it");
  command->callback(
      [&action, arguments] { action = [arguments] { return verify(arguments->folder, arguments->drop); }; });
}

}  // namespace ds4::kv
