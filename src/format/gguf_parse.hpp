// Parser for one GGUF file in memory; GgufFile puts the parts of a split set together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ds4/error.hpp"
#include "format/gguf.hpp"

namespace ds4::format {

/// Content of one file: records in file order; views point into the parsed bytes.
struct GgufPart {
  std::vector<std::pair<std::string_view, GgufValue>> metadata;
  std::vector<GgufTensor> tensors;
};

/// Checks everything but what needs the other parts of a split set. `file` names the bytes in errors.
Result<GgufPart> parse_gguf_part(std::span<const std::byte> bytes, const std::string& file);

/// Sorted positions of named records. A sorted list instead of a hash map: no file can make it quadratic.
class NameIndex {
 public:
  static constexpr size_t none = static_cast<size_t>(-1);

  /// Returns the position of the second of two equal names, or `none` when all differ.
  size_t build(std::vector<std::string_view> names);
  /// Position of `name`, or `none`.
  size_t find(std::string_view name) const;

 private:
  std::vector<std::pair<std::string_view, size_t>> sorted_;
};

/// The value as an integer, without a float or bool in between; empty if of another type or negative.
std::optional<uint64_t> as_uint(const GgufValue& value);

std::string_view gguf_type_name(GgufType type);

/// Bytes of a scalar of a type; 0 for strings and arrays.
size_t gguf_scalar_bytes(GgufType type);

/// Scalar of a fixed-size type at `bytes`, unaligned. Precondition: gguf_scalar_bytes(type) > 0, that many
/// bytes.
GgufValue read_gguf_scalar(GgufType type, const std::byte* bytes);

}  // namespace ds4::format
