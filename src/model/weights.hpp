// The tensors of a model bound by name, each checked against the shape before anything is computed.
#pragma once

#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "format/gguf.hpp"
#include "model/shape.hpp"

namespace ds4::model {

using Tensor = format::GgufTensor;

/// One hyper-connection mixer.
struct HyperConnectionWeights {
  Tensor fn;     // [4d, 24] (head: [4d, 4])
  Tensor scale;  // [3]      (head: [1])
  Tensor base;   // [24]     (head: [4])
};

/// Compressor of attention rows (dim 512) or of index rows (dim 128); w = compressor_width(ratio, dim).
struct CompressorWeights {
  Tensor ape;   // [w, ratio]
  Tensor kv;    // [d, w]
  Tensor gate;  // [d, w]
  Tensor norm;  // [dim]
};

/// GGUF dims, contiguous dimension first. Tensors a layer does not have keep data == nullptr.
struct LayerWeights {
  uint32_t ratio = 0;  // 0, 4 or 128; MTP layers are 0 by definition
  HyperConnectionWeights hc_attn;
  Tensor attn_norm;                    // [d]
  Tensor q_a;                          // [d, q_rank]
  Tensor q_a_norm;                     // [q_rank]
  Tensor q_b;                          // [q_rank, H*512]
  Tensor kv;                           // [d, 512]
  Tensor kv_norm;                      // [512]
  Tensor sinks;                        // [H]
  Tensor output_a;                     // [group_width, G*rank]
  Tensor output_b;                     // [G*rank, d]
  CompressorWeights compressor;        // ratio != 0
  Tensor index_q_b;                    // [q_rank, index_heads*128], ratio 4
  Tensor index_proj;                   // [d, index_heads], ratio 4
  CompressorWeights index_compressor;  // ratio 4
  HyperConnectionWeights hc_ffn;
  Tensor ffn_norm;      // [d]
  Tensor router;        // [d, E]
  Tensor router_bias;   // [E], layers routed by score
  Tensor router_table;  // [K, V] I32, layers routed by token id
  Tensor gate_experts;  // [d, F, E]
  Tensor up_experts;    // [d, F, E]
  Tensor down_experts;  // [F, d, E]
  Tensor gate_shared;   // [d, F]
  Tensor up_shared;     // [d, F]
  Tensor down_shared;   // [F, d]
};

struct ModelWeights {
  Tensor token_embedding;  // [d, V]
  HyperConnectionWeights hc_head;
  Tensor output_norm;  // [d]
  Tensor output;       // [d, V]
  std::vector<LayerWeights> layers;
};

/// The drafter: one ratio-0 layer with its own head merge; embedding and output belong to the main model.
struct MtpWeights {
  Tensor embedding_norm;  // enorm [d]
  Tensor hidden_norm;     // hnorm [d]
  Tensor embedding_proj;  // e_proj [d, d]
  Tensor hidden_proj;     // h_proj [d, d]
  LayerWeights layer;
  HyperConnectionWeights hc_head;
  Tensor norm;  // [d]
};

/// Finds, checks and binds every tensor of the main model; accepts the alternative names of docs/formats.md.
/// An error names the tensor and says what was expected and what was found. Router tables are checked to hold
/// only valid expert numbers.
Result<ModelWeights> bind_weights(const format::GgufFile& file, const ModelShape& shape);

/// False for tensors that a file holds beside its weights: importance vectors (docs/formats.md §10).
bool is_weight(const Tensor& tensor);

/// True if `file` holds MTP tensors (prefix "mtp.0.").
bool has_mtp(const format::GgufFile& file);
/// Binds the MTP block against the main model's shape.
Result<MtpWeights> bind_mtp(const format::GgufFile& file, const ModelShape& shape);

}  // namespace ds4::model
