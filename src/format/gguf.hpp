// GGUF version 3 reader: maps the file, checks everything that can be wrong with it, then hands out views.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ds4/error.hpp"
#include "format/tensor_type.hpp"

namespace ds4::format {

/// Metadata value types, with their ids in the file.
enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

/// Array of strings or of fixed-size scalars. Elements of scalar arrays stay in the mapping, unaligned.
struct GgufArray {
  GgufType element_type = GgufType::u8;
  uint64_t count = 0;
  std::span<const std::byte> bytes;       // scalars, back to back; empty for strings
  std::vector<std::string_view> strings;  // only for element_type == string
};

/// One metadata value. Integers are widened to 64 bits, f32 to double; strings point into the mapping.
struct GgufValue {
  GgufType type = GgufType::u8;
  std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray> value;
};

/// A tensor inside a mapped file. dims[0] is the contiguous dimension; unused dims are 1.
struct GgufTensor {
  std::string_view name;
  TensorType type = TensorType::f32;
  uint32_t n_dims = 0;
  std::array<uint64_t, 4> dims{1, 1, 1, 1};
  const std::byte* data = nullptr;
  uint64_t size_bytes = 0;

  uint64_t elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
};

/// A GGUF model: one file, or all files of a split set "-00001-of-0000N". Views stay valid while it lives.
///
/// A file that opens has been checked as a whole: every count and length against the bytes that are there,
/// unknown types, duplicate keys and names, dims whose product overflows, data outside the file, misaligned
/// data, tensors that overlap. Tensors of identical offset, type and dims may share their bytes. Tensor data
/// is aligned to the element or scale of its type. Memory is bounded by a small multiple of the file's
/// metadata.
class GgufFile {
 public:
  /// Maps and validates `path`. For a name of the form X-0000K-of-0000N.gguf all N files are opened,
  /// whichever part is named; metadata come from the first. Errors name the file and the offending key,
  /// tensor or field.
  static Result<GgufFile> open(const std::string& path);
  /// Same checks on one file in memory; `bytes` must start at a multiple of 8 and outlive the result.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, std::string name);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  const std::string& path() const;  // of the first part
  uint64_t file_bytes() const;      // of all parts together
  uint32_t version() const;

  /// Metadata in file order, and by key (nullptr if absent).
  const std::vector<std::pair<std::string_view, GgufValue>>& metadata() const;
  const GgufValue* find(std::string_view key) const;

  /// Typed access. not_found if absent, format if of another type or out of range; the message names the key.
  /// Integers of any width and sign convert when the value fits; f32/f64/integers convert to float.
  Result<uint64_t> get_uint(std::string_view key) const;
  Result<double> get_float(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;
  Result<std::vector<uint64_t>> get_uint_array(std::string_view key) const;
  Result<std::vector<double>> get_float_array(std::string_view key) const;
  Result<std::span<const std::string_view>> get_string_array(std::string_view key) const;

  /// Tensors in file order, and by name (nullptr if absent).
  const std::vector<GgufTensor>& tensors() const;
  const GgufTensor* find_tensor(std::string_view name) const;

 private:
  struct Impl;
  explicit GgufFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ds4::format
