// Writing a result file as a whole or not at all.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/console.hpp"
#include "ds4/error.hpp"

namespace ds4::cli {

/// An error if `output` is one of `inputs`, which writing it would destroy. Empty names are passed over.
Result<void> check_not_read(const std::string& output, std::span<const std::string> inputs);

/// Collects a file under a temporary name in the same folder; commit() gives it its name, destruction without
/// commit() removes it. Something that exists and is not a regular file (a device, a pipe), and the file that
/// standard output or error goes to, is written directly.
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::string& path);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  Result<void> write(std::string_view bytes);
  Result<void> commit();

 private:
  AtomicFile(int descriptor, std::string path, std::string temporary);
  int descriptor_;
  std::string path_;
  std::string temporary_;  // empty: written directly
  Writer writer_;
};

}  // namespace ds4::cli
