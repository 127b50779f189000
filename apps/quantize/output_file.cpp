#include "output_file.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/error.hpp"
#include "common/atomic_file.hpp"
#include "common/console.hpp"
#include "fingerprint.hpp"
#include "format/gguf_files.hpp"

namespace ds4::quantize {

namespace fs = std::filesystem;

namespace {

constexpr size_t sha256_digits = 64;
constexpr std::string_view hexadecimal = "0123456789abcdef";

// Where GgufWriter collects a file.
std::string part_path(const std::string& path) {
  return path + ".tmp";
}

fs::path folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

Result<void> check_name(const std::string& path) {
  if (format::gguf_files(path).size() <= 1) return {};
  return fail(
      ErrorCode::invalid_argument,
      "{} is the name of one of several files of a model, but the result is whole: nothing could open "
      "it under this name",
      path);
}

}  // namespace

Result<void> check_output(const std::string& path, bool overwrite, std::span<const std::string> inputs) {
  DS4_TRY(cli::check_not_read(part_path(path), inputs));
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return check_name(path);
  if (!fs::is_regular_file(status))
    return fail(ErrorCode::invalid_argument, "{} is not a regular file and will not be replaced", path);
  if (!overwrite)
    return fail(ErrorCode::invalid_argument, "{} exists already; use --overwrite to replace it", path);
  DS4_TRY(cli::check_not_read(path, inputs));
  return check_name(path);
}

Result<void> check_no_part(const std::string& path, std::string_view advice) {
  const std::string part = part_path(path);
  std::error_code error;
  if (const auto bytes = fs::file_size(part, error); error || bytes == 0) return {};
  return fail(ErrorCode::invalid_argument, "{} is there already, the work of another run: {}", part, advice);
}

Result<void> check_space(std::span<const OutputSize> files) {
  struct Disk {
    uint64_t needed = 0;
    const OutputSize* file = nullptr;
  };
  std::map<dev_t, Disk> disks;
  for (const OutputSize& file : files) {
    struct stat folder{};
    if (::stat(folder_of(file.path).c_str(), &folder) != 0) continue;
    std::error_code error;
    const uint64_t there = fs::file_size(part_path(file.path), error);
    Disk& disk = disks[folder.st_dev];
    disk.needed += file.bytes - (error ? 0 : std::min<uint64_t>(there, file.bytes));
    disk.file = &file;
  }
  for (const auto& [device, disk] : disks) {
    std::error_code error;
    const fs::space_info space = fs::space(folder_of(disk.file->path), error);
    if (!error && disk.needed > space.available)
      return fail(ErrorCode::io, "{}: {} more bytes are needed on its disk, but {} are free", disk.file->path,
                  disk.needed, space.available);
  }
  return {};
}

Result<void> check_folder(const std::string& path) {
  const fs::path folder = folder_of(path);
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return fail(ErrorCode::io, "{}: no file can be made in its folder: {}", path,
              std::generic_category().message(errno));
}

std::string checksum_path(const std::string& path) {
  return path + ".sha256";
}

Result<void> write_checksum(const std::string& path) {
  DS4_ASSIGN(const std::string hash, file_sha256(path));
  DS4_ASSIGN(cli::AtomicFile file, cli::AtomicFile::create(checksum_path(path)));
  DS4_TRY(file.write(fmt::format("{}  {}\n", hash, fs::path(path).filename().string())));
  return file.commit();
}

Result<void> renew_checksum(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(checksum_path(path), error)) return {};
  DS4_ASSIGN(const std::string text, cli::read_file(checksum_path(path)));
  // Binary mode has a star where text mode has a second blank.
  const std::string name = fs::path(path).filename().string();
  const bool tells = text.size() >= sha256_digits && text.find_first_not_of(hexadecimal) == sha256_digits;
  const std::string_view rest = tells ? std::string_view(text).substr(sha256_digits) : std::string_view();
  if (rest != fmt::format("  {}\n", name) && rest != fmt::format(" *{}\n", name)) return {};
  return write_checksum(path);
}

}  // namespace ds4::quantize
