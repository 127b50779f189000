#include "store/file_access.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.hpp"

namespace ds4::store {
namespace {

std::string reason(int number) {
  return std::generic_category().message(number);
}

class FileSource : public ByteSource {
 public:
  FileSource(std::string path, int descriptor, uint64_t size)
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() override { ::close(descriptor_); }

  uint64_t size() const override { return size_; }

  Result<void> read(uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return fail(ErrorCode::io, "{}: cannot read: {}", path_, reason(errno));
      if (got == 0) return fail(ErrorCode::io, "{}: became shorter while it was read", path_);
      out = out.subspan(static_cast<size_t>(got));
      offset += static_cast<uint64_t>(got);
    }
    return {};
  }

 private:
  std::string path_;
  int descriptor_;
  uint64_t size_;
};

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

Result<std::unique_ptr<ByteSource>> open_source(const std::string& path) {
  // A pipe in the place of a file must not make this wait.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const int number = errno;
    return fail(number == ENOENT ? ErrorCode::not_found : ErrorCode::io, "{}: cannot open: {}", path,
                reason(number));
  }
  struct stat status{};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    return fail(ErrorCode::io, "{}: is not a file", path);
  }
  return std::unique_ptr<ByteSource>(
      std::make_unique<FileSource>(path, descriptor, static_cast<uint64_t>(status.st_size)));
}

Result<std::unique_ptr<PendingFile>> PendingFile::create(const std::string& path) {
  std::string temporary = fmt::format("{}.tmp.{}", path, ::getpid());
  ::unlink(temporary.c_str());  // of a process long gone that had the same number
  const int descriptor =
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (descriptor < 0) return fail(ErrorCode::io, "{}: cannot write: {}", temporary, reason(errno));
  return std::unique_ptr<PendingFile>(new PendingFile(path, std::move(temporary), descriptor));
}

PendingFile::~PendingFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!committed_) ::unlink(temporary_.c_str());
}

Error PendingFile::failed(int number, const char* what) const {
  return fail(ErrorCode::io, "{}: cannot {}: {}", path_, what, reason(number));
}

Result<void> PendingFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed(errno, "write");
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return {};
}

Result<void> PendingFile::commit() {
  if (::fsync(descriptor_) != 0) return failed(errno, "write");
  if (::close(std::exchange(descriptor_, -1)) != 0) return failed(errno, "write");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failed(errno, "put in place");
  committed_ = true;
  // The name itself must survive a power failure too. Some file systems cannot do it, and it is there anyway.
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
  return {};
}

}  // namespace ds4::store
