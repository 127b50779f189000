// Every tensor of a model in one list: its name, dims and role, and its place in the weight structures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/shape.hpp"
#include "model/weights.hpp"

namespace ds4::model {

/// What a tensor is, as far as its number format is concerned. The type in brackets is the usual one.
enum class TensorRole {
  embedding,       // token embedding [F16]
  output,          // vocabulary projection [Q8_0]
  projection,      // attention projections and those of the MTP block [Q8_0]
  shared_expert,   // [Q8_0]
  gate_up_expert,  // routed, all experts in one tensor [IQ2_XXS, Q4_K, MXFP4, ...]
  down_expert,     // routed, all experts in one tensor [Q2_K, Q4_K, MXFP4, ...]
  small_matrix,    // compressor, indexer and router matrices, BF16 in a checkpoint [F16]
  mixer,           // hyper-connection fn and compressor ape, F32 in a checkpoint [F16]
  vector,          // norms, sinks, biases, scales, bases [F32]
  table,           // experts by token id [I32]
};

/// One tensor that a model must have.
struct TensorSlot {
  std::string name;            // GGUF name
  std::vector<uint64_t> dims;  // contiguous dimension first
  TensorRole role;
  Tensor* tensor;  // where bind_weights puts it
};

/// The tensors of the main model in file order. Sizes `weights.layers` and sets the layers' ratios; the slots
/// point into `weights`. Precondition: check_shape(shape).
std::vector<TensorSlot> list_model_tensors(const ModelShape& shape, ModelWeights& weights);

/// The tensors of the MTP block (names "mtp.0.*").
std::vector<TensorSlot> list_mtp_tensors(const ModelShape& shape, MtpWeights& weights);

}  // namespace ds4::model
