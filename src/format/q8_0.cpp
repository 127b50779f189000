#include "format/q8_0.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "format/f16.hpp"

namespace ds4::format {
namespace {

float block_scale(const float* x) {
  float largest = 0;
  for (size_t i = 0; i < BlockQ8_0::kElements; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest / 127.0f;
}

}  // namespace

void decode_q8_0(const std::byte* row, size_t elements, float* out) {
  for (size_t i = 0; i < elements; i += BlockQ8_0::kElements, row += sizeof(BlockQ8_0)) {
    BlockQ8_0 block;
    std::memcpy(&block, row, sizeof block);
    const float d = f16_to_f32(block.d);
    for (size_t j = 0; j < BlockQ8_0::kElements; ++j) out[i + j] = d * static_cast<float>(block.q[j]);
  }
}

void encode_q8_0(const float* row, size_t elements, std::byte* out) {
  for (size_t i = 0; i < elements; i += BlockQ8_0::kElements, out += sizeof(BlockQ8_0)) {
    const float d = block_scale(row + i);
    BlockQ8_0 block;
    block.d = f32_to_f16(d);
    for (size_t j = 0; j < BlockQ8_0::kElements; ++j) {
      block.q[j] =
          static_cast<int8_t>(std::clamp(std::round(d != 0 ? row[i + j] / d : 0.0f), -128.0f, 127.0f));
    }
    std::memcpy(out, &block, sizeof block);
  }
}

void quantize_activations_q8_0(const float* row, size_t elements, int8_t* codes, float* scales) {
  for (size_t i = 0; i < elements; i += BlockQ8_0::kElements) {
    const float d = block_scale(row + i);
    scales[i / BlockQ8_0::kElements] = d;
    for (size_t j = i; j < i + BlockQ8_0::kElements; ++j) {
      codes[j] = static_cast<int8_t>(std::clamp(std::nearbyint(d != 0 ? row[j] / d : 0.0f), -128.0f, 127.0f));
    }
  }
}

void quantize_activations_q8_0(const float* row, size_t elements, ActivationQ8_0* out) {
  for (size_t i = 0; i < elements; i += BlockQ8_0::kElements, ++out) {
    quantize_activations_q8_0(row + i, BlockQ8_0::kElements, out->q, &out->d);
  }
}

float dot_q8_0(const std::byte* row, const ActivationQ8_0* x, size_t elements) {
  float sum = 0;
  for (size_t i = 0; i < elements; i += BlockQ8_0::kElements, row += sizeof(BlockQ8_0), ++x) {
    BlockQ8_0 block;
    std::memcpy(&block, row, sizeof block);
    int32_t codes = 0;
    for (size_t j = 0; j < BlockQ8_0::kElements; ++j) codes += block.q[j] * x->q[j];
    sum += f16_to_f32(block.d) * x->d * static_cast<float>(codes);
  }
  return sum;
}

}  // namespace ds4::format
