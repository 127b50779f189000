// `ds4-kv list` and `show`: what is there.
#include <algorithm>
#include <ctime>

#include <boost/json.hpp>

#include "base/error.hpp"
#include "common/interrupt.hpp"
#include "program.hpp"

namespace ds4::kv {
namespace {

using store::StoreEntry;

std::string time_text(int64_t seconds) {
  const auto time = static_cast<time_t>(seconds);
  tm parts{};
  char text[32] = "?";
  if (localtime_r(&time, &parts) != nullptr) std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string size_text(uint64_t bytes) {
  return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string marks(const StoreEntry& entry) {
  std::string text = entry.pinned ? "pinned" : "";
  if (entry.anchor) text += text.empty() ? "anchor" : ", anchor";
  return text;
}

boost::json::object json_of(const StoreEntry& entry) {
  boost::json::object object{{"key", entry.key.hex()},
                             {"model", entry.fingerprint.hex()},
                             {"tokens", entry.tokens},
                             {"reason", store::save_reason_name(entry.reason)},
                             {"pinned", entry.pinned},
                             {"anchor", entry.anchor},
                             {"hits", entry.hits},
                             {"created", entry.created},
                             {"used", entry.used},
                             {"own_bytes", entry.own_bytes},
                             {"frontier_bytes", entry.frontier_bytes},
                             {"segment_bytes", entry.segment_bytes}};
  object["parent"] = entry.parent ? boost::json::value(entry.parent->hex()) : boost::json::value(nullptr);
  return object;
}

Result<int> list(const std::string& folder, bool json) {
  DS4_ASSIGN(const auto store, open_store(folder));
  DS4_ASSIGN(auto entries, store->list());
  std::stable_sort(entries.begin(), entries.end(),
                   [](const StoreEntry& a, const StoreEntry& b) { return a.used > b.used; });
  const store::StoreStats stats = store->stats();
  if (json) {
    boost::json::array states;
    for (const StoreEntry& entry : entries) states.push_back(json_of(entry));
    const boost::json::object all{
        {"states", states}, {"segments", stats.segments}, {"replies", stats.replies}, {"bytes", stats.bytes}};
    DS4_TRY(print(boost::json::serialize(all) + "\n"));
    return cli::exit_success;
  }
  std::string text = fmt::format("{:<13} {:>9} {:>13} {:>6} {:<20} {:<14} {:<9} {}\n", "KEY", "TOKENS",
                                 "OWN SIZE", "HITS", "LAST USE", "REASON", "MODEL", "MARKS");
  for (const StoreEntry& entry : entries) {
    text += fmt::format("{:<13} {:>9} {:>13} {:>6.1f} {:<20} {:<14} {:<9} {}\n",
                        entry.key.hex().substr(0, 12), entry.tokens, size_text(entry.own_bytes), entry.hits,
                        time_text(entry.used), store::save_reason_name(entry.reason),
                        entry.fingerprint.hex().substr(0, 8), marks(entry));
  }
  text += fmt::format("{} states, {} segments, {} replies, {} on disk\n", stats.entries, stats.segments,
                      stats.replies, size_text(stats.bytes));
  DS4_TRY(print(text));
  return cli::exit_success;
}

Result<int> show(const std::string& folder, const std::string& key, bool json) {
  DS4_ASSIGN(const auto store, open_store(folder));
  DS4_ASSIGN(const StoreEntry entry, find_entry(*store, key));
  if (json) {
    DS4_TRY(print(boost::json::serialize(json_of(entry)) + "\n"));
    return cli::exit_success;
  }
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("{:<12} {}\n", name, value);
  };
  line("key", entry.key.hex());
  line("model", entry.fingerprint.hex());
  line("tokens", std::to_string(entry.tokens));
  line("reason", std::string(store::save_reason_name(entry.reason)));
  line("marks", marks(entry));
  line("created", time_text(entry.created));
  line("last use", time_text(entry.used));
  line("hits", fmt::format("{:.2f}, as they count now", entry.hits));
  line("own size", size_text(entry.own_bytes) + ", free without it");
  line("frontier", size_text(entry.frontier_bytes));
  line("segments", size_text(entry.segment_bytes) + ", with those that others share");
  line("continues", entry.parent ? entry.parent->hex() : "no other state");
  DS4_TRY(print(text));
  return cli::exit_success;
}

struct Arguments {
  std::string folder, key;
  bool json = false;
};

}  // namespace

void add_list(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("list", "every state, the last used first");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("DIR", arguments->folder, "folder of the disk cache")->required();
  command->add_flag("--json", arguments->json, "as one JSON object");
  command->callback(
      [&action, arguments] { action = [arguments] { return list(arguments->folder, arguments->json); }; });
}

void add_show(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("show", "all there is to know about one state");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("DIR", arguments->folder, "folder of the disk cache")->required();
  command->add_option("KEY", arguments->key, "which state")->required();
  command->add_flag("--json", arguments->json, "as one JSON object");
  command->callback([&action, arguments] {
    action = [arguments] { return show(arguments->folder, arguments->key, arguments->json); };
  });
}

}  // namespace ds4::kv
