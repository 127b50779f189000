#include "screen_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/visible_text.hpp"
#include "text_tools.hpp"

namespace ds4::eval {
namespace {

constexpr size_t result_columns = 18;  // of "got/expected" in a list entry
constexpr size_t id_columns = 12;      // of an id in the progress line

size_t width_of(utf8proc_int32_t character) {
  return static_cast<size_t>(std::max(0, utf8proc_charwidth(character)));
}

/// As many bytes of `text` as fit into `columns`.
size_t bytes_that_fit(std::string_view text, size_t columns) {
  size_t used = 0, i = 0;
  while (i < text.size()) {
    const cli::Decoded c = cli::decode_at(text, i);
    used += width_of(c.value);
    if (used > columns) break;
    i += c.bytes;
  }
  return i;
}

std::string for_screen(std::string_view text) {
  return cli::visible(replace_all(text, "\t", " "), "\n");
}

/// Hard-wraps a part of a reply.
void add_lines(std::string_view part, bool reasoning, size_t columns, std::vector<OutputLine>& lines) {
  const std::string text = for_screen(part);
  std::string_view rest = trim(text).empty() ? std::string_view() : std::string_view(text);
  while (!rest.empty()) {
    const size_t newline = std::min(rest.size(), rest.find('\n'));
    const std::string_view line = rest.substr(0, newline);
    const size_t fitting = bytes_that_fit(line, columns);
    if (fitting < line.size() && fitting > 0) {
      lines.push_back({std::string(line.substr(0, fitting)), reasoning});
      rest.remove_prefix(fitting);
    } else {
      lines.push_back({std::string(line), reasoning});
      rest.remove_prefix(std::min(rest.size(), newline + 1));
    }
  }
}

/// At most the last `bytes` of a text, from the beginning of a character.
std::string_view last_bytes(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  size_t begin = text.size() - bytes;
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) ++begin;
  return text.substr(begin);
}

}  // namespace

int left_pane_columns(int screen_columns) {
  return std::clamp(screen_columns / 2, 42, 72);
}

size_t columns_of(std::string_view text) {
  size_t columns = 0;
  for (size_t i = 0; i < text.size();) {
    const cli::Decoded c = cli::decode_at(text, i);
    columns += width_of(c.value);
    i += c.bytes;
  }
  return columns;
}

std::string fit(std::string_view text, size_t columns) {
  std::string shown = cli::visible(text);
  if (columns_of(shown) <= columns) return shown;
  if (columns < 3) return std::string(columns, '.');
  return shown.substr(0, bytes_that_fit(shown, columns - 3)) + "...";
}

std::string pad(std::string_view text, size_t columns) {
  std::string shown = fit(text, columns);
  shown.append(columns - std::min(columns, columns_of(shown)), ' ');
  return shown;
}

std::vector<std::string> preview(std::string_view text, size_t columns, size_t lines) {
  std::vector<std::string> result;
  const std::string collapsed = cli::visible(collapse(text));
  std::string_view rest = collapsed;
  while (result.size() + 1 < lines && !rest.empty()) {
    const size_t bytes = std::max<size_t>(1, bytes_that_fit(rest, columns));
    result.emplace_back(rest.substr(0, bytes));
    rest.remove_prefix(bytes);
  }
  if (!rest.empty() && lines > 0) result.push_back(fit(rest, columns));
  return result;
}

std::string short_count(uint64_t count) {
  if (count >= 1000000) return fmt::format("{}m", count / 1000000);
  if (count >= 10000) return fmt::format("{}k", count / 1000);
  return fmt::to_string(count);
}

std::string_view short_status(Status status) {
  switch (status) {
    case Status::pending:
      return "PEND";
    case Status::prefill:
      return "FILL";
    case Status::running:
      return "RUN ";
    case Status::skipped:
      return "SKIP";
    case Status::stopped:
      return "STOP";
    case Status::passed:
      return "PASS";
    case Status::failed:
      return "FAIL";
    case Status::incomplete:
      return "INCO";
    case Status::error:
      return "ERR ";
  }
  return "";
}

std::vector<OutputLine> output_tail(std::string_view output, bool thinking, size_t columns, size_t lines) {
  static constexpr std::string_view open = "<think>", close = "</think>";
  // A character takes at most four bytes, and combining ones are rare: enough for the lines that are shown.
  const size_t enough = columns * lines * 8;
  const size_t found = thinking ? output.find(close) : std::string_view::npos;
  std::string_view reasoning = thinking ? output.substr(0, found) : std::string_view();
  std::string_view answer;
  if (!thinking) answer = output;
  if (found != std::string_view::npos) answer = output.substr(found + close.size());
  if (reasoning.starts_with(open)) reasoning.remove_prefix(open.size());
  std::vector<OutputLine> result;
  add_lines(last_bytes(reasoning, enough), true, columns, result);
  add_lines(last_bytes(answer, enough), false, columns, result);
  if (result.size() > lines) result.erase(result.begin(), result.end() - static_cast<ptrdiff_t>(lines));
  return result;
}

std::string progress_line(const RunState& state) {
  const CaseState& c = state.cases[state.active];
  const bool decoding = c.status == Status::running;
  const double seconds = decoding ? state.clock.seconds() - state.decode_begin_seconds : c.decode_seconds;
  const double speed = seconds > 0 ? static_cast<double>(c.generated_tokens) / seconds : 0;
  const std::string name = fmt::format("{}/{}", c.item.source, fit(c.item.id, id_columns));
  if (c.status == Status::prefill) {
    const double percent = state.prefill_total > 0 ? 100.0 * static_cast<double>(state.prefill_done) /
                                                         static_cast<double>(state.prefill_total)
                                                   : 0;
    return fmt::format("Speed {:.2f} t/s  FILL {}/{} {:.0f}%  {}", speed, short_count(state.prefill_done),
                       short_count(state.prefill_total), percent, name);
  }
  uint64_t most = c.limit_tokens;
  std::string phase(trim(short_status(c.status)));
  if (decoding) {
    phase = state.thinking ? "THINK" : "ANS";
    if (state.thinking && most > state.hard_limit_tokens) most -= state.hard_limit_tokens;
  }
  return fmt::format("Speed {:.2f} t/s  {} {}/{}  {}", speed, phase, short_count(c.generated_tokens),
                     short_count(most), name);
}

std::string case_line(const CaseState& c, size_t number, bool selected, size_t columns) {
  const std::string head = fmt::format("{}{:>2} {} ", selected ? '>' : ' ', number, short_status(c.status));
  const bool graded =
      c.status == Status::passed || c.status == Status::failed || c.status == Status::incomplete;
  const std::string title = c.item.source + ": " + c.item.title;
  const size_t rest = columns - std::min(columns, head.size());
  if (!graded || rest <= result_columns) return head + pad(title, rest);
  // Both answers get half of the room; what one does not need the other may have.
  const std::string& got = c.picked;
  const std::string& expected = c.item.answer;
  const size_t room = result_columns - 1, half = room / 2;
  const size_t got_columns = std::max(half, room - std::min(room, columns_of(expected)));
  const std::string got_text = fit(got, got_columns);
  const std::string result = got_text + "/" + fit(expected, room - columns_of(got_text));
  const std::string blanks(result_columns - std::min(result_columns, columns_of(result)), ' ');
  return head + pad(title, rest - result_columns - 1) + " " + blanks + result;
}

size_t list_begin(size_t selected, size_t count, size_t visible) {
  if (count <= visible) return 0;
  const size_t half = visible / 2;
  return std::min(count - visible, selected > half ? selected - half : 0);
}

}  // namespace ds4::eval
