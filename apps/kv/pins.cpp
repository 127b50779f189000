// `ds4-kv pin` and `unpin`: states that are never evicted.
#include "base/error.hpp"
#include "common/interrupt.hpp"
#include "program.hpp"

namespace ds4::kv {
namespace {

Result<int> set_pins(const std::string& folder, const std::vector<std::string>& keys, bool pinned) {
  DS4_ASSIGN(const auto store, open_store(folder));
  for (const std::string& key : keys) {
    DS4_ASSIGN(const auto entry, find_entry(*store, key));
    DS4_TRY(store->set_pinned(entry.key, pinned));
  }
  return cli::exit_success;
}

struct Arguments {
  std::string folder;
  std::vector<std::string> keys;
};

void add(CLI::App& app, Action& action, const char* name, const char* help, bool pinned) {
  auto* command = app.add_subcommand(name, help);
  auto arguments = std::make_shared<Arguments>();
  command->add_option("DIR", arguments->folder, "folder of the disk cache")->required();
  command->add_option("KEY", arguments->keys, "which states")->required();
  command->callback([&action, arguments, pinned] {
    action = [arguments, pinned] { return set_pins(arguments->folder, arguments->keys, pinned); };
  });
}

}  // namespace

void add_pins(CLI::App& app, Action& action) {
  add(app, action, "pin", "states that stay, whatever room is needed", true);
  add(app, action, "unpin", "takes that back", false);
}

}  // namespace ds4::kv
