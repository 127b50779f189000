// Reader for a checkpoint folder in the safetensors layout (docs/formats.md): one file, or several with an
// index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"

namespace ds4::format {

/// Element types; a file with any other is refused.
enum class SafetensorsType { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean, f8_e4m3, f8_e8m0 };

/// "F8_E4M3" and so on, as files spell it.
std::string_view safetensors_type_name(SafetensorsType type);
size_t safetensors_element_bytes(SafetensorsType type);

/// A tensor inside a mapped shard; shape is row-major (last dimension contiguous, up to 8 dimensions, none
/// for a scalar; a dimension may be 0). Nothing aligns `bytes`.
struct SafetensorsEntry {
  std::string name;
  SafetensorsType type = SafetensorsType::f32;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;

  uint64_t elements() const;
};

/// All tensors of a checkpoint folder. Validates headers (lengths, JSON, overlaps, offsets, sizes,
/// duplicates) before use; errors name the file and the tensor.
class SafetensorsCheckpoint {
 public:
  /// `folder` holds model.safetensors.index.json + shards, or any *.safetensors files without an index. With
  /// an index, the shards it names are read, and each tensor it lists must be in the shard it says.
  static Result<SafetensorsCheckpoint> open(const std::string& folder);
  /// Same checks on one shard in memory; `bytes` must outlive the result. `name` stands for the file in
  /// errors.
  static Result<SafetensorsCheckpoint> parse(std::span<const std::byte> bytes, std::string name);

  SafetensorsCheckpoint(SafetensorsCheckpoint&&) noexcept;
  SafetensorsCheckpoint& operator=(SafetensorsCheckpoint&&) noexcept;
  ~SafetensorsCheckpoint();

  const std::vector<SafetensorsEntry>& tensors() const;       // sorted by name
  const SafetensorsEntry* find(std::string_view name) const;  // nullptr if absent

 private:
  struct Impl;
  explicit SafetensorsCheckpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ds4::format
