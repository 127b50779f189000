#include "output_file.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.hpp"
#include "common/atomic_file.hpp"
#include "fingerprint.hpp"

namespace ds4::quantize {

namespace fs = std::filesystem;

Result<void> check_output(const std::string& path, bool overwrite, std::span<const std::string> inputs) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return {};
  if (!fs::is_regular_file(status))
    return fail(ErrorCode::invalid_argument, "{} is not a regular file and will not be replaced", path);
  if (!overwrite)
    return fail(ErrorCode::invalid_argument, "{} exists already; use --overwrite to replace it", path);
  for (const std::string& input : inputs) {
    if (!input.empty() && fs::equivalent(path, input, error))
      return fail(ErrorCode::invalid_argument, "{} is a file that is read", path);
  }
  return {};
}

Result<void> check_no_part(const std::string& path, std::string_view advice) {
  const std::string part = path + ".tmp";
  std::error_code error;
  if (const auto bytes = fs::file_size(part, error); error || bytes == 0) return {};
  return fail(ErrorCode::invalid_argument, "{} is there already, the work of another run: {}", part, advice);
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

}  // namespace ds4::quantize
