// What a chart shows of one CSV of ds4-bench.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"

namespace ds4::plot {

struct Point {
  double ctx_tokens = 0;
  double prefill_tps = 0;
  double gen_tps = 0;
};

struct Series {
  std::string label;
  std::vector<Point> points;  // by rising context
};

/// Reads the columns ctx_tokens, prefill_tps and gen_tps wherever they stand. A byte order mark, empty lines
/// and lines that begin with '#' are skipped. Errors name the missing columns, the line of a bad number, or
/// the number of rows if it is below two.
Result<std::vector<Point>> read_points(std::string_view csv, const std::string& name);

/// "m3_max" becomes "M3 Max t/s".
std::string default_title(std::string_view stem);

/// The names of the files without folder and suffix; with their folder where two would be the same.
std::vector<std::string> labels_of(const std::vector<std::string>& paths);

}  // namespace ds4::plot
