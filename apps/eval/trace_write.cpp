#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "extract.hpp"
#include "text_tools.hpp"
#include "trace.hpp"

namespace ds4::eval {
namespace {

void add_line(std::string& out, std::string_view name, std::string_view value) {
  out += fmt::format("{}: {}\n", name, collapse(value));
}

void add_block(std::string& out, std::string_view label, std::string_view content) {
  out += fmt::format("{}_BEGIN bytes={}\n{}{}{}_END\n", label, content.size(), content,
                     content.ends_with('\n') ? "" : "\n", label);
}

}  // namespace

std::string format_trace_header(const TraceHeader& header) {
  std::string out = "# ds4-eval trace, format 1: blocks have byte counts\n";
  for (const auto& [name, value] : header) add_line(out, name, value);
  return out + "\n";
}

std::string format_trace_case(const TraceCase& c) {
  std::string out = fmt::format("===== CASE {}/{} {}/{} =====\n", c.number, c.total, c.source, c.id);
  add_line(out, "timestamp_unix", fmt::to_string(c.timestamp_unix));
  add_line(out, "source", c.source);
  add_line(out, "id", c.id);
  add_line(out, "domain", c.domain);
  add_line(out, "title", c.title);
  add_line(out, "status", c.status);
  add_line(out, "picked", c.picked.empty() ? no_answer : std::string_view(c.picked));
  add_line(out, "expected", c.expected);
  add_line(out, "prompt_tokens", fmt::to_string(c.prompt_tokens));
  add_line(out, "generated_tokens", fmt::to_string(c.generated_tokens));
  add_line(out, "elapsed_sec", fmt::format("{:.3f}", c.elapsed_seconds));
  add_line(out, "temperature", fmt::to_string(c.temperature));
  add_line(out, "top_p", fmt::to_string(c.top_p));
  add_line(out, "min_p", fmt::to_string(c.min_p));
  add_line(out, "think_mode_effective", c.think_mode);
  add_line(out, "think_close", close_name(c.close.kind));
  if (c.close.kind != CloseKind::none) {
    add_line(out, "think_close_token_index", fmt::to_string(c.close.token_index));
    add_line(out, "think_close_remaining_budget", fmt::to_string(c.close.remaining_tokens));
    add_line(out, "think_close_rank", fmt::to_string(c.close.rank));
  }
  if (!c.error.empty()) add_line(out, "error", c.error);
  if (c.choices.empty()) {
    add_line(out, "answer_kind", c.answer_kind);
  } else {
    out += "choices:\n";
    for (size_t i = 0; i < c.choices.size(); ++i) {
      out += fmt::format("  {}. {}\n", static_cast<char>('A' + i), collapse(c.choices[i]));
    }
  }
  add_block(out, "SYSTEM_PROMPT", c.system_prompt);
  add_block(out, "QUESTION_PROMPT", c.question_prompt);
  if (c.model_output) add_block(out, "MODEL_OUTPUT", *c.model_output);
  return out + "\n";
}

std::string format_trace_summary(uint64_t passed, uint64_t failed, uint64_t total) {
  return fmt::format("===== SUMMARY =====\npassed: {}\nfailed: {}\ntotal: {}\n", passed, failed, total);
}

Result<TraceFile> TraceFile::create(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) return fail(ErrorCode::io, "cannot write {}: {}", path, std::strerror(errno));
  return TraceFile(descriptor, path);
}

Result<void> TraceFile::write(std::string_view text) {
  if (!writer_.write(text)) return writer_.error(path_);
  return {};
}

}  // namespace ds4::eval
