#include <charconv>
#include <cstdlib>

#include "extract.hpp"
#include "text_tools.hpp"
#include "trace.hpp"

namespace ds4::eval {
namespace {

constexpr size_t longest_label = 96;
constexpr std::string_view case_begin = "===== CASE ", line_end = " =====";

/// The whole text as a number; nothing for anything else.
std::optional<uint64_t> number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

struct Block {
  std::string_view label, content;
  size_t next = 0;  // the position after it
};

/// The text without its last line break, and whether `marker` stands as a line at `position`.
bool line_is(std::string_view text, size_t position, std::string_view marker) {
  if (position > text.size() || text.substr(position, marker.size()) != marker) return false;
  const size_t end = position + marker.size();
  return end == text.size() || text[end] == '\n';
}

/// The block that the line at `position` begins, if its end is where it must be.
std::optional<Block> read_block(std::string_view text, size_t position) {
  const size_t newline = text.find('\n', position);
  if (newline == std::string_view::npos) return {};
  const std::string_view line = text.substr(position, newline - position);
  const size_t begin_word = line.find("_BEGIN");
  if (begin_word == std::string_view::npos || begin_word == 0 || begin_word > longest_label) return {};
  Block block;
  block.label = line.substr(0, begin_word);
  if (block.label.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != std::string_view::npos) return {};
  const std::string marker = std::string(block.label) + "_END";
  const std::string_view rest = line.substr(begin_word + 6);
  const size_t content = newline + 1;
  size_t end = 0;  // of the content
  size_t marker_at = 0;
  if (rest.empty()) {  // no count: the first line that is the marker
    for (marker_at = content; !line_is(text, marker_at, marker);) {
      const size_t next = text.find('\n', marker_at);
      if (next == std::string_view::npos) return {};
      marker_at = next + 1;
    }
    end = marker_at > content ? marker_at - 1 : marker_at;
  } else {
    static constexpr std::string_view count_name = " bytes=";
    if (!rest.starts_with(count_name)) return {};
    const auto bytes = number(rest.substr(count_name.size()));
    if (!bytes || *bytes > text.size() - content) return {};
    end = content + *bytes;
    marker_at = end;
    if (!line_is(text, marker_at, marker)) {
      if (end >= text.size() || text[end] != '\n' || !line_is(text, ++marker_at, marker)) return {};
    }
  }
  block.content = text.substr(content, end - content);
  block.next = std::min(text.size(), marker_at + marker.size() + 1);
  return block;
}

/// "CASE 3/92 source/id"; the rest of the line repeats what the fields say.
void read_numbers(std::string_view line, TraceCase& c) {
  line = line.substr(case_begin.size());
  const size_t slash = line.find('/');
  const size_t space = line.find(' ');
  if (slash == std::string_view::npos || space == std::string_view::npos || slash > space) return;
  c.number = number(line.substr(0, slash)).value_or(0);
  c.total = number(line.substr(slash + 1, space - slash - 1)).value_or(0);
}

CloseKind close_kind(std::string_view name) {
  for (const CloseKind kind : {CloseKind::natural, CloseKind::soft_forced, CloseKind::hard_forced}) {
    if (close_name(kind) == name) return kind;
  }
  return CloseKind::none;
}

void read_field(std::string_view line, TraceCase& c) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || is_space(line.front())) return;
  const std::string_view name = line.substr(0, colon);
  const std::string value(trim(line.substr(colon + 1)));
  const auto text = [&](std::string_view wanted, std::string& target) {
    if (name == wanted) target = value;
  };
  const auto count = [&](std::string_view wanted, uint64_t& target) {
    if (name == wanted) target = number(value).value_or(0);
  };
  text("source", c.source);
  text("id", c.id);
  text("domain", c.domain);
  text("title", c.title);
  text("status", c.status);
  text("picked", c.picked);
  text("expected", c.expected);
  text("think_mode_effective", c.think_mode);
  text("error", c.error);
  text("answer_kind", c.answer_kind);
  count("timestamp_unix", c.timestamp_unix);
  count("prompt_tokens", c.prompt_tokens);
  count("generated_tokens", c.generated_tokens);
  count("think_close_token_index", c.close.token_index);
  count("think_close_remaining_budget", c.close.remaining_tokens);
  count("think_close_rank", c.close.rank);
  if (name == "elapsed_sec") c.elapsed_seconds = std::strtod(value.c_str(), nullptr);
  if (name == "think_close") c.close.kind = close_kind(value);
}

}  // namespace

std::vector<TraceCase> parse_trace(std::string_view text) {
  std::vector<TraceCase> cases;
  bool in_case = false;
  for (size_t position = 0; position < text.size();) {
    if (const auto block = read_block(text, position)) {
      if (in_case && block->label == "MODEL_OUTPUT") cases.back().model_output = block->content;
      if (in_case && block->label == "SYSTEM_PROMPT") cases.back().system_prompt = block->content;
      if (in_case && block->label == "QUESTION_PROMPT") cases.back().question_prompt = block->content;
      position = block->next;
      continue;
    }
    const size_t newline = std::min(text.size(), text.find('\n', position));
    std::string_view line = text.substr(position, newline - position);
    position = newline + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("===== ") && line.ends_with(line_end)) {
      in_case = line.starts_with(case_begin);
      if (!in_case) continue;
      read_numbers(line, cases.emplace_back());
    } else if (in_case && !line.empty()) {
      read_field(line, cases.back());
    }
  }
  return cases;
}

}  // namespace ds4::eval
