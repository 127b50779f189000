// How many bytes decoding one token has to read: what bounds its speed.
#pragma once

#include <cstdint>

#include "model/shape.hpp"
#include "model/weights.hpp"

namespace ds4::model {

/// Rows are packed as every backend keeps them: 448 FP8 codes, 7 exponents, padding, 64 F16 values; and 64
/// bytes of FP4 codes with 4 exponents.
inline constexpr uint64_t packed_attention_row_bytes = 584;
inline constexpr uint64_t packed_index_row_bytes = 68;

/// Each matrix counts once in full, of the experts those that a token uses, of the tables by token id one
/// row. Left out: activations, and the compressors' open windows (0.3 MB a token for Flash).
class DecodeTraffic {
 public:
  DecodeTraffic(const ModelShape& shape, const ModelWeights& weights);

  /// For a token with `position` tokens before it. The indexer's queries count where it has to choose: when
  /// more compressed rows are visible than it may take.
  uint64_t weight_bytes(uint64_t position) const;
  /// Window rows of every layer, all compressed rows of ratio 128, and of ratio 4 either all of them or the
  /// index rows and the chosen ones.
  uint64_t state_bytes(uint64_t position) const;

 private:
  bool chooses(uint64_t position) const { return (position + 1) / csa_ratio > index_top_k_; }

  uint64_t always_bytes_ = 0;
  uint64_t index_query_bytes_ = 0;
  uint64_t layers_ = 0, csa_layers_ = 0, hca_layers_ = 0;
  uint64_t index_top_k_ = 0;
};

}  // namespace ds4::model
