// Read-only memory mapping of a file.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "ds4/error.hpp"

namespace ds4 {

/// Maps a regular file; an empty file maps to an empty span. Unmapped when destroyed.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(const std::byte* data, size_t size, std::string path);
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

/// Lets the system take back the whole pages of `bytes`, which must be part of a MappedFile; they are read
/// from the file again when used.
void drop_mapped_pages(std::span<const std::byte> bytes);

}  // namespace ds4
