#include "baseline.hpp"

#include <fmt/format.h>

#include <map>

#include "text_tools.hpp"
#include "trace.hpp"

namespace ds4::eval {

std::vector<std::string> compare_with_baseline(const std::vector<CaseState>& cases, std::string_view trace) {
  std::map<uint64_t, TraceCase> recorded;
  for (TraceCase& c : parse_trace(trace)) recorded[c.number] = std::move(c);
  std::vector<std::string> differences;
  for (size_t i = 0; i < cases.size(); ++i) {
    const CaseState& now = cases[i];
    const auto found = recorded.find(i + 1);
    if (found == recorded.end() || found->second.source != now.item.source ||
        found->second.id != now.item.id) {
      differences.push_back(fmt::format("case {}, {}, is not there", i + 1, now.item.name()));
      if (found != recorded.end()) recorded.erase(found);
      continue;
    }
    const TraceCase& then = found->second;
    const auto differs = [&](const char* what, std::string_view before, std::string_view after) {
      if (before == after) return;
      differences.push_back(fmt::format("{}: {} was {}, is {}", now.item.name(), what, before, after));
    };
    differs("status", then.status, status_name(now.status));
    differs("answer", then.picked, now.picked.empty() ? "?" : collapse(now.picked));
    differs("prompt tokens", fmt::to_string(then.prompt_tokens), fmt::to_string(now.prompt_tokens));
    differs("generated tokens", fmt::to_string(then.generated_tokens), fmt::to_string(now.generated_tokens));
    recorded.erase(found);
  }
  for (const auto& [number, c] : recorded) {
    differences.push_back(fmt::format("case {}, {}/{}, was not asked", number, c.source, c.id));
  }
  return differences;
}

}  // namespace ds4::eval
