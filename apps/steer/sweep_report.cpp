// How a sweep is shown: a table, a CSV file and a chart.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "axis.hpp"
#include "chart.hpp"
#include "sweep.hpp"

namespace ds4::steer {
namespace {

using Value = std::function<double(const ScaleRow&)>;

constexpr int width = 720, panel_height = 170, left = 80, right = 690, top = 60, gap = 58;
constexpr const char* colors[] = {"#2563eb", "#059669", "#dc2626"};

double share_right(const ScaleRow& row) {
  return row.asked == 0 ? 0 : 100.0 * static_cast<double>(row.right) / static_cast<double>(row.asked);
}

std::string text_at(double x, double y, const char* anchor, int size, const std::string& text) {
  return fmt::format(
      "  <text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\" font-size=\"{}\" fill=\"#334155\">{}</text>\n", x,
      y, anchor, size, plot::xml_text(text));
}

std::string panel(const std::vector<ScaleRow>& rows, int index, const char* name, const Value& value) {
  const double y_top = top + index * (panel_height + gap), y_bottom = y_top + panel_height;
  const double first = rows.front().scale, span = std::max(1e-6, double{rows.back().scale} - first);
  double low = 0, high = 0;
  for (const ScaleRow& row : rows) {
    low = std::min(low, value(row));
    high = std::max(high, value(row));
  }
  low = low < 0 ? -plot::nice_ceil(-low) : 0;
  high = high > 0 ? plot::nice_ceil(high) : low < 0 ? 0 : 1;
  const auto x = [&](double scale) { return left + (scale - first) / span * (right - left); };
  const auto y = [&](double v) { return y_bottom - (v - low) / (high - low) * (y_bottom - y_top); };
  std::string svg = text_at(left, y_top - 10, "start", 13, name);
  for (const double v : {low, high}) svg += text_at(left - 10, y(v) + 4, "end", 12, plot::tick_text(v));
  for (const double v : {low, 0.0, high}) {
    svg += fmt::format(
        "  <line x1=\"{}\" y1=\"{:.2f}\" x2=\"{}\" y2=\"{:.2f}\" stroke=\"#e2e8f0\" stroke-width=\"1\"/>\n",
        left, y(v), right, y(v));
  }
  std::string points;
  for (const ScaleRow& row : rows) {
    points += fmt::format("{}{:.2f},{:.2f}", points.empty() ? "" : " ", x(row.scale), y(value(row)));
    svg += fmt::format("  <circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"3.5\" fill=\"{}\"/>\n", x(row.scale),
                       y(value(row)), colors[index]);
    svg += text_at(x(row.scale), y_bottom + 18, "middle", 11, fmt::format("{}", row.scale));
  }
  return svg + fmt::format("  <polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\"/>\n",
                           points, colors[index]);
}

}  // namespace

std::string sweep_table(const std::vector<ScaleRow>& rows, size_t prompts) {
  std::string text = fmt::format("{:>8} {:>8} {:>8} {:>11} {:>9} {:>9}\n", "scale", "words", "tokens",
                                 "projection", "right", "cut");
  for (const ScaleRow& row : rows) {
    const std::string answers = row.asked == 0 ? "-" : fmt::format("{}/{}", row.right, row.asked);
    text += fmt::format("{:>8} {:>8.1f} {:>8.1f} {:>11.4f} {:>9} {:>9}\n", row.scale, row.words, row.tokens,
                        row.projection, answers, fmt::format("{}/{}", row.cut, prompts));
  }
  return text;
}

std::string sweep_csv(const std::vector<ScaleRow>& rows) {
  std::string text = "scale,words,tokens,projection,asked,right,cut\n";
  for (const ScaleRow& row : rows) {
    text += fmt::format("{},{:.3f},{:.3f},{:.6f},{},{},{}\n", row.scale, row.words, row.tokens,
                        row.projection, row.asked, row.right, row.cut);
  }
  return text;
}

std::string sweep_chart(const std::vector<ScaleRow>& rows, const std::string& title) {
  const bool asked = std::any_of(rows.begin(), rows.end(), [](const ScaleRow& row) { return row.asked > 0; });
  const int panels = asked ? 3 : 2;
  const int height = top + panels * (panel_height + gap) - gap + 50;
  std::string svg = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" "
      "height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"system-ui, sans-serif\">\n"
      "  <rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      width, height);
  svg += text_at(width / 2.0, 26, "middle", 18, title);
  svg += panel(rows, 0, "words of an answer", [](const ScaleRow& row) { return row.words; });
  svg += panel(rows, 1, "projection after steering, at the end of the prompt",
               [](const ScaleRow& row) { return row.projection; });
  if (asked) svg += panel(rows, 2, "right answers, percent", share_right);
  svg += text_at((left + right) / 2.0, height - 8, "middle", 13, "scale");
  return svg + "</svg>\n";
}

}  // namespace ds4::steer
