#include "console.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"

namespace ds4::cli {
namespace {

void line_to_stderr(std::string_view style, std::string_view sentence) {
  Writer writer(STDERR_FILENO);
  const std::string line = fmt::format("ds4: {}", sentence);
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
  std::string text;
  char buffer[65536];
  while (true) {
    const ssize_t count = ::read(descriptor, buffer, sizeof buffer);
    if (count == 0) return text;
    if (count > 0) {
      text.append(buffer, static_cast<size_t>(count));
    } else if (errno != EINTR) {
      return fail(ErrorCode::io, "cannot read {}: {}", name, std::strerror(errno));
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
