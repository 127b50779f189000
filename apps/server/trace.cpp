#include "trace.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/error.hpp"

namespace ds4::server {

std::string trace_text(const RequestRecord& record, const std::string& local_time) {
  std::string text = fmt::format("\n===== request {} {} =====\n", record.id, local_time);
  const auto line = [&](std::string_view name, const auto& value) {
    text += fmt::format("{}: {}\n", name, value);
  };
  const auto part = [&](std::string_view name, std::string_view content) {
    text += fmt::format("\n--- {} ---\n{}\n", name, content);
  };
  line("kind", record.kind);
  line("model", record.model);
  line("prompt_tokens", record.usage.prompt_tokens);
  line("cached_tokens", record.usage.cached_tokens);
  line("miss", miss_name(record.miss));
  line("shared_tokens", record.diverged_at);
  line("continues_sampled_text", record.continued_text ? 1 : 0);
  line("generated_tokens", record.usage.completion_tokens);
  line("reasoning_tokens", record.usage.reasoning_tokens);
  line("tool_calls", record.tool_calls);
  line("outcome", record.outcome);
  if (!record.error.empty()) line("error", record.error);
  line("queue_sec", fmt::format("{:.3f}", record.queue_seconds));
  line("prefill_sec", fmt::format("{:.3f}", record.prefill_seconds));
  line("decode_sec", fmt::format("{:.3f}", record.decode_seconds));
  part("raw request json", record.body);
  part("rendered prompt", record.prompt);
  part("generated text", record.generated);
  return text + fmt::format("\n===== end request {} =====\n", record.id);
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

bool TraceFile::write(const RequestRecord& record) {
  const std::string now = fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::time(nullptr)));
  std::string_view rest;
  const std::string text = trace_text(record, now);
  const std::lock_guard lock(mutex_);
  for (rest = text; !failed_ && !rest.empty();) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      failed_ = true;
    }
  }
  return !failed_;
}

}  // namespace ds4::server
