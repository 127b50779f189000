#include "trace.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/error.hpp"
#include "server/api/thinking_fields.hpp"

namespace ds4::server {

namespace {

class Writer {
 public:
  Writer(std::string_view what, uint64_t id, const std::string& local_time)
      : text_(fmt::format("\n===== {} {} {} =====\n", what, id, local_time)) {}

  void line(std::string_view name, const auto& value) { text_ += fmt::format("{}: {}\n", name, value); }
  void part(std::string_view name, std::string_view content) {
    text_ += fmt::format("\n--- {} ---\n{}\n", name, content);
  }
  std::string end(std::string_view what, uint64_t id) {
    return std::move(text_) + fmt::format("\n===== end {} {} =====\n", what, id);
  }

 private:
  std::string text_;
};

std::string local_now() {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::time(nullptr)));
}

}  // namespace

std::string trace_begin(const RequestRecord& record, const std::string& local_time) {
  Writer writer("request", record.id, local_time);
  writer.line("kind", record.kind);
  writer.line("model", record.model);
  writer.line("stream", record.stream ? 1 : 0);
  writer.line("thinking", api::name_of(record.thinking));
  writer.line("max_tokens", record.max_tokens);
  writer.line("temperature", record.sampling.temperature);
  writer.line("top_k", record.sampling.top_k);
  writer.line("top_p", record.sampling.top_p);
  writer.line("min_p", record.sampling.min_p);
  writer.line("seed", record.seed);
  writer.line("answers", record.choices);
  writer.line("format", record.format);
  writer.line("tools", fmt::format("{}", fmt::join(record.tools, ", ")));
  if (!record.tools.empty()) writer.line("tool_choice", record.tool_choice);
  writer.line("prompt_tokens", record.usage.prompt_tokens);
  writer.line("cached_tokens", record.usage.cached_tokens);
  writer.line("miss", miss_name(record.miss));
  writer.line("shared_tokens", record.diverged_at);
  writer.line("continues_sampled_text", record.continued_text ? 1 : 0);
  writer.line("disk", disk_result_name(record.disk));
  if (record.disk != DiskResult::unused) writer.line("disk_sec", fmt::format("{:.3f}", record.disk_seconds));
  writer.line("queue_sec", fmt::format("{:.3f}", record.queue_seconds));
  if (!record.kept_text.empty()) {
    writer.part("nearest conversation where it differs", record.kept_text);
    writer.part("this prompt there", record.asked_text);
  }
  writer.part("raw request json", record.body);
  writer.part("rendered prompt", record.prompt);
  return writer.end("request", record.id);
}

std::string trace_end(const RequestRecord& record, const std::string& local_time) {
  Writer writer("answer", record.id, local_time);
  writer.line("outcome", record.outcome);
  if (!record.error.empty()) writer.line("error", record.error);
  writer.line("generated_tokens", record.usage.completion_tokens);
  writer.line("reasoning_tokens", record.usage.reasoning_tokens);
  writer.line("tool_calls", record.tool_calls);
  writer.line("prefill_sec", fmt::format("{:.3f}", record.prefill_seconds));
  writer.line("decode_sec", fmt::format("{:.3f}", record.decode_seconds));
  for (size_t i = 0; i < record.answers.size(); ++i) {
    writer.part(fmt::format("generated text {}: {}", i, record.answers[i].finish), record.answers[i].text);
  }
  return writer.end("answer", record.id);
}

Result<std::unique_ptr<TraceFile>> TraceFile::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    return fail(ErrorCode::io, "cannot write the trace file '{}': {}", path, std::strerror(errno));
  }
  return std::unique_ptr<TraceFile>(new TraceFile(descriptor));
}

TraceFile::~TraceFile() {
  close(descriptor_);
}

bool TraceFile::begin(const RequestRecord& record) {
  return write(trace_begin(record, local_now()));
}

bool TraceFile::end(const RequestRecord& record) {
  const std::string now = local_now();
  return write((record.begun ? "" : trace_begin(record, now)) + trace_end(record, now));
}

bool TraceFile::write(std::string_view text) {
  const std::lock_guard lock(mutex_);
  while (!failed_ && !text.empty()) {
    const ssize_t written = ::write(descriptor_, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      failed_ = true;
    }
  }
  return !failed_;
}

}  // namespace ds4::server
