#include "series.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/error.hpp"

namespace ds4::plot {
namespace {

namespace fs = std::filesystem;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view space = " \t\r";
  const size_t begin = text.find_first_not_of(space);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find_first_of(separators, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

constexpr std::array<std::string_view, 3> wanted = {"ctx_tokens", "prefill_tps", "gen_tps"};

/// Where the wanted columns stand.
Result<std::array<size_t, 3>> find_columns(std::string_view header, const std::string& name) {
  const auto titles = split(header, ",");
  std::array<size_t, 3> columns{};
  std::string missing;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto found = std::find_if(titles.begin(), titles.end(),
                                    [&](std::string_view title) { return trimmed(title) == wanted[i]; });
    columns[i] = static_cast<size_t>(found - titles.begin());
    if (found == titles.end()) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", wanted[i]);
  }
  if (!missing.empty()) return fail(ErrorCode::format, "{} lacks the columns {}", name, missing);
  return columns;
}

std::optional<double> number(std::string_view text) {
  text = trimmed(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = error == std::errc() && end == text.data() + text.size();
  return good && std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

}  // namespace

Result<std::vector<Point>> read_points(std::string_view csv, const std::string& name) {
  if (csv.starts_with("\xef\xbb\xbf")) csv.remove_prefix(3);
  std::optional<std::array<size_t, 3>> columns;
  std::vector<Point> points;
  size_t line_number = 0;
  for (const std::string_view line : split(csv, "\n")) {
    ++line_number;
    if (trimmed(line).empty() || line.starts_with('#')) continue;
    if (!columns) {
      DS4_ASSIGN(columns, find_columns(line, name));
      continue;
    }
    const auto cells = split(line, ",");
    std::array<double, 3> values{};
    for (size_t i = 0; i < wanted.size(); ++i) {
      const size_t column = (*columns)[i];
      const auto value = column < cells.size() ? number(cells[column]) : std::nullopt;
      if (!value) return fail(ErrorCode::format, "{}:{}: {} is not a number", name, line_number, wanted[i]);
      values[i] = *value;
    }
    points.push_back({values[0], values[1], values[2]});
  }
  if (!columns) DS4_TRY(find_columns("", name));
  if (points.size() < 2) {
    return fail(ErrorCode::format, "{} has {} row{}; a line needs two at least", name, points.size(),
                points.size() == 1 ? "" : "s");
  }
  std::stable_sort(points.begin(), points.end(),
                   [](const Point& a, const Point& b) { return a.ctx_tokens < b.ctx_tokens; });
  if (points.back().ctx_tokens <= 0) return fail(ErrorCode::format, "{}: every context is 0", name);
  return points;
}

std::string default_title(std::string_view stem) {
  std::string title;
  for (const std::string_view word : split(stem, "_-")) {
    if (word.empty()) continue;
    std::string shown(word);
    // Also the processor names "m1", "m2", ...: their only letter is the first.
    if (shown[0] >= 'a' && shown[0] <= 'z') shown[0] = static_cast<char>(shown[0] - 'a' + 'A');
    title.append(shown).append(" ");
  }
  return title + "t/s";
}

std::vector<std::string> labels_of(const std::vector<std::string>& paths) {
  std::vector<std::string> labels;
  for (const std::string& path : paths) {
    const std::string stem = fs::path(path).stem().string();
    const auto same = std::count_if(paths.begin(), paths.end(), [&](const std::string& other) {
      return fs::path(other).stem().string() == stem;
    });
    const std::string folder = fs::path(path).parent_path().filename().string();
    labels.push_back(same > 1 && !folder.empty() ? fmt::format("{}/{}", folder, stem) : stem);
  }
  return labels;
}

}  // namespace ds4::plot
