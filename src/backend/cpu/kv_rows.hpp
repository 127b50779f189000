// How cached rows are stored: the precision the model imposes, packed (docs/model.md §3.3, §3.4).
#pragma once

#include <cstddef>

namespace ds4::cpu {

/// Packed attention row, 584 bytes: 448 FP8 codes, 7 scale exponents, 1 zero, 64 F16 rotary values.
/// Packed index row, 68 bytes: 64 bytes of FP4 codes, 4 scale exponents.
/// With round trips off (tests against references without them) rows are F32 and nothing is rounded.
class RowCodec {
 public:
  explicit RowCodec(bool round_trips) : packed_(round_trips) {}

  bool round_trips() const { return packed_; }
  size_t attention_bytes() const;
  size_t index_bytes() const;

  /// row: 512 values after RoPE.
  void encode_attention(const float* row, std::byte* out) const;
  void decode_attention(const std::byte* row, float* out) const;

  /// row: 128 values after RoPE; the Hadamard transform is part of encoding and is applied to `row` in place.
  void encode_index(float* row, std::byte* out) const;
  void decode_index(const std::byte* row, float* out) const;

  /// Rounds an index query head the way index rows are: Hadamard, then FP4.
  void round_index_query(float* head) const;

 private:
  bool packed_;
};

}  // namespace ds4::cpu
