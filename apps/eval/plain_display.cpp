#include "plain_display.hpp"

#include <fmt/format.h>

#include "common/visible_text.hpp"

namespace ds4::eval {

void PlainDisplay::show(std::string_view text) {
  if (text.empty()) return;
  output_.write(output_.terminal() ? cli::visible(text, "\n\t") : std::string(text));
  line_open_ = text.back() != '\n';
}

void PlainDisplay::begin_case(const RunState& state) {
  const CaseState& c = state.cases[state.active];
  utf8_ = {};
  const std::string head = fmt::format("[{}/{}] {}/{} {}", state.active + 1, state.cases.size(),
                                       c.item.source, c.item.domain, c.item.title);
  output_.write(fmt::format("\n{}\n", output_.styled(cli::style_cyan, cli::visible(head))));
}

void PlainDisplay::prefill_progress(const RunState&) {}

void PlainDisplay::token(const RunState&, std::string_view bytes, bool reasoning) {
  if (output_.terminal() && reasoning != dimmed_) {
    show(utf8_.flush());
    output_.write(reasoning ? "\x1b[90m" : "\x1b[0m");
    dimmed_ = reasoning;
  }
  show(utf8_.push(bytes));
}

void PlainDisplay::end_case(RunState& state) {
  const CaseState& c = state.cases[state.active];
  show(utf8_.flush());
  if (dimmed_) output_.write("\x1b[0m");
  if (line_open_) output_.write("\n");
  dimmed_ = line_open_ = false;
  if (c.status == Status::skipped) {
    output_.write(fmt::format("SKIPPED: the prompt has {} tokens, the context {}\n", c.prompt_tokens,
                              state.context_tokens));
    return;
  }
  if (c.status == Status::error) {
    output_.write(output_.styled(cli::style_error, cli::visible("ERROR: " + c.error)) + "\n");
    return;
  }
  if (c.status == Status::stopped) {
    output_.write("STOPPED\n");
    return;
  }
  const bool passed = c.status == Status::passed;
  const char* verdict = passed ? "PASSED" : c.status == Status::incomplete ? "INCOMPLETE" : "FAIL";
  output_.write(fmt::format("{} got {} expected {} ({:.1f}s, {} tokens)\n",
                            output_.styled(passed ? cli::style_green : cli::style_error, verdict),
                            cli::visible(c.picked), cli::visible(c.item.answer), c.seconds,
                            c.generated_tokens));
}

Request PlainDisplay::poll(RunState&) {
  Request request;
  if (output_.failed()) request.kind = Request::Kind::stop;
  return request;
}

}  // namespace ds4::eval
