// Names of the files that a GGUF model consists of.
#pragma once

#include <string>
#include <vector>

namespace ds4::format {

/// The files that GgufFile::open(path) reads: of X-0000K-of-0000N.gguf all N, else `path` alone. Whether they
/// exist is not looked at.
std::vector<std::string> gguf_files(const std::string& path);

}  // namespace ds4::format
