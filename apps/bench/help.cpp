// The help pages, made from the option table.
#include "common/help_page.hpp"
#include "ds4/version.hpp"
#include "options.hpp"

namespace ds4::bench {
namespace {

void add_benchmark(cli::HelpPage& page) {
  page.options("Benchmark", option_table(), Section::benchmark);
  page.options("Output", option_table(), Section::output);
}

}  // namespace

std::string help_page(const std::string& topic, bool color) {
  cli::HelpPage page(color);
  if (topic == "runtime") {
    page.options("Model and runtime", option_table(), Section::runtime);
    return page.take().substr(1);  // without the empty line before the title
  }
  if (topic == "benchmark") {
    add_benchmark(page);
    return page.take().substr(1);
  }
  if (!topic.empty() && topic != "all") {
    page.line(fmt::format("There is no help topic '{}'. Topics: runtime, benchmark, all.", topic));
    page.line("");
  }
  page.line(fmt::format("ds4-bench {}: speed of prefill and decoding at growing context lengths", version));
  page.line("");
  page.line("usage: ds4-bench [OPTION...]     rows of comma-separated values on standard output");
  add_benchmark(page);
  page.options("Model and runtime", option_table(), Section::runtime);
  page.title("More");
  page.entry("--help TOPIC", "runtime, benchmark, or all");
  page.entry("ds4-bench-plot", "draws the rows (ds4-bench-plot --help)");
  page.title("Examples");
  page.line("    ds4-bench -m ds4flash.gguf --ctx-max 65536 --csv my_machine.csv --json my_machine.json");
  page.line("    ds4-bench --ctx-start 1024 --ctx-max 131072 --step-mul 2 --gen-tokens 64 --bandwidth");
  page.line("    ds4-bench-plot my_machine.csv other_machine.csv -o compared.svg");
  page.title("Exit status");
  page.line("    0 success, 1 failure at run time, 2 wrong usage, 130 stopped by Ctrl+C");
  return page.take();
}

std::string short_help() {
  return "usage: ds4-bench [-m FILE] [--prompt-file FILE] [--ctx-start N] [--ctx-max N] [--step-incr N] ...\n"
         "       ds4-bench --help [runtime|benchmark|all]\n";
}

}  // namespace ds4::bench
