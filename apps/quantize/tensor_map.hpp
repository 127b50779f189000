// From the tensors a GGUF file must have to the tensors of an official checkpoint that they are made of.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "format/safetensors.hpp"
#include "model/tensor_list.hpp"

namespace ds4::quantize {

/// How the numbers of a source are stored.
enum class SourceFormat {
  plain,    // F32, F16 or BF16
  fp8,      // E4M3 with an E8M0 scale for each tile of 128 x 128
  fp4,      // packed E2M1 with an E8M0 scale for each 32 inputs
  integer,  // I64 or I32, for router tables
};

/// One matrix (or vector) of the checkpoint, its shape already checked.
struct Source {
  const format::SafetensorsEntry* data = nullptr;
  const format::SafetensorsEntry* scale = nullptr;  // only fp8 and fp4
  SourceFormat format = SourceFormat::plain;
};

/// A GGUF tensor and where its values come from: one source, or one for each expert in order.
struct MappedTensor {
  std::string name;
  std::vector<uint64_t> dims;  // contiguous dimension first
  model::TensorRole role;
  std::vector<Source> sources;
};

/// The official name for a GGUF tensor name; experts contain "{}" where their number goes. Empty if unknown.
std::string checkpoint_name(std::string_view gguf_name);

/// Finds and checks the sources of all `slots`. Errors name the checkpoint tensor, what was expected, and
/// what was found.
Result<std::vector<MappedTensor>> map_tensors(const format::SafetensorsCheckpoint& checkpoint,
                                              std::span<const model::TensorSlot> slots);

}  // namespace ds4::quantize
