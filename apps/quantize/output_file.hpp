// What may become an output file, and the checksum beside it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ds4/error.hpp"

namespace ds4::quantize {

/// Renaming puts the result in the place of whatever has its name: an error if that is not a regular file, if
/// it exists and is not to be replaced, or if it is one of `inputs` (empty names are passed over).
Result<void> check_output(const std::string& path, bool overwrite, std::span<const std::string> inputs);

/// An error if another run left something at FILE.tmp; `advice` says what can be done with it.
Result<void> check_no_part(const std::string& path, std::string_view advice);

/// FILE.sha256
std::string checksum_path(const std::string& path);
/// As sha256sum writes it, for `sha256sum -c` in the file's folder.
Result<void> write_checksum(const std::string& path);

}  // namespace ds4::quantize
