// The help pages, made from the option table.
#include "common/help_page.hpp"
#include "ds4/version.hpp"
#include "options.hpp"

namespace ds4::steer {

std::string help_page(const std::string& topic, bool color) {
  cli::HelpPage page(color);
  if (!topic.empty()) {
    page.line(fmt::format("There is no help topic '{}'; this is the whole page.", topic));
    page.line("");
  }
  page.line(fmt::format("ds4-steer {}: directions that steer a model, and what they do", version));
  page.line("");
  page.line("usage: ds4-steer build --good FILE --bad FILE -o NAME [OPTION...]");
  page.line("       ds4-steer sweep --direction FILE --prompts FILE [-o NAME] [OPTION...]");
  page.options("build: a direction from pairs of prompts", option_table(), Section::build);
  page.options("sweep: answers at several scales, as a table and a chart", option_table(), Section::sweep);
  page.options("Both", option_table(), Section::both);
  page.options("Model and runtime", option_table(), Section::runtime);
  page.title("Examples");
  page.line("    cd examples/steering");
  page.line("    ds4-steer build --good brief.txt --bad plain.txt --component attn --layers 2 -o brief");
  page.line("    ds4-steer sweep --direction brief.f32 --prompts questions.txt --scales -1,0,1,2,3 -o brief");
  page.line("    ds4 --dir-steering-file brief.f32 --dir-steering-attn 3 --nothink     answers of a word");
  page.title("Exit status");
  page.line("    0 success, 1 failure at run time, 2 wrong usage, 130 stopped by Ctrl+C");
  return page.take();
}

std::string short_help() {
  return "usage: ds4-steer build --good FILE --bad FILE -o NAME [OPTION...]\n"
         "       ds4-steer sweep --direction FILE --prompts FILE [-o NAME] [OPTION...]\n"
         "       ds4-steer --help\n";
}

}  // namespace ds4::steer
