#include "store/store_files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.hpp"

namespace ds4::store {
namespace {

constexpr mode_t folder_mode = 0700;
constexpr mode_t file_mode = 0600;

constexpr std::array kinds{FileKind::segment, FileKind::frontier, FileKind::reply};

std::string_view folder_name(FileKind kind) {
  switch (kind) {
    case FileKind::segment:
      return "segments";
    case FileKind::frontier:
      return "frontiers";
    case FileKind::reply:
      return "replies";
  }
  return "";
}

std::string_view suffix(FileKind kind) {
  switch (kind) {
    case FileKind::segment:
      return ".seg";
    case FileKind::frontier:
      return ".fr";
    case FileKind::reply:
      return ".rp";
  }
  return "";
}

constexpr std::string_view pin_suffix = ".pin";
constexpr std::array<std::string_view, 4> subfolders{"segments", "frontiers", "replies", "tmp"};

/// Calls `visit(name)` for every entry but those that begin with a dot. What is no folder has none.
Result<void> for_each_entry(const std::string& path,
                            const std::function<Result<void>(const std::string&)>& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
  if (!folder && (errno == ENOENT || errno == ENOTDIR)) return {};
  if (!folder) return system_error("cannot read", path, errno);
  while (true) {
    errno = 0;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody else reads this stream
    const dirent* entry = readdir(folder.get());
    if (entry == nullptr && errno != 0) return system_error("cannot read", path, errno);
    if (entry == nullptr) return {};
    if (entry->d_name[0] != '.') DS4_TRY(visit(entry->d_name));
  }
}

/// The size of a regular file; nothing for anything else, with `errno` 0 if that is known.
std::optional<uint64_t> regular_size(const std::string& path) {
  errno = 0;
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return static_cast<uint64_t>(status.st_size);
}

Result<void> make_folder(const std::string& path) {
  if (mkdir(path.c_str(), folder_mode) == 0 || errno == EEXIST) return {};
  return system_error("cannot create", path, errno);
}

/// Its permissions, if it is a folder that belongs to us and that only we can write to.
Result<mode_t> check_own_folder(const std::string& path) {
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0) return system_error("cannot read", path, errno);
  if (!S_ISDIR(status.st_mode)) return fail(ErrorCode::invalid_argument, "{} is not a folder", path);
  if (status.st_uid != geteuid()) {
    return fail(ErrorCode::invalid_argument, "{} belongs to another user: it cannot hold a disk cache", path);
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return fail(ErrorCode::invalid_argument,
                "others can write to {}: it cannot hold a disk cache (chmod 700 makes it private)", path);
  }
  return status.st_mode & 07777;
}

/// The place of the cache: a folder of ours, or one that may become it.
Result<void> check_root(const std::string& root) {
  DS4_ASSIGN(const mode_t mode, check_own_folder(root));
  struct stat status{};
  const bool ours = StoreFolder::is_one(root);
  if (!ours && lstat((root + "/index.sqlite").c_str(), &status) == 0) {
    return fail(ErrorCode::invalid_argument, "{} holds the index.sqlite of something else than a disk cache",
                root);
  }
  if ((mode & (S_IRWXG | S_IRWXO)) == 0) return {};
  std::error_code problem;
  if (!ours && !std::filesystem::is_empty(root, problem)) {
    return fail(ErrorCode::invalid_argument,
                "{} holds other files and others can read it: give the disk cache a folder of its own", root);
  }
  if (chmod(root.c_str(), folder_mode) != 0) return system_error("cannot make private", root, errno);
  return {};
}

/// `visit` gets the names in the 256 folders of a kind.
Result<void> for_each_file(
    const std::string& root, FileKind kind,
    const std::function<Result<void>(const std::string& folder, const std::string& name)>& visit) {
  const std::string top = fmt::format("{}/{}", root, folder_name(kind));
  return for_each_entry(top, [&](const std::string& middle) -> Result<void> {
    if (middle.size() != 2) return {};
    const std::string folder = top + "/" + middle;
    return for_each_entry(folder, [&](const std::string& name) { return visit(folder, name); });
  });
}

std::optional<Hash128> hash_in_name(const std::string& folder, std::string_view name, std::string_view end) {
  if (!name.ends_with(end)) return std::nullopt;
  const auto hash = Hash128::from_hex(name.substr(0, name.size() - end.size()));
  // In the folder of another hash nobody would look for it.
  if (!hash || !folder.ends_with(hash->hex().substr(0, 2))) return std::nullopt;
  return hash;
}

}  // namespace

