// Q8_0: blocks of 32 int8 codes with one F16 scale; also the int8 form of activations, which keeps its scale
// in F32.
//
// Layout of a weight block, 34 bytes: 0 d (F16), 2 q[32] (i8). Value i = d * q[i].
// d = max|x| / 127. Codes divide by the F32 scale, before it is rounded to F16. Files round codes half away
// from zero, activations round ties to even (docs/decisions.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds4::format {

struct [[gnu::packed]] BlockQ8_0 {
  static constexpr size_t kElements = 32;
  uint16_t d;  // F16
  int8_t q[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

/// A block of quantised activations.
struct ActivationQ8_0 {
  float d;
  int8_t q[32];
};

void decode_q8_0(const std::byte* row, size_t elements, float* out);
/// As files hold it: half away from zero.
void encode_q8_0(const float* row, size_t elements, std::byte* out);
/// Ties to even; one scale for every 32 codes. codes and scales are separate arrays, as the matrix products
/// read.
void quantize_activations_q8_0(const float* row, size_t elements, int8_t* codes, float* scales);
void quantize_activations_q8_0(const float* row, size_t elements, ActivationQ8_0* out);
/// Exact integers within a block, blocks summed in order.
float dot_q8_0(const std::byte* row, const ActivationQ8_0* x, size_t elements);

}  // namespace ds4::format
