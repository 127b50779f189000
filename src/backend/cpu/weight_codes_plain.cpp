// Plain-loop decoders of weight rows: the reference, and what processors without vector instructions run.
#include <cstring>

#include "backend/cpu/weight_tiles.hpp"
#include "format/f16.hpp"
#include "format/fp4_e2m1.hpp"
#include "format/iq2_xxs.hpp"
#include "format/iq2_xxs_tables.hpp"
#include "format/mxfp4.hpp"
#include "format/q2_k.hpp"
#include "format/q4_k.hpp"
#include "format/q8_0.hpp"

namespace ds4::cpu {
namespace {

using format::f16_to_f32;
using format::TensorType;

template <class Block>
Block block_at(const std::byte* row, size_t index) {
  Block block;
  std::memcpy(&block, row + index * sizeof block, sizeof block);
  return block;
}

void codes_q8_0(const std::byte* row, size_t cols, int8_t* codes, float* scales) {
  for (size_t b = 0; b < cols / 32; ++b) {
    const auto block = block_at<format::BlockQ8_0>(row, b);
    std::memcpy(codes + 32 * b, block.q, 32);
    scales[b] = f16_to_f32(block.d);
  }
}

void codes_mxfp4(const std::byte* row, size_t cols, int8_t* codes, float* scales) {
  for (size_t b = 0; b < cols / 32; ++b) {
    const auto block = block_at<format::BlockMXFP4>(row, b);
    for (size_t j = 0; j < 16; ++j) {
      codes[32 * b + j] = format::kE2m1Doubled[block.qs[j] & 15];
      codes[32 * b + j + 16] = format::kE2m1Doubled[block.qs[j] >> 4];
    }
    scales[b] = format::mxfp4_doubled_scale(block.exponent);
  }
}

void codes_q4_k(const std::byte* row, size_t cols, int8_t* codes, float* scales, float* min0, float* min1) {
  for (size_t k = 0; k < cols / 256; ++k, codes += 256, scales += 8, min0 += 8, min1 += 8) {
    const auto block = block_at<format::BlockQ4_K>(row, k);
    uint8_t block_scales[8], block_mins[8];
    format::unpack_q4_k_scales(block.scales, block_scales, block_mins);
    const float d = f16_to_f32(block.d), dmin = f16_to_f32(block.dmin);
    for (size_t j = 0; j < 8; ++j) {
      scales[j] = d * static_cast<float>(block_scales[j]);
      min0[j] = min1[j] = dmin * static_cast<float>(block_mins[j]);
    }
    for (size_t p = 0; p < 4; ++p) {
      for (size_t l = 0; l < 32; ++l) {
        codes[64 * p + l] = static_cast<int8_t>(block.qs[32 * p + l] & 15);
        codes[64 * p + 32 + l] = static_cast<int8_t>(block.qs[32 * p + l] >> 4);
      }
    }
  }
}

// The four-bit scales are multiplied into the codes (at most 45), which leaves one scale for the whole block.
void codes_q2_k(const std::byte* row, size_t cols, int8_t* codes, float* scales, float* min0, float* min1) {
  for (size_t k = 0; k < cols / 256; ++k, codes += 256, scales += 8, min0 += 8, min1 += 8) {
    const auto block = block_at<format::BlockQ2_K>(row, k);
    const float d = f16_to_f32(block.d), dmin = f16_to_f32(block.dmin);
    for (size_t j = 0; j < 8; ++j) scales[j] = d;
    for (size_t g = 0; g < 16; ++g) {
      (g % 2 == 0 ? min0 : min1)[g / 2] = dmin * static_cast<float>(block.scales[g] >> 4);
      const int scale = block.scales[g] & 15;
      const uint8_t* qs = block.qs + 32 * (g / 8) + 16 * (g % 2);
      const size_t shift = 2 * (g % 8 / 2);
      for (size_t l = 0; l < 16; ++l) codes[16 * g + l] = static_cast<int8_t>(scale * (qs[l] >> shift & 3));
    }
  }
}

void codes_iq2_xxs(const std::byte* row, size_t cols, int8_t* codes, float* scales) {
  for (size_t k = 0; k < cols / 256; ++k) {
    const auto block = block_at<format::BlockIQ2_XXS>(row, k);
    const float d = f16_to_f32(block.d);
    for (size_t b = 0; b < 8; ++b) {
      const uint32_t word = block.groups[b].signs_and_scale;
      *scales++ = d * static_cast<float>(2 * (word >> 28) + 1) * 0.125f;
      for (size_t octet = 0; octet < 4; ++octet) {
        const uint64_t grid = format::kIq2XxsGrid[block.groups[b].grid[octet]];
        const uint8_t signs = format::kIq2XxsSigns[word >> (7 * octet) & 127];
        for (size_t j = 0; j < 8; ++j) {
          const int level = static_cast<int>(grid >> (8 * j) & 255);
          *codes++ = static_cast<int8_t>(signs >> j & 1 ? -level : level);
        }
      }
    }
  }
}

}  // namespace

void decode_row_codes_plain(TensorType type, const std::byte* row, size_t cols, const CodeRow& out) {
  switch (type) {
    case TensorType::q8_0:
      return codes_q8_0(row, cols, out.codes, out.scales);
    case TensorType::mxfp4:
      return codes_mxfp4(row, cols, out.codes, out.scales);
    case TensorType::q4_k:
      return codes_q4_k(row, cols, out.codes, out.scales, out.min0, out.min1);
    case TensorType::q2_k:
      return codes_q2_k(row, cols, out.codes, out.scales, out.min0, out.min1);
    case TensorType::iq2_xxs:
      return codes_iq2_xxs(row, cols, out.codes, out.scales);
    default:
      return;
  }
}

}  // namespace ds4::cpu
