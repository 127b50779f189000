#include "format/mxfp4.hpp"

#include <cstring>

#include "format/fp4_e2m1.hpp"
#include "format/fp8_e4m3.hpp"

namespace ds4::format {

float mxfp4_doubled_scale(uint8_t exponent) {
  return e8m0_to_f32(exponent) * 0.5f;
}

void decode_mxfp4(const std::byte* row, size_t elements, float* out) {
  for (size_t i = 0; i < elements; i += BlockMXFP4::kElements, row += sizeof(BlockMXFP4)) {
    BlockMXFP4 block;
    std::memcpy(&block, row, sizeof block);
    const float scale = e8m0_to_f32(block.exponent);
    for (size_t j = 0; j < 16; ++j) {
      out[i + j] = e2m1_to_f32(block.qs[j]) * scale;
      out[i + j + 16] = e2m1_to_f32(block.qs[j] >> 4) * scale;
    }
  }
}

float dot_mxfp4(const std::byte* row, const ActivationQ8_0* x, size_t elements) {
  float sum = 0;
  for (size_t i = 0; i < elements; i += BlockMXFP4::kElements, row += sizeof(BlockMXFP4), ++x) {
    BlockMXFP4 block;
    std::memcpy(&block, row, sizeof block);
    int32_t codes = 0;
    for (size_t j = 0; j < 16; ++j) {
      codes += kE2m1Doubled[block.qs[j] & 15] * x->q[j] + kE2m1Doubled[block.qs[j] >> 4] * x->q[j + 16];
    }
    sum += mxfp4_doubled_scale(block.exponent) * x->d * static_cast<float>(codes);
  }
  return sum;
}

}  // namespace ds4::format
