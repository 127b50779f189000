// GGUF version 3 writer: metadata and tensor list first, then tensor data streamed in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "format/gguf.hpp"

namespace ds4::format {

/// Writes to `path`.tmp and renames on finish(), so that a failed run leaves no partial file. The temporary
/// file is locked: two writers of one path do not meet. What another run left there is kept and is an error,
/// unless resume() continues it or discard_part() gives it up. Use: add_* for all metadata, add_tensor for
/// all tensors, then write_tensor in the same order, then finish. Mistakes in add_* (a key or name used
/// twice, dims that do not fit the type, a call after the first write_tensor) are reported by the next
/// write_tensor or finish. `general.alignment` is written by itself when the alignment is not 32.
class GgufWriter {
 public:
  explicit GgufWriter(std::string path, uint32_t alignment = 32);
  ~GgufWriter();  // removes the temporary file if finish() was not reached, unless resume() was called
  GgufWriter(GgufWriter&&) noexcept;
  GgufWriter& operator=(GgufWriter&&) noexcept;

  void add_uint32(std::string_view key, uint32_t value);
  void add_uint64(std::string_view key, uint64_t value);
  void add_float32(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_string(std::string_view key, std::string_view value);
  void add_uint32_array(std::string_view key, std::span<const uint32_t> values);
  void add_int32_array(std::string_view key, std::span<const int32_t> values);
  void add_float32_array(std::string_view key, std::span<const float> values);
  void add_string_array(std::string_view key, std::span<const std::string> values);
  /// Any value as it stands in another file, for copying metadata. A `general.alignment` is left out.
  void add_value(std::string_view key, const GgufValue& value);

  /// dims[0] is the contiguous dimension.
  void add_tensor(std::string_view name, TensorType type, std::span<const uint64_t> dims);

  /// Size that the finished file will have with what was added so far; nothing is written.
  Result<uint64_t> planned_bytes() const;

  /// What an earlier run left at `path`.tmp may be begun anew. To be called before data and resume().
  void discard_part();
  /// Continues what an earlier run with the same metadata and tensors left at `path`.tmp, and leaves the file
  /// there if this run does not finish either. To be called after all add_*. Returns the number of leading
  /// tensors that are complete already and must not be given again; 0 if there is no such file, or one with
  /// other contents that discard_part() gives up. Without that such a file is an error, and it stays as it
  /// is; also an error if another program is writing it.
  Result<size_t> resume();

  /// Bytes of the next tensor; may be called several times until the tensor is complete.
  Result<void> write_tensor(std::span<const std::byte> bytes);
  /// Checks that every tensor is complete, flushes, and gives the file its name.
  Result<void> finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ds4::format
