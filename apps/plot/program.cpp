#include "program.hpp"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "chart.hpp"
#include "common/atomic_file.hpp"
#include "common/console.hpp"
#include "common/interrupt.hpp"
#include "common/program_options.hpp"

namespace ds4::plot {
namespace {

constexpr int least_pixels = 400, most_pixels = 20000;

constexpr const char* usage =
    "usage: ds4-bench-plot CSV... [-o SVG] [--title TEXT] [--width N] [--height N]\n";

constexpr const char* description =
    "\n"
    "Draws files of ds4-bench: prefill and generation speed over context length. One file gives a chart of "
    "one\n"
    "machine, several (at most 8) one chart that compares them, with the names of the files as legend.\n"
    "\n"
    "    -o, --output SVG    where the chart goes [NAME_ts.svg beside NAME.csv; needed for several files]\n"
    "    --title TEXT        [from the name of the file]\n"
    "    --width N           pixels, 400 to 20000 [960]\n"
    "    --height N          pixels, 400 to 20000 [540]\n"
    "\n"
    "Exit status: 0 success, 1 a file that cannot be read, drawn or written, 2 wrong usage.\n";

struct Arguments {
  bool help = false;
  std::vector<std::string> csv_paths;
  std::string output_path;
  ChartOptions chart;
};

Result<void> check(const Arguments& a) {
  if (a.csv_paths.empty()) return fail(ErrorCode::invalid_argument, "name a CSV of ds4-bench");
  if (a.csv_paths.size() > max_series) {
    return fail(ErrorCode::invalid_argument, "{} files are more than the {} that a chart can show",
                a.csv_paths.size(), max_series);
  }
  if (a.csv_paths.size() > 1 && a.output_path.empty()) {
    return fail(ErrorCode::invalid_argument, "name the chart of several files with -o");
  }
  return {};
}

Result<Arguments> parse(std::span<const char* const> arguments) {
  Arguments result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string argument = arguments[i];
    if (argument == "-h" || argument == "--help") {
      result.help = true;
      return result;
    }
    if (!argument.starts_with("-")) {
      result.csv_paths.push_back(argument);
      continue;
    }
    const bool known = argument == "-o" || argument == "--output" || argument == "--title" ||
                       argument == "--width" || argument == "--height";
    if (!known) return fail(ErrorCode::invalid_argument, "unknown option '{}'", argument);
    if (i + 1 >= arguments.size()) return fail(ErrorCode::invalid_argument, "{} needs a value", argument);
    const std::string value = arguments[++i];
    if (argument == "--title") {
      result.chart.title = value;
    } else if (argument == "--width" || argument == "--height") {
      int& pixels = argument == "--width" ? result.chart.width : result.chart.height;
      DS4_TRY(cli::set_integer(pixels, argument.c_str(), value, least_pixels, most_pixels));
    } else {
      DS4_TRY(cli::set_path(result.output_path, argument.c_str(), value));
    }
  }
  DS4_TRY(check(result));
  return result;
}

Result<void> draw(Arguments arguments) {
  const auto& paths = arguments.csv_paths;
  const std::vector<std::string> labels = labels_of(paths);
  std::vector<Series> series;
  for (size_t i = 0; i < paths.size(); ++i) {
    DS4_ASSIGN(const std::string text, cli::read_file(paths[i]));
    DS4_ASSIGN(auto points, read_points(text, paths[i]));
    series.push_back({labels[i], std::move(points)});
  }
  const std::filesystem::path first(paths[0]);
  if (arguments.output_path.empty()) {
    arguments.output_path = (first.parent_path() / (first.stem().string() + "_ts.svg")).string();
  }
  if (arguments.chart.title.empty()) {
    arguments.chart.title = paths.size() == 1 ? default_title(first.stem().string()) : "t/s over context";
  }
  DS4_ASSIGN(auto file, cli::AtomicFile::create(arguments.output_path));
  DS4_TRY(file.write(draw_chart(series, arguments.chart)));
  return file.commit();
}

}  // namespace

int run_program(std::span<const char* const> arguments) {
  cli::set_program_name("ds4-bench-plot");
  cli::install_signal_handlers();
  const auto parsed = parse(arguments);
  if (!parsed) {
    cli::say_error(parsed.error().message);
    cli::Writer(STDERR_FILENO).write(usage);
    return cli::exit_usage;
  }
  if (parsed->help) {
    return cli::Writer(STDOUT_FILENO).write(std::string(usage) + description) ? cli::exit_success
                                                                              : cli::exit_failure;
  }
  const auto drawn = draw(*parsed);
  if (drawn) return cli::exit_success;
  cli::say_error(drawn.error().message);
  return cli::exit_failure;
}

}  // namespace ds4::plot
