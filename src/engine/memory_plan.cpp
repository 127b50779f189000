#include <fmt/format.h>

#include "ds4/memory.hpp"

namespace ds4 {
namespace {

std::string size_text(double bytes) {
  constexpr double gib = 1 << 30, mib = 1 << 20;
  return bytes >= gib ? fmt::format("{:.2f} GiB", bytes / gib) : fmt::format("{:.2f} MiB", bytes / mib);
}

std::string row(std::string_view name, std::string_view value) {
  return fmt::format("  {:<38}{:>12}\n", name, value);
}

std::string row(std::string_view name, uint64_t bytes) {
  return row(name, size_text(static_cast<double>(bytes)));
}

}  // namespace

std::string memory_table(const MemoryPlan& plan, uint64_t context) {
  std::string text = fmt::format("memory on {}\n", plan.device);
  text += row("free now", plan.available_bytes);
  for (const MemoryPlan::Part& part : plan.weights) text += row("weights: " + part.name, part.bytes);
  text += row("weights in all", plan.weight_bytes());
  text += row("scratch", plan.scratch_bytes);
  const uint64_t needed = plan.weight_bytes() + plan.scratch_bytes;
  if (needed > plan.available_bytes) {
    text += row("missing", needed - plan.available_bytes);
  } else {
    text += row("left for sessions", plan.left_bytes());
  }
  text += fmt::format("a session of {} tokens\n", context);
  text += row("state per token", fmt::format("{:.0f} B", plan.bytes_per_token));
  text += row("compressed rows when full",
              static_cast<uint64_t>(plan.bytes_per_token * static_cast<double>(context)));
  text += row("window and open compressor windows", plan.session_bytes);
  text += row("earlier states to go back to", plan.anchor_bytes);
  text += row("in all", plan.session_total_bytes(context));
  text += row("such sessions fit", fmt::format("{}", plan.sessions(context)));
  return text;
}

}  // namespace ds4
