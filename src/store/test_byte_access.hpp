// Byte sources and sinks in memory.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "store/byte_access.hpp"

namespace ds4::store {

class MemoryBytes : public ByteSource, public ByteSink {
 public:
  MemoryBytes() = default;
  explicit MemoryBytes(std::vector<std::byte> content) : bytes(std::move(content)) {}

  uint64_t size() const override { return bytes.size(); }
  Result<void> read(uint64_t offset, std::span<std::byte> out) const override {
    if (offset > bytes.size() || out.size() > bytes.size() - offset)
      return Error{ErrorCode::internal, "a read outside the source"};
    std::copy_n(bytes.data() + offset, out.size(), out.data());
    return {};
  }
  Result<void> write(uint64_t offset, std::span<const std::byte> content) override {
    bytes.resize(std::max<size_t>(bytes.size(), offset + content.size()));
    std::copy(content.begin(), content.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset));
    return {};
  }

  template <class T>
  void put(size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
  }

  std::vector<std::byte> bytes;
};

/// Some bytes, `hole` zeros, and the other bytes: files of any size that take no memory.
class SparseBytes : public ByteSource {
 public:
  SparseBytes(std::vector<std::byte> content, size_t hole_at, uint64_t hole)
      : content_(std::move(content)), hole_at_(std::min(hole_at, content_.size())), hole_(hole) {}

  uint64_t size() const override { return content_.size() + hole_; }
  Result<void> read(uint64_t offset, std::span<std::byte> out) const override {
    if (offset > size() || out.size() > size() - offset)
      return Error{ErrorCode::internal, "a read outside the source"};
    while (!out.empty()) {
      size_t count = 0;
      if (offset < hole_at_) {
        count = std::min<uint64_t>(out.size(), hole_at_ - offset);
        std::copy_n(content_.data() + offset, count, out.data());
      } else if (offset - hole_at_ < hole_) {
        count = std::min<uint64_t>(out.size(), hole_ - (offset - hole_at_));
        std::fill_n(out.data(), count, std::byte{0});
      } else {
        count = out.size();
        std::copy_n(content_.data() + (offset - hole_), count, out.data());
      }
      out = out.subspan(count);
      offset += count;
    }
    return {};
  }

 private:
  std::vector<std::byte> content_;
  size_t hole_at_;
  uint64_t hole_;
};

}  // namespace ds4::store
