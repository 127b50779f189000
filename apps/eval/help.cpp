// The help pages, made from the option table.
#include "common/help_page.hpp"
#include "ds4/version.hpp"
#include "options.hpp"

namespace ds4::eval {
namespace {

void add_evaluation(cli::HelpPage& page) {
  page.options("Questions", option_table(), Section::cases);
  page.options("Evaluation", option_table(), Section::evaluation);
  page.options("Output", option_table(), Section::output);
}

}  // namespace

std::string help_page(const std::string& topic, bool color) {
  cli::HelpPage page(color);
  const auto alone = [&] { return page.take().substr(1); };  // without the empty line before the title
  if (topic == "runtime") {
    page.options("Model and runtime", option_table(), Section::runtime);
    return alone();
  }
  if (topic == "sampling") {
    page.options("Sampling", option_table(), Section::sampling);
    return alone();
  }
  if (topic == "evaluation") {
    add_evaluation(page);
    return alone();
  }
  if (!topic.empty() && topic != "all") {
    page.line(fmt::format("There is no help topic '{}'. Topics: runtime, sampling, evaluation, all.", topic));
    page.line("");
  }
  page.line(
      fmt::format("ds4-eval {}: asks a model questions with known answers and grades what it says", version));
  page.line("");
  page.line("usage: ds4-eval [OPTION...]");
  add_evaluation(page);
  page.options("Sampling", option_table(), Section::sampling);
  page.options("Model and runtime", option_table(), Section::runtime);
  page.title("Keys on the split screen");
  page.entry("p", "pause and go on");
  page.entry("q", "stop and show the report");
  page.entry("Up, Down", "select a question");
  page.entry("Enter", "ask the selected question next, leaving the one that is running");
  page.title("More");
  page.entry("--help TOPIC", "runtime, sampling, evaluation, or all");
  page.title("Examples");
  page.line("    ds4-eval -m ds4flash.gguf --trace run.trace");
  page.line("    ds4-eval -m ds4flash.gguf --plain --questions 4 --tokens 2048 --temp 0 --seed 1");
  page.line("    ds4-eval --suite nano --plain --nothink");
  page.line("    ds4-eval --regrade-trace run.trace");
  page.title("Exit status");
  page.line("    0 all passed, 1 some failed or an error at run time, 2 wrong usage, 130 stopped by Ctrl+C");
  return page.take();
}

std::string short_help() {
  return "usage: ds4-eval [-m FILE] [--suite NAME] [--questions N] [--plain] [--trace FILE] ...\n"
         "       ds4-eval --help [runtime|sampling|evaluation|all]\n";
}

}  // namespace ds4::eval
