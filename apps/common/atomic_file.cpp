#include "common/atomic_file.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.hpp"

namespace ds4::cli {
namespace {

/// Standard output or error where that is the existing file `wanted`, else -1. By its descriptor, not its
/// name: others may write to the same file, and "/dev/stdout" cannot be opened where it is a socket.
int standard_descriptor(const struct stat& wanted) {
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat status{};
    const bool same =
        ::fstat(descriptor, &status) == 0 && status.st_dev == wanted.st_dev && status.st_ino == wanted.st_ino;
    if (same) return descriptor;
  }
  return -1;
}

}  // namespace

Result<void> check_not_read(const std::string& output, std::span<const std::string> inputs) {
  struct stat written{}, read{};
  if (output.empty() || ::stat(output.c_str(), &written) != 0 || !S_ISREG(written.st_mode)) return {};
  for (const std::string& input : inputs) {
    if (!input.empty() && ::stat(input.c_str(), &read) == 0 && read.st_dev == written.st_dev &&
        read.st_ino == written.st_ino)
      return fail(ErrorCode::invalid_argument, "{} is a file that is read, and will not be replaced", output);
  }
  return {};
}

AtomicFile::AtomicFile(int descriptor, std::string path, std::string temporary)
    : descriptor_(descriptor),
      path_(std::move(path)),
      temporary_(std::move(temporary)),
      writer_(descriptor) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      writer_(other.writer_) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  struct stat status{};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  const int standard = exists ? standard_descriptor(status) : -1;
  if (standard >= 0 || (exists && !S_ISREG(status.st_mode))) {
    const int descriptor =
        standard >= 0 ? ::fcntl(standard, F_DUPFD_CLOEXEC, 0) : ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) return fail(ErrorCode::io, "cannot write {}: {}", path, std::strerror(errno));
    return AtomicFile(descriptor, path, "");
  }
  if (!exists && ::lstat(path.c_str(), &status) == 0) {
    return fail(ErrorCode::io, "cannot write {}: a symbolic link that leads nowhere", path);
  }
  // Renaming replaces a symbolic link, so follow it first.
  std::string target = path;
  if (char* resolved = exists ? ::realpath(path.c_str(), nullptr) : nullptr) {
    target = resolved;
    ::free(resolved);
  }
  std::string temporary = target + ".XXXXXX";
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (descriptor < 0) return fail(ErrorCode::io, "cannot write {}: {}", path, std::strerror(errno));
  // mkostemp gives 0600; a new file gets the usual permissions, an existing one keeps its own.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (::fchmod(descriptor, exists ? status.st_mode & 07777 : 0666 & ~mask) != 0) {
    ::close(descriptor);
    ::unlink(temporary.c_str());
    return fail(ErrorCode::io, "cannot write {}: {}", path, std::strerror(errno));
  }
  return AtomicFile(descriptor, std::move(target), std::move(temporary));
}

Result<void> AtomicFile::write(std::string_view bytes) {
  if (!writer_.write(bytes)) return writer_.error(path_);
  return {};
}

Result<void> AtomicFile::commit() {
  if (writer_.failed()) return writer_.error(path_);
  const bool closed = ::close(std::exchange(descriptor_, -1)) == 0;
  const bool renamed = closed && (temporary_.empty() || ::rename(temporary_.c_str(), path_.c_str()) == 0);
  if (!renamed) return fail(ErrorCode::io, "cannot write {}: {}", path_, std::strerror(errno));
  temporary_.clear();
  return {};
}

}  // namespace ds4::cli
