// The GGUF tensor types: ids, names and block sizes (docs/formats.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ds4::format {

enum class TensorType : uint32_t {
  f32 = 0,
  f16 = 1,
  q8_0 = 8,
  q2_k = 10,
  q4_k = 12,
  q8_k = 15,
  iq2_xxs = 16,
  i32 = 26,
  bf16 = 30,
  mxfp4 = 39,
};

/// Size of one block of a type. Known for every type of the GGUF standard, also for those this engine
/// cannot compute with, so that a file can be checked and described.
struct TypeTraits {
  std::string_view name;    // as in the GGUF standard, e.g. "Q8_0"
  uint32_t block_elements;  // elements in one block
  uint32_t block_bytes;     // bytes of one block
  uint32_t alignment;       // file positions of tensor data must be a multiple of this many bytes
};

/// nullopt for an id the standard does not define.
std::optional<TypeTraits> type_traits(TensorType type);
/// "unknown" for an id the standard does not define.
std::string_view type_name(TensorType type);

/// True for the types that can hold a weight matrix in this engine
/// (F32, F16, BF16, Q8_0, Q4_K, Q2_K, IQ2_XXS, MXFP4).
bool is_matrix_type(TensorType type);

/// Bytes of a row of `elements`; precondition: known type, elements divisible by the block size.
uint64_t row_bytes(TensorType type, uint64_t elements);

}  // namespace ds4::format
