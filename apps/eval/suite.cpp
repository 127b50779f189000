#include "suite.hpp"

#include <set>

#include "base/error.hpp"
#include "common/console.hpp"

namespace ds4::eval {

Result<std::vector<Item>> builtin_suite(std::string_view name) {
  std::vector<Item> items;
  for (const std::string_view each : {"core", "nano"}) {
    if (name != each && name != "all") continue;
    DS4_ASSIGN(auto part, parse_suite(embedded_suite(each), std::string(each) + ".jsonl"));
    items.insert(items.end(), std::make_move_iterator(part.begin()), std::make_move_iterator(part.end()));
  }
  if (items.empty()) {
    return fail(ErrorCode::invalid_argument, "there is no suite '{}'; there are: core, nano, all", name);
  }
  return items;
}

Result<std::vector<Item>> load_suite_file(const std::string& path) {
  DS4_ASSIGN(const std::string text, cli::read_file(path));
  DS4_ASSIGN(auto items, parse_suite(text, path));
  const auto complaints = check_items(items);
  if (!complaints.empty()) return fail(ErrorCode::format, "{}: {}", path, complaints.front());
  return items;
}

std::vector<std::string> check_items(const std::vector<Item>& items) {
  std::vector<std::string> complaints;
  std::set<std::string> names;
  for (const Item& item : items) {
    if (auto valid = validate(item); !valid) complaints.push_back(valid.error().message);
    if (!names.insert(item.name()).second) complaints.push_back(item.name() + " is there twice");
  }
  return complaints;
}

}  // namespace ds4::eval
