// Files as byte sources and sinks.
#pragma once

#include <memory>
#include <string>

#include "ds4/error.hpp"
#include "store/byte_access.hpp"

namespace ds4::store {

/// A regular file, opened for reading. Its size is that at opening.
Result<std::unique_ptr<ByteSource>> open_source(const std::string& path);

/// A file in the making: a temporary file beside `path` with mode 0600, which takes the place of `path` when
/// it is whole and on the disk, and is removed if it never is.
class PendingFile : public ByteSink {
 public:
  static Result<std::unique_ptr<PendingFile>> create(const std::string& path);
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile() override;

  Result<void> write(uint64_t offset, std::span<const std::byte> bytes) override;
  /// Waits for the disk.
  Result<void> commit();

 private:
  PendingFile(std::string path, std::string temporary, int descriptor)
      : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}
  Error failed(int number, const char* what) const;

  std::string path_, temporary_;
  int descriptor_;
  bool committed_ = false;
};

}  // namespace ds4::store
