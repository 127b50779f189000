// The help pages, made from the option table.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "common/help_page.hpp"
#include "ds4/version.hpp"
#include "option_table.hpp"
#include "options.hpp"

namespace ds4::cli {
namespace {

struct SectionText {
  Section section;
  const char* topic;
  const char* title;
};
constexpr SectionText sections[] = {
    {Section::prompt, "", "Prompt"},
    {Section::runtime, "runtime", "Model and runtime"},
    {Section::sampling, "sampling", "Sampling"},
    {Section::diagnostics, "diagnostics", "Diagnostics (instead of an answer)"},
};

struct Command {
  const char* name;
  const char* help;
};
constexpr Command commands[] = {
    {"/help", "show this list"},
    {"/think", "reason before answering"},
    {"/think-max", "reason with the longest effort"},
    {"/nothink", "answer directly"},
    {"/ctx N", "change the context size; the conversation is kept"},
    {"/steer F", "remove F times the steering direction from now on (--dir-steering-file)"},
    {"/read FILE", "send the content of a file as the next message"},
    {"/save FILE", "write the conversation and its state to a file"},
    {"/load FILE", "go on with the conversation in a file"},
    {"/quit, /exit", "leave (so does Ctrl+D)"},
};
constexpr Command keys[] = {
    {"Enter", "send the message"},
    {"Alt+Enter, \\ Enter", "begin a new line of the message"},
    {"Ctrl+C", "discard the line; stop a running answer"},
    {"Up, Down, Ctrl+P/N", "earlier and later messages"},
    {"Ctrl+R", "search in earlier messages"},
    {"Home, End, Ctrl+A/E", "begin and end of the line"},
    {"Alt+B/F, Ctrl+Left/Right", "word by word"},
    {"Ctrl+K/U/W, Alt+D", "cut to the end, to the begin, a word back, a word ahead"},
    {"Ctrl+Y", "insert what was cut"},
    {"Ctrl+L", "clear the screen"},
};

void add_section(HelpPage& page, const SectionText& section) {
  page.options(section.title, option_table(), section.section);
}

void add_commands(HelpPage& page) {
  page.title("Commands of a conversation");
  for (const Command& c : commands) page.entry(c.name, c.help);
  page.title("Keys");
  for (const Command& k : keys) page.entry(k.name, k.help);
}

void add_header(HelpPage& page) {
  page.line(fmt::format("ds4 {}: runs DeepSeek V4 models on this machine", version));
  page.line("");
  page.line("usage: ds4 [OPTION...]                a conversation (on a terminal)");
  page.line(
      "       ds4 [OPTION...] -p TEXT        one answer on standard output, everything else on standard "
      "error");
  page.line("       ds4 [OPTION...] < FILE         the same with the prompt from standard input");
}

void add_footer(HelpPage& page) {
  page.title("More");
  page.entry("--help TOPIC", "runtime, sampling, diagnostics, commands, or all");
  page.title("Examples");
  page.line("    ds4 -p \"What is the capital of Japan?\" --nothink --temp 0");
  page.line("    ds4 --prompt-file question.txt --ctx 393216 --think-max");
  page.line("    ds4 --dump-logprobs out.json -n 4 --nothink -sys \"\" --prompt-file question.txt");
  page.title("Exit status");
  page.line("    0 success, 1 failure at run time, 2 wrong usage, 130 stopped by Ctrl+C");
}

}  // namespace

std::string help_page(const std::string& topic, bool color) {
  HelpPage page(color);
  const auto* section = std::find_if(std::begin(sections), std::end(sections), [&](const SectionText& s) {
    return s.topic[0] != '\0' && topic == s.topic;
  });
  if (section != std::end(sections)) {
    add_section(page, *section);
    return page.take().substr(1);  // without the empty line before the title
  }
  if (topic == "commands") {
    add_commands(page);
    return page.take().substr(1);
  }
  const bool all = topic == "all";
  if (!topic.empty() && !all) {
    page.line(fmt::format(
        "There is no help topic '{}'. Topics: runtime, sampling, diagnostics, commands, all.", topic));
    page.line("");
  }
  add_header(page);
  for (const SectionText& s : sections) {
    if (all || s.section != Section::diagnostics) add_section(page, s);
  }
  if (all) add_commands(page);
  add_footer(page);
  return page.take();
}

std::string short_help() {
  return "usage: ds4 [-m FILE] [-p TEXT | --prompt-file FILE] [-n N] [-c N] [--temp F] [--nothink] ...\n"
         "       ds4 --help [runtime|sampling|diagnostics|commands|all]\n";
}

std::string command_list() {
  std::string text;
  for (const Command& c : commands) text += fmt::format("  {:<14}{}\n", c.name, c.help);
  return text;
}

}  // namespace ds4::cli
