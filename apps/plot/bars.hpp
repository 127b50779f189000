// Bars of several measures side by side as SVG: a row for each thing that is compared.
#pragma once

#include <string>
#include <vector>

namespace ds4::plot {

/// One measure: a value for every row, not negative, and the text that stands at its bar.
struct BarPanel {
  std::string title;
  std::vector<double> values;
  std::vector<std::string> texts;
};

/// Preconditions: at least one row and one panel; every panel has a value and a text for each of `labels`.
std::string draw_bars(const std::string& title, const std::vector<std::string>& labels,
                      const std::vector<BarPanel>& panels);

}  // namespace ds4::plot
