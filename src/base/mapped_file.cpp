#include "base/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <system_error>
#include <utility>

#include "base/error.hpp"

namespace ds4 {
namespace {

struct FileDescriptor {
  int value = -1;
  ~FileDescriptor() {
    if (value >= 0) ::close(value);
  }
};

std::string system_message(int error_number) {
  return std::generic_category().message(error_number);
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  if (path.empty()) return fail(ErrorCode::invalid_argument, "the file name is empty");
  // O_NONBLOCK: opening a pipe must report "not a regular file" instead of waiting for a writer.
  const FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.value < 0) {
    const int error_number = errno;
    return fail(error_number == ENOENT ? ErrorCode::not_found : ErrorCode::io, "{}: cannot be opened: {}",
                path, system_message(error_number));
  }
  struct stat status{};
  if (::fstat(file.value, &status) != 0) {
    return fail(ErrorCode::io, "{}: size cannot be read: {}", path, system_message(errno));
  }
  if (S_ISDIR(status.st_mode)) return fail(ErrorCode::io, "{}: is a directory, not a file", path);
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::io, "{}: is not a regular file", path);
  if (status.st_size == 0) return MappedFile(nullptr, 0, path);
  if (static_cast<uintmax_t>(status.st_size) > std::numeric_limits<size_t>::max()) {
    return fail(ErrorCode::unsupported, "{}: {} bytes do not fit the address space", path, status.st_size);
  }
  const auto size = static_cast<size_t>(status.st_size);
  void* const address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (address == MAP_FAILED) {
    return fail(ErrorCode::io, "{}: {} bytes cannot be mapped: {}", path, size, system_message(errno));
  }
  return MappedFile(static_cast<const std::byte*>(address), size, path);
}

MappedFile::MappedFile(const std::byte* data, size_t size, std::string path)
    : data_(data), size_(size), path_(std::move(path)) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  // The old mapping travels to `other` and goes away with it.
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void drop_mapped_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()), end = begin + bytes.size();
  const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
  // A refusal costs memory, not correctness.
  if (first < last) static_cast<void>(::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED));
}

}  // namespace ds4
