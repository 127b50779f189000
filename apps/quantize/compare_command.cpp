#include <fmt/format.h>

#include <string>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "commands.hpp"
#include "common/console.hpp"
#include "score_lists.hpp"

namespace ds4::quantize {
namespace {

Result<std::string> compare(const std::string& before, const std::string& after) {
  DS4_ASSIGN(const std::string old_text, cli::read_file(before));
  DS4_ASSIGN(const std::string new_text, cli::read_file(after));
  DS4_ASSIGN(const auto old_scores, parse_score_list(old_text, before));
  DS4_ASSIGN(const auto new_scores, parse_score_list(new_text, after));
  return compare_score_lists(old_scores, new_scores);
}

}  // namespace

int run_compare(int argc, char** argv) {
  CLI::App app("Compares two lists of scores that `ds4-quantize score --tsv` wrote.", "ds4-quantize compare");
  std::string before, after;
  app.add_option("OLD", before, "List of the first model")->required();
  app.add_option("NEW", after, "List of the second one")->required();
  app.footer(
      "\nPrints the mean NLL of both, in how many cases each is ahead, first tokens that match, the mean "
      "length "
      "of\nthe greedy prefix, and the cases that changed most. Lower NLL is better; over a hundred cases a "
      "change "
      "of\none or two per cent means something.\n\nExit status: 0 success, 1 failure, 2 wrong usage.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_usage;
  }
  const auto text = compare(before, after);
  if (text) return print(stdout, *text) ? 0 : exit_failure;
  print(stderr, fmt::format("ds4-quantize: {}\n", text.error().message));
  return exit_failure;
}

}  // namespace ds4::quantize
