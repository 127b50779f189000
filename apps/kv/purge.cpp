// `ds4-kv purge`: removes states.
#include <cmath>

#include "base/error.hpp"
#include "common/interrupt.hpp"
#include "program.hpp"

namespace ds4::kv {
namespace {

constexpr double most_days = 100000;

struct Arguments {
  std::string folder, model;
  std::vector<std::string> keys;
  double unused_days = -1;
  bool all = false, pinned = false, replies = false;
};

Result<int> purge(const Arguments& arguments) {
  const bool chosen =
      arguments.all || !arguments.keys.empty() || !arguments.model.empty() || arguments.unused_days >= 0;
  if (!chosen && !arguments.replies) {
    return fail(ErrorCode::invalid_argument,
                "say what to remove: KEY, --model, --unused-for, --replies or --all");
  }
  DS4_ASSIGN(const auto store, open_store(arguments.folder));
  store::PurgeFilter filter;
  filter.pinned_too = arguments.pinned;
  filter.replies = arguments.replies || (arguments.all && arguments.model.empty());
  if (arguments.unused_days >= 0) {
    filter.unused_for_s = static_cast<int64_t>(std::llround(arguments.unused_days * 86400));
  }
  if (!arguments.model.empty()) {
    filter.fingerprint = store::Hash128::from_hex(arguments.model);
    if (!filter.fingerprint) {
      return fail(ErrorCode::invalid_argument, "--model takes the 32 digits that show prints");
    }
  }
  uint64_t removed = 0;
  if (arguments.keys.empty()) {
    // Without a state chosen, only replies go.
    if (!chosen) filter.key = store::Hash128{};
    DS4_ASSIGN(removed, store->purge(filter));
  }
  for (const std::string& key : arguments.keys) {
    DS4_ASSIGN(const auto entry, find_entry(*store, key));
    if (entry.pinned && !arguments.pinned) {
      return fail(ErrorCode::invalid_argument, "the state {} is pinned: --pinned removes it nevertheless",
                  entry.key.hex());
    }
    filter.key = entry.key;
    DS4_ASSIGN(const uint64_t one, store->purge(filter));
    removed += one;
  }
  DS4_TRY(print(fmt::format("{} states removed\n", removed)));
  return cli::exit_success;
}

}  // namespace

void add_purge(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("purge", "removes states; pinned ones only with --pinned");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("DIR", arguments->folder, "folder of the disk cache")->required();
  command->add_option("KEY", arguments->keys, "which states");
  command->add_option("--model", arguments->model, "those of the model with this fingerprint");
  command->add_option("--unused-for", arguments->unused_days, "those that nobody used for so many days")
      ->check(CLI::Range(0.0, most_days));
  command->add_flag("--all", arguments->all, "all states, and the replies");
  command->add_flag("--pinned", arguments->pinned, "pinned ones too");
  command->add_flag("--replies", arguments->replies,
                    "the replies that are kept for conversations with tools");
  command->callback([&action, arguments] { action = [arguments] { return purge(*arguments); }; });
}

}  // namespace ds4::kv