Error system_error(const char* what, const std::string& path, int number) {
  const ErrorCode code = number == ENOENT ? ErrorCode::not_found : ErrorCode::io;
  return fail(code, "{} {}: {}", what, path, std::generic_category().message(number));
}

bool is_damage(const Error& error) {
  return error.code == ErrorCode::format || error.code == ErrorCode::unsupported;
}

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this == &other) return *this;
  close();
  number_ = std::exchange(other.number_, -1);
  return *this;
}

void Descriptor::close() {
  if (number_ >= 0) ::close(std::exchange(number_, -1));
}

Result<InputFile> InputFile::open(const std::string& path) {
  InputFile file;
  file.path = path;
  file.descriptor = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.descriptor.valid() && errno == ELOOP) return fail(ErrorCode::format, "{} is a link", path);
  if (!file.descriptor.valid()) return system_error("cannot open", path, errno);
  struct stat status{};
  if (fstat(file.descriptor.get(), &status) != 0) return system_error("cannot read", path, errno);
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::format, "{} is not a regular file", path);
  file.bytes = static_cast<uint64_t>(status.st_size);
  return file;
}

Result<void> InputFile::read(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = pread(descriptor.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("cannot read", path, errno);
    if (count == 0) return fail(ErrorCode::format, "{} ends too early", path);
    out = out.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return {};
}

Result<std::vector<std::byte>> InputFile::read_header(FileKind kind) const {
  std::array<std::byte, preamble_bytes> preamble;
  DS4_TRY(read(0, preamble));
  DS4_ASSIGN(const size_t length, parse_preamble(kind, preamble, bytes));
  std::vector<std::byte> header(length);
  DS4_TRY(read(0, header));
  return header;
}

Result<OutputFile> OutputFile::create(const std::string& temporary_path) {
  unlink(temporary_path.c_str());
  Descriptor descriptor(
      ::open(temporary_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, file_mode));
  if (!descriptor.valid()) return system_error("cannot create", temporary_path, errno);
  return OutputFile(std::move(descriptor), temporary_path);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : descriptor_(std::move(other.descriptor_)), path_(std::exchange(other.path_, {})) {}

OutputFile::~OutputFile() {
  if (!path_.empty()) unlink(path_.c_str());
}

Result<void> OutputFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = pwrite(descriptor_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("cannot write", path_, errno);
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return {};
}

Result<void> OutputFile::commit(const std::string& path) {
  if (fsync(descriptor_.get()) != 0) return system_error("cannot write", path_, errno);
  if (rename(path_.c_str(), path.c_str()) != 0) return system_error("cannot write", path, errno);
  path_.clear();
  descriptor_.close();
  return {};
}

Result<void> sync_folder(const std::string& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || fsync(folder.get()) != 0) return system_error("cannot write", path, errno);
  return {};
}

Result<WriterLock> WriterLock::acquire(const std::string& path, std::chrono::milliseconds patience) {
  Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, file_mode));
  if (!descriptor.valid()) return system_error("cannot open", path, errno);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (flock(descriptor.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return system_error("cannot lock", path, errno);
    if (std::chrono::steady_clock::now() >= deadline) {
      return fail(ErrorCode::io, "another process has been writing for too long, by the lock {}", path);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return WriterLock(std::move(descriptor));
}

bool StoreFolder::is_one(const std::string& root) {
  struct stat status{};
  size_t parts = lstat((root + "/lock").c_str(), &status) == 0 && S_ISREG(status.st_mode) ? 1 : 0;
  for (const std::string_view name : subfolders) {
    const std::string folder = fmt::format("{}/{}", root, name);
    if (lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) ++parts;
  }
  return parts >= 2;
}

Result<StoreFolder> StoreFolder::open(const std::string& root) {
  std::error_code problem;
  const std::filesystem::path path(root);
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), problem);
  DS4_TRY(make_folder(root));
  const std::unique_ptr<char, void (*)(void*)> resolved(realpath(root.c_str(), nullptr), std::free);
  if (!resolved) return system_error("cannot open", root, errno);
  const std::string place = resolved.get();
  DS4_TRY(prepare(place));
  return StoreFolder(place);
}

