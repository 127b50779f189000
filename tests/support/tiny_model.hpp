// Random models for tests: any counts, any number formats, numerically tame, written as GGUF.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "format/tensor_type.hpp"
#include "model/shape.hpp"

namespace ds4::testing {

/// Width 256, 4 heads, 8 experts, 6 layers of all kinds (ratios 0, 0, 4, 128, 4, 128), vocabulary 512: about
/// 12 million parameters.
model::ModelShape tiny_shape();

/// The widths, heads, ranks and groups of Flash with fewer layers, experts and tokens.
model::ModelShape flash_width_shape(uint32_t layers, uint32_t experts, uint32_t vocabulary);

/// The same seed gives the same values in every tensor, whatever else is in the file.
struct TinyModelOptions {
  model::ModelShape shape = tiny_shape();
  uint64_t seed = 1;
  bool metadata_only = false;  // no tensors at all
  bool with_mtp = false;       // adds the tensors "mtp.0.*" to the file
  /// Scales what attention and experts add to the streams. Two right implementations that round differently
  /// agree at the logits of a damped model (0.1), while undamped random layers amplify rounding.
  float damping = 1.0f;
  /// Scales the gate and up matrices of the experts, and the down matrices by its inverse square: at 5,
  /// values of both signs reach the clamps of the expert activation, while the experts' outputs keep their
  /// size.
  float expert_gain = 1.0f;

  // Number formats by role. F32, F16, BF16 and Q8_0 hold encoded random values; Q4_K, Q2_K, IQ2_XXS and MXFP4
  // are random codes with tame scales. Row lengths must be multiples of the block size.
  format::TensorType embedding = format::TensorType::f32;
  format::TensorType output = format::TensorType::f32;
  format::TensorType projection = format::TensorType::f32;
  format::TensorType shared_expert = format::TensorType::f32;
  format::TensorType gate_up_expert = format::TensorType::f32;
  format::TensorType down_expert = format::TensorType::f32;
  format::TensorType small_matrix = format::TensorType::f32;
  format::TensorType mixer = format::TensorType::f32;
  format::TensorType vector = format::TensorType::f32;

  /// The formats of published files: F16 embedding and small matrices, Q8_0 projections, the given experts.
  void use_published_types(format::TensorType gate_up, format::TensorType down);

  // Mistakes and dialects, by full key or tensor name.
  std::set<std::string> omit;                                // keys and tensors to leave out
  std::map<std::string, std::string> rename;                 // tensors written under another name
  std::map<std::string, format::TensorType> tensor_types;    // instead of that of the role
  std::map<std::string, std::vector<uint64_t>> tensor_dims;  // instead of those of the shape
  std::map<std::string, uint32_t> uint_keys;                 // added, or instead of the right value
  std::map<std::string, float> float_keys;
  std::map<std::string, bool> bool_keys;
  std::map<std::string, std::string> string_keys;
  std::map<std::string, std::vector<uint32_t>> uint_array_keys;
  std::map<std::string, std::vector<float>> float_array_keys;
  std::set<std::string> bad_router_tables;  // tables that name an expert that does not exist

  /// Bytes of the first filler tokens, instead of "tok<n>".
  std::vector<std::string> filler_texts;
  /// Names of further special tokens, which follow these.
  std::vector<std::string> special_names;

  /// Changes rows of a tensor before they are encoded: (index of the row, its random values). Only for the
  /// formats that hold encoded values.
  std::map<std::string, std::function<void(uint64_t row, std::span<float> values)>> edit_rows;
};

/// Writes the model with all metadata and a byte-level vocabulary: three special tokens, the 256 bytes, the
/// five other special tokens, then fillers "tok<n>". Needs a vocabulary of at least 264.
Result<void> write_tiny_model(const std::string& path, const TinyModelOptions& options);

/// Writes only the MTP block, as an MTP support file.
Result<void> write_tiny_mtp(const std::string& path, const TinyModelOptions& options);

}  // namespace ds4::testing
