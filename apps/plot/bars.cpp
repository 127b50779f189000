#include "bars.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "axis.hpp"
#include "chart.hpp"

namespace ds4::plot {
namespace {

constexpr int row_height = 28, bar_height = 18, top = 88, bottom = 24, side = 24, gap = 28;
constexpr int panel_width = 220, text_width = 76, glyph_width = 8;
constexpr const char* colors[] = {"#2563eb", "#059669", "#dc2626", "#d97706"};

std::string text_at(int x, int y, const char* style, const std::string& text) {
  return fmt::format("  <text x=\"{}\" y=\"{}\" {}>{}</text>\n", x, y, style, xml_text(text));
}

}  // namespace

std::string draw_bars(const std::string& title, const std::vector<std::string>& labels,
                      const std::vector<BarPanel>& panels) {
  size_t longest = 0;
  for (const std::string& label : labels) longest = std::max(longest, label.size());
  const int rows = static_cast<int>(labels.size()), columns = static_cast<int>(panels.size());
  const int first = side + glyph_width * static_cast<int>(longest) + gap;
  const int width = first + columns * (panel_width + gap), height = top + rows * row_height + bottom;
  std::string svg = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif\">\n"
      "  <rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      width, height);
  svg += text_at(side, 36, "font-size=\"22\" font-weight=\"700\" fill=\"#1f2933\"", title);
  for (int row = 0; row < rows; ++row)
    svg += text_at(side, top + row * row_height + 15, "font-size=\"13\" fill=\"#334155\"",
                   labels[static_cast<size_t>(row)]);
  for (int column = 0; column < columns; ++column) {
    const BarPanel& panel = panels[static_cast<size_t>(column)];
    const int x = first + column * (panel_width + gap);
    svg += text_at(x, top - 14, "font-size=\"14\" font-weight=\"600\" fill=\"#334155\"", panel.title);
    const double largest = nice_ceil(*std::max_element(panel.values.begin(), panel.values.end()));
    for (int row = 0; row < rows; ++row) {
      const int y = top + row * row_height;
      const double value = panel.values[static_cast<size_t>(row)];
      const double length = std::clamp(value / largest, 0.0, 1.0) * (panel_width - text_width);
      svg += fmt::format(
          "  <rect x=\"{}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" fill-opacity=\"0.85\"/>\n", x,
          y, length, bar_height, colors[static_cast<size_t>(column) % std::size(colors)]);
      svg += text_at(x + static_cast<int>(length) + 6, y + 14, "font-size=\"12\" fill=\"#64748b\"",
                     panel.texts[static_cast<size_t>(row)]);
    }
  }
  return svg + "</svg>\n";
}

}  // namespace ds4::plot