Result<void> StoreFolder::prepare(const std::string& place) {
  DS4_TRY(check_root(place));
  const std::string lock = place + "/lock";
  const Descriptor made(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, file_mode));
  if (!made.valid()) return system_error("cannot create", lock, errno);
  for (const std::string_view name : subfolders) {
    const std::string folder = fmt::format("{}/{}", place, name);
    DS4_TRY(make_folder(folder));
    DS4_TRY(check_own_folder(folder));
  }
  return sync_folder(place);
}

Result<void> StoreFolder::restore() const {
  const bool complete = std::all_of(subfolders.begin(), subfolders.end(), [&](std::string_view name) {
    return access(fmt::format("{}/{}", root_, name).c_str(), F_OK) == 0;
  });
  if (complete) return {};
  DS4_TRY(make_folder(root_));
  return prepare(root_);
}

std::string StoreFolder::folder_of(FileKind kind, const Hash128& name) const {
  return fmt::format("{}/{}/{}", root_, folder_name(kind), name.hex().substr(0, 2));
}

std::string StoreFolder::path_of(FileKind kind, const Hash128& name) const {
  return fmt::format("{}/{}{}", folder_of(kind, name), name.hex(), suffix(kind));
}

std::string StoreFolder::pin_path(const Hash128& frontier) const {
  return fmt::format("{}/{}{}", folder_of(FileKind::frontier, frontier), frontier.hex(), pin_suffix);
}

Result<OutputFile> StoreFolder::create(FileKind kind, const Hash128& name) const {
  return OutputFile::create(fmt::format("{}/tmp/{}{}", root_, name.hex(), suffix(kind)));
}

Result<void> StoreFolder::commit(OutputFile& file, FileKind kind, const Hash128& name) const {
  const std::string folder = folder_of(kind, name);
  if (mkdir(folder.c_str(), folder_mode) == 0) {
    DS4_TRY(sync_folder(fmt::format("{}/{}", root_, folder_name(kind))));
  } else if (errno != EEXIST) {
    return system_error("cannot create", folder, errno);
  }
  return file.commit(path_of(kind, name));
}

Result<void> StoreFolder::sync_folder_of(FileKind kind, const Hash128& name) const {
  return sync_folder(folder_of(kind, name));
}

bool StoreFolder::remove(FileKind kind, const Hash128& name) const {
  if (kind == FileKind::frontier) unlink(pin_path(name).c_str());
  return unlink(path_of(kind, name).c_str()) == 0 || errno == ENOENT;
}

Result<std::vector<StoreFolder::Found>> StoreFolder::scan() const {
  std::vector<Found> all;
  for (const FileKind kind : kinds) {
    const auto note = [&](const std::string& folder, const std::string& name) -> Result<void> {
      const auto hash = hash_in_name(folder, name, suffix(kind));
      if (!hash) return {};
      const std::string path = fmt::format("{}/{}", folder, name);
      const auto bytes = regular_size(path);
      if (bytes) all.push_back({kind, *hash, *bytes});
      if (!bytes && errno != 0 && errno != ENOENT) return system_error("cannot read", path, errno);
      return {};
    };
    DS4_TRY(for_each_file(root_, kind, note));
  }
  return all;
}

Result<std::vector<Hash128>> StoreFolder::scan_pins() const {
  std::vector<Hash128> pins;
  const auto note = [&](const std::string& folder, const std::string& name) -> Result<void> {
    if (const auto hash = hash_in_name(folder, name, pin_suffix)) pins.push_back(*hash);
    return {};
  };
  DS4_TRY(for_each_file(root_, FileKind::frontier, note));
  return pins;
}

void StoreFolder::remove_temporary() const {
  const std::string folder = root_ + "/tmp";
  // What stays is in nobody's way.
  (void)for_each_entry(folder, [&](const std::string& name) -> Result<void> {
    const bool ours = std::any_of(kinds.begin(), kinds.end(), [&](FileKind kind) {
      return name.ends_with(suffix(kind)) &&
             Hash128::from_hex(std::string_view(name).substr(0, name.size() - suffix(kind).size()));
    });
    if (ours) unlink(fmt::format("{}/{}", folder, name).c_str());
    return {};
  });
}

uint64_t StoreFolder::index_bytes() const {
  uint64_t bytes = 0;
  for (const char* end : {"", "-wal", "-shm"})
    bytes += regular_size(fmt::format("{}{}", index_path(), end)).value_or(0);
  return bytes;
}

}  // namespace ds4::store
