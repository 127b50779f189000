// A chart of speed over context length as SVG (docs/bench.md).
#pragma once

#include <string>
#include <vector>

#include "series.hpp"

namespace ds4::plot {

/// As many as there are colours to tell machines apart.
inline constexpr size_t max_series = 8;

struct ChartOptions {
  std::string title;
  int width = 960;  // pixels
  int height = 540;
};

/// One series has a colour for prefill and one for generation; several have one colour each, with solid lines
/// for prefill and dashed ones for generation. Preconditions: 1 to max_series series, none without points.
std::string draw_chart(const std::vector<Series>& series, const ChartOptions& options);

/// Text as it may stand in an XML document; control characters and bytes that are not UTF-8 are replaced.
std::string xml_text(std::string_view text);

}  // namespace ds4::plot
