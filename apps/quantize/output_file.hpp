// What may become an output file, and the checksum beside it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ds4/error.hpp"

namespace ds4::quantize {

/// Renaming puts the result in the place of whatever has its name: an error if that is not a regular file, if
/// it exists and is not to be replaced, or if it is one of `inputs`. Names of parts of a model are refused.
/// The work in progress stands at FILE.tmp, which must be none of them either.
Result<void> check_output(const std::string& path, bool overwrite, std::span<const std::string> inputs);

/// An error if another run left something at FILE.tmp; `advice` says what can be done with it.
Result<void> check_no_part(const std::string& path, std::string_view advice);

/// A file that will be written, and how large it will be.
struct OutputSize {
  std::string path;
  uint64_t bytes = 0;
};
/// An error if the disks have too little room for the files; what stands at FILE.tmp makes room.
Result<void> check_space(std::span<const OutputSize> files);

/// An error if no file can be made in the folder of `path`.
Result<void> check_folder(const std::string& path);

/// FILE.sha256
std::string checksum_path(const std::string& path);
/// As sha256sum writes it, for `sha256sum -c` in the file's folder.
Result<void> write_checksum(const std::string& path);
/// Writes FILE.sha256 anew if it is there and tells the checksum of FILE, which it no longer has.
Result<void> renew_checksum(const std::string& path);

}  // namespace ds4::quantize
