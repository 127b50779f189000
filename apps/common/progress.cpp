#include "common/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace ds4::cli {
namespace {

constexpr auto quiet_time = std::chrono::milliseconds(250);  // shorter work shows nothing
constexpr auto redraw_time = std::chrono::milliseconds(80);

double percent(uint64_t done, uint64_t total) {
  return total == 0 ? 100.0 : 100.0 * static_cast<double>(done) / static_cast<double>(total);
}

}  // namespace

ProgressLine::ProgressLine() : writer_(STDERR_FILENO) {}

ProgressLine::~ProgressLine() {
  if (visible_) writer_.write("\n");
}

void ProgressLine::show(const std::string& text, bool last) {
  if (!writer_.terminal()) return;
  const auto now = Clock::now();
  if (now - begin_ < quiet_time && !visible_) return;
  if (visible_ && !last && now - drawn_ < redraw_time) return;
  writer_.write(fmt::format("\r{}\x1b[K", writer_.styled(style_cyan, text)));
  drawn_ = now;
  visible_ = true;
}

std::string prefill_text(uint64_t done, uint64_t total) {
  return fmt::format("processing {} input tokens: {}/{} ({:.1f}%)", total, done, total, percent(done, total));
}

std::string load_text(uint64_t done_bytes, uint64_t total_bytes, std::chrono::duration<double> elapsed) {
  std::string text = fmt::format("loading weights: {} of {} ({:.1f}%)", human_bytes(done_bytes),
                                 human_bytes(total_bytes), percent(done_bytes, total_bytes));
  if (elapsed.count() > 0)
    text += fmt::format(", {:.1f} GB/s", static_cast<double>(done_bytes) / elapsed.count() * 1e-9);
  return text;
}

std::string human_bytes(uint64_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  auto value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, units[unit]);
}

}  // namespace ds4::cli
