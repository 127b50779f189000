#include "common/console.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "common/interrupt.hpp"
#include "common/visible_text.hpp"

namespace ds4::cli {
namespace {

const char* program_name = "ds4";

void line_to_stderr(std::string_view style, std::string_view sentence) {
  Writer writer(STDERR_FILENO);
  // A sentence may quote a file or an argument.
  const std::string line =
      fmt::format("{}: ", program_name) + (writer.terminal() ? visible(sentence) : std::string(sentence));
  writer.write((style.empty() ? line : writer.styled(style, line)) + "\n");
}

}  // namespace

Writer::Writer(int descriptor) : descriptor_(descriptor), terminal_(isatty(descriptor) == 1) {}

bool Writer::write(std::string_view bytes) {
  while (error_ == 0 && !bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // a descriptor that someone else made non-blocking
      pollfd ready{descriptor_, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  return error_ == 0;
}

bool Writer::pipe_closed() const {
  return error_ == EPIPE;
}

Error Writer::error(std::string_view name) const {
  return fail(ErrorCode::io, "cannot write to {}: {}", name, std::strerror(error_));
}

std::string Writer::styled(std::string_view style, std::string_view text) const {
  return terminal_ ? fmt::format("\x1b[{}m{}\x1b[0m", style, text) : std::string(text);
}

void set_program_name(const char* name) {
  program_name = name;
}

void say(std::string_view sentence) {
  line_to_stderr("", sentence);
}
void warn(std::string_view sentence) {
  line_to_stderr(style_warning, sentence);
}
void say_error(std::string_view sentence) {
  line_to_stderr(style_error, sentence);
}

Result<std::string> read_all(int descriptor, std::string_view name) {
  // More than the largest context holds; a device or a pipe may have no end.
  constexpr size_t max_bytes = 256u << 20;
  std::string text;
  char buffer[65536];
  while (true) {
    const ssize_t count = ::read(descriptor, buffer, sizeof buffer);
    if (count == 0) return text;
    if (count > 0) {
      text.append(buffer, static_cast<size_t>(count));
      if (text.size() > max_bytes) {
        return fail(ErrorCode::invalid_argument, "{} has more than {} MiB of text", name, max_bytes >> 20);
      }
    } else if (errno != EINTR) {
      return fail(ErrorCode::io, "cannot read {}: {}", name, std::strerror(errno));
    } else if (interrupted()) {
      return fail(ErrorCode::cancelled, "reading {} was stopped", name);
    }
  }
}

Result<std::string> read_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return fail(ErrorCode::io, "cannot open {}: {}", path, std::strerror(errno));
  auto text = read_all(descriptor, path);
  ::close(descriptor);
  return text;
}

}  // namespace ds4::cli
