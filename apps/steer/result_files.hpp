// The files that a run leaves behind.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"

namespace ds4::steer {

struct ResultFile {
  std::string path;
  std::string_view bytes;
};

/// An error now instead of after the work, if one of the files cannot be written.
Result<void> check_writable(const std::vector<std::string>& paths);

/// Writes all of them under temporary names before the first gets its own, so that a failure in between
/// leaves neither half a file nor half a set.
Result<void> write_result(const std::vector<ResultFile>& files);

/// `name` without its extension if that is one of those the program adds itself.
std::string stem_of(const std::string& name, std::string_view first, std::string_view second);

}  // namespace ds4::steer
