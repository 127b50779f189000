#include "chart.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "axis.hpp"
#include "common/visible_text.hpp"

namespace ds4::plot {
namespace {

constexpr int margin_side = 82, margin_top = 66, margin_bottom = 72;
constexpr int tick_targets_x = 6, tick_targets_y = 5;
constexpr double headroom = 1.05;
constexpr const char* prefill_color = "#2563eb";
constexpr const char* generation_color = "#dc2626";
constexpr const char* series_colors[max_series] = {"#2563eb", "#dc2626", "#059669", "#d97706",
                                                   "#7c3aed", "#0891b2", "#be185d", "#4d7c0f"};
constexpr const char* dashes = " stroke-dasharray=\"8 6\"";

/// The plot area and the numbers at its edges.
struct Frame {
  int width, height;
  int left, right, top, bottom;
  double max_ctx, max_prefill, max_generation;

  double x(double ctx) const { return left + ctx / max_ctx * (right - left); }
  double y(double value, double maximum) const { return bottom - value / maximum * (bottom - top); }
};

Frame make_frame(const std::vector<Series>& series, const ChartOptions& options) {
  double ctx = 0, prefill = 0, generation = 0;
  for (const Series& s : series) {
    for (const Point& p : s.points) {
      ctx = std::max(ctx, p.ctx_tokens);
      prefill = std::max(prefill, p.prefill_tps);
      generation = std::max(generation, p.gen_tps);
    }
  }
  return {options.width,
          options.height,
          margin_side,
          options.width - margin_side,
          margin_top,
          options.height - margin_bottom,
          ctx,
          nice_ceil(headroom * prefill),
          nice_ceil(headroom * generation)};
}

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return fmt::format("  <line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" {}/>\n", x1, y1, x2, y2,
                     style);
}

std::string tick_label(double x, double y, const char* anchor, double value) {
  return fmt::format(
      "  <text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\" font-size=\"12\" fill=\"#64748b\">{}</text>\n", x,
      y, anchor, tick_text(value));
}

std::string draw_grid(const Frame& f) {
  constexpr const char* grid = "stroke=\"#e2e8f0\" stroke-width=\"1\"";
  constexpr const char* axis = "stroke=\"#334155\" stroke-width=\"1.4\"";
  std::string text;
  for (const double value : ticks(f.max_prefill, nice_step(f.max_prefill, tick_targets_y))) {
    const double y = f.y(value, f.max_prefill);
    text += line(f.left, y, f.right, y, grid) + tick_label(f.left - 12, y + 4, "end", value);
  }
  for (const double value : ticks(f.max_ctx, nice_step(f.max_ctx, tick_targets_x))) {
    const double x = f.x(value);
    text += line(x, f.top, x, f.bottom, grid) + tick_label(x, f.bottom + 24, "middle", value);
  }
  for (const double value : ticks(f.max_generation, nice_step(f.max_generation, tick_targets_y))) {
    text += tick_label(f.right + 12, f.y(value, f.max_generation) + 4, "start", value);
  }
  text += line(f.left, f.top, f.left, f.bottom, axis);
  text += line(f.right, f.top, f.right, f.bottom, axis);
  return text + line(f.left, f.bottom, f.right, f.bottom, axis);
}

std::string axis_label(double x, double y, int turned_degrees, const std::string& label) {
  const std::string turn =
      turned_degrees == 0 ? "" : fmt::format(" transform=\"rotate({} {:.2f} {:.2f})\"", turned_degrees, x, y);
  return fmt::format(
      "  <text x=\"{:.2f}\" y=\"{:.2f}\"{} text-anchor=\"middle\" font-size=\"14\" font-weight=\"600\" "
      "fill=\"#334155\">{}</text>\n",
      x, y, turn, label);
}

std::string draw_axis_labels(const Frame& f, bool several) {
  const double middle = (f.top + f.bottom) / 2.0;
  return axis_label(f.width / 2.0, f.height - 20, 0, "ctx size") +
         axis_label(22, middle, -90, several ? "prefill t/s (solid)" : "prefill t/s") +
         axis_label(f.width - 22, middle, 90, several ? "generation t/s (dashed)" : "generation t/s");
}

std::string draw_lines(const Frame& f, const Series& series, const char* prefill, const char* generation,
                       const char* generation_style) {
  std::string prefill_points, generation_points;
  for (const Point& p : series.points) {
    const char* gap = prefill_points.empty() ? "" : " ";
    prefill_points +=
        fmt::format("{}{:.2f},{:.2f}", gap, f.x(p.ctx_tokens), f.y(p.prefill_tps, f.max_prefill));
    generation_points +=
        fmt::format("{}{:.2f},{:.2f}", gap, f.x(p.ctx_tokens), f.y(p.gen_tps, f.max_generation));
  }
  constexpr const char* form =
      "  <polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"3\" stroke-linecap=\"round\" "
      "stroke-linejoin=\"round\"{}/>\n";
  return fmt::format(fmt::runtime(form), prefill_points, prefill, "") +
         fmt::format(fmt::runtime(form), generation_points, generation, generation_style);
}

struct LegendEntry {
  const char* color;
  std::string label;
};

std::string draw_legend(const Frame& f, const std::vector<LegendEntry>& entries) {
  constexpr int row_height = 24, least_width = 176, glyph_width = 8;
  size_t longest = 0;
  for (const LegendEntry& entry : entries) longest = std::max(longest, entry.label.size());
  const int box_width = std::max(least_width, 60 + glyph_width * static_cast<int>(longest));
  const int box_height = 14 + row_height * static_cast<int>(entries.size());
  const int x = f.right - 8 - box_width + 14, y = f.top + 18;
  std::string text = fmt::format(
      "  <rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"white\" fill-opacity=\"0.85\" "
      "stroke=\"#cbd5e1\"/>\n",
      x - 14, y - 18, box_width, box_height);
  for (size_t i = 0; i < entries.size(); ++i) {
    const int row_y = y + row_height * static_cast<int>(i);
    text += fmt::format("  <rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", x, row_y - 5,
                        entries[i].color);
    text += fmt::format(
        "  <text x=\"{}\" y=\"{}\" font-size=\"13\" font-weight=\"600\" fill=\"#334155\">{}</text>\n", x + 22,
        row_y + 6, xml_text(entries[i].label));
  }
  return text;
}

}  // namespace

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : cli::visible(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string draw_chart(const std::vector<Series>& series, const ChartOptions& options) {
  const bool several = series.size() > 1;
  const Frame frame = make_frame(series, options);
  std::string text = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif\">\n"
      "  <rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "  <text x=\"{2:.2f}\" y=\"34\" text-anchor=\"middle\" font-size=\"26\" font-weight=\"700\" "
      "fill=\"#1f2933\">{3}</text>\n",
      options.width, options.height, options.width / 2.0, xml_text(options.title));
  text += draw_grid(frame) + draw_axis_labels(frame, several);
  std::vector<LegendEntry> legend;
  if (several) {
    for (size_t i = 0; i < series.size(); ++i) {
      text += draw_lines(frame, series[i], series_colors[i], series_colors[i], dashes);
      legend.push_back({series_colors[i], series[i].label});
    }
  } else {
    text += draw_lines(frame, series[0], prefill_color, generation_color, "");
    legend = {{prefill_color, "prefill"}, {generation_color, "generation"}};
  }
  return text + draw_legend(frame, legend) + "</svg>\n";
}

}  // namespace ds4::plot
