// Bytes that are read and written by place, so that formats can be converted without holding them whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ds4/error.hpp"

namespace ds4::store {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  /// All of `out`. Precondition: offset + out.size() <= size().
  virtual Result<void> read(uint64_t offset, std::span<std::byte> out) const = 0;
};

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual Result<void> write(uint64_t offset, std::span<const std::byte> bytes) = 0;
};

}  // namespace ds4::store
