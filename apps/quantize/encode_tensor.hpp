// Decodes a mapped checkpoint tensor, encodes it in another number format, and streams it into a GGUF file.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ds4/error.hpp"
#include "format/gguf_writer.hpp"
#include "tensor_map.hpp"

namespace ds4::quantize {

/// Keeps its row buffers from one tensor to the next.
class TensorEncoder {
 public:
  /// `folder` is that of the checkpoint, for messages; `cancelled` may be empty.
  TensorEncoder(std::string folder, std::function<bool()> cancelled)
      : folder_(std::move(folder)), cancelled_(std::move(cancelled)) {}

  /// Writes all of `tensor` as `type`. An error if a value is not finite, or too large for `type`.
  Result<void> write(const MappedTensor& tensor, format::TensorType type, format::GgufWriter& writer);

 private:
  Result<void> check_values(const std::string& name, format::TensorType type) const;
  Result<void> write_source(const MappedTensor& tensor, const Source& source, format::TensorType type,
                            format::GgufWriter& writer);
  Result<void> write_table(const Source& source, format::GgufWriter& writer);

  std::string folder_;
  std::function<bool()> cancelled_;
  std::vector<float> values_;       // one row
  std::vector<std::byte> encoded_;  // as many rows as fit about a megabyte
};

}  // namespace ds4::quantize
