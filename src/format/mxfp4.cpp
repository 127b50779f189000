#include "format/mxfp4.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "format/fp4_e2m1.hpp"
#include "format/fp8_e4m3.hpp"

namespace ds4::format {
namespace {

/// The nearest code; the smaller magnitude where two are as near. Never the code of -0.
uint8_t nearest_code(float value) {
  const float x = std::fabs(value);
  const int code = x <= 0.25f   ? 0
                   : x <= 0.75f ? 1
                   : x <= 1.25f ? 2
                   : x <= 1.75f ? 3
                   : x <= 2.5f  ? 4
                   : x <= 3.5f  ? 5
                   : x <= 5.0f  ? 6
                                : 7;
  return static_cast<uint8_t>(code != 0 && value < 0 ? code | 8 : code);
}

/// Above it six times the scale is no float.
constexpr int kLargestExponent = 252;

/// 1 / 2^(exponent - 127)
float inverse_scale(int exponent) {
  return std::ldexp(1.0f, 127 - exponent);
}

BlockMXFP4 encode_block(const float* x, int exponent) {
  const float inverse = inverse_scale(exponent);
  BlockMXFP4 block;
  block.exponent = static_cast<uint8_t>(exponent);
  for (size_t j = 0; j < 16; ++j) {
    block.qs[j] = static_cast<uint8_t>(nearest_code(x[j] * inverse) | nearest_code(x[j + 16] * inverse) << 4);
  }
  return block;
}

double weighted_error(const BlockMXFP4& block, const float* x, const float* importance) {
  const double scale = std::ldexp(1.0, block.exponent - 127);
  double sum = 0;
  for (size_t j = 0; j < BlockMXFP4::kElements; ++j) {
    const int code = j < 16 ? block.qs[j] : block.qs[j - 16] >> 4;
    const double difference = double{e2m1_to_f32(static_cast<uint8_t>(code))} * scale - double{x[j]};
    sum += double{importance[j]} * difference * difference;
  }
  return sum;
}

}  // namespace

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

void encode_mxfp4(const float* row, size_t elements, const float* importance, std::byte* out) {
  for (size_t i = 0; i < elements; i += BlockMXFP4::kElements, out += sizeof(BlockMXFP4)) {
    const float* x = row + i;
    float largest = 0;
    for (size_t j = 0; j < BlockMXFP4::kElements; ++j) largest = std::max(largest, std::fabs(x[j]));
    BlockMXFP4 best{};
    if (largest > 0) {
      // The largest magnitude is 4 to 8 times the scale.
      const int exponent = std::clamp(std::ilogb(largest) - 2 + 127, 0, kLargestExponent);
      best = encode_block(x, exponent);
      double least = importance ? weighted_error(best, x, importance + i) : 0;
      for (const int other : {exponent + 1, exponent - 1}) {
        if (!importance || other < 0 || other > kLargestExponent) continue;
        const BlockMXFP4 block = encode_block(x, other);
        const double error = weighted_error(block, x, importance + i);
        if (error < least) least = error, best = block;
      }
    }
    std::memcpy(out, &best, sizeof best);
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
