// From the tensors a GGUF file must have to what they are made of: tensors of an official checkpoint, or of
// another GGUF file.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "format/gguf.hpp"
#include "format/safetensors.hpp"
#include "format/tensor_type.hpp"
#include "model/tensor_list.hpp"

namespace ds4::quantize {

/// How the numbers of a source are stored.
enum class SourceFormat {
  rows,     // rows of a GGUF type, F32, F16 and BF16 of a checkpoint included
  fp8,      // E4M3 with an E8M0 scale for each tile of 128 x 128
  fp4,      // packed E2M1 with an E8M0 scale for each 32 inputs
  integer,  // I64 or I32, for router tables
};

/// One matrix (or vector), its shape already checked.
struct Source {
  std::string_view name;  // as its file calls it
  SourceFormat format = SourceFormat::rows;
  format::TensorType type = format::TensorType::f32;  // only rows
  bool is_wide = false;                               // only integer: I64
  std::span<const std::byte> bytes;
  std::span<const std::byte> scales;  // only fp8 and fp4
};

/// "BF16", "FP8", ...
std::string_view source_type_name(const Source& source);

/// A GGUF tensor and where its values come from: one source, or one for each expert in order.
struct MappedTensor {
  std::string name;
  std::vector<uint64_t> dims;  // contiguous dimension first
  model::TensorRole role;
  std::vector<Source> sources;

  uint64_t columns() const { return dims[0]; }
  /// Of each source.
  uint64_t rows() const { return dims.size() > 1 ? dims[1] : 1; }
};

/// The official name for a GGUF tensor name; experts contain "{}" where their number goes. Empty if unknown.
std::string checkpoint_name(std::string_view gguf_name);

/// Finds and checks the sources of all `slots`. Errors name the checkpoint tensor, what was expected, and
/// what was found.
Result<std::vector<MappedTensor>> map_tensors(const format::SafetensorsCheckpoint& checkpoint,
                                              std::span<const model::TensorSlot> slots);

/// The same from a GGUF file whose tensors were bound to the slots (model::bind_weights).
std::vector<MappedTensor> map_gguf_tensors(std::span<const model::TensorSlot> slots);

}  // namespace ds4::quantize
