// `ds4-kv verify`: reads every byte.
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
  text += fmt::format("{} files, {:.2f} MiB: {} damaged{}\n", report.files,
                      static_cast<double>(report.bytes) / (1 << 20), report.damaged.size(),
                      drop && !report.damaged.empty() ? " and dropped" : "");
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
