// What a packed row may differ by from another, computed in another order of additions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/kv_rows.hpp"
#include "format/fp8_e4m3.hpp"

namespace ds4::cuda {

/// Differences of the codes of packed rows.
struct RowDifference {
  size_t codes = 0;      // of FP8 or FP4 (two in a byte)
  size_t differing = 0;  // of them, by whatever
  size_t wrong = 0;      // values that no rounding explains
};

// A value before packing has an error of about 1e-6 of the largest ones of its row: a softmax and a root mean
// square in F32. It moves a code only where it lies that close to the middle between two codes, and then to
// the neighbour: the difference is at most the step between codes there, an eighth of the value for FP8 (2^-9
// of the scale below its normal numbers), a third for FP4 (half of the scale below 2). The same holds where
// the largest magnitude of a block lies that close to where the scale doubles. Tails are F16, where the error
// itself may be more than a step for values that nearly vanish in the rotation.

/// Packed attention rows (584 bytes).
inline RowDifference compare_attention_rows(const uint8_t* got, const std::byte* expected) {
  float a[512], b[512];
  const cpu::RowCodec codec(true);
  codec.decode_attention(reinterpret_cast<const std::byte*>(got), a);
  codec.decode_attention(expected, b);
  RowDifference d;
  d.codes = 448;
  float largest_tail = 0;
  for (size_t i = 448; i < 512; ++i) largest_tail = std::max(largest_tail, std::abs(b[i]));
  for (size_t i = 0; i < 512; ++i) {
    const double largest = std::max(std::abs(a[i]), std::abs(b[i])), error = std::abs(double{a[i]} - b[i]);
    double allowed = largest * 0x1p-10 + 4e-6 * largest_tail + 0x1p-24;
    if (i < 448) {
      const auto exponent = std::max(got[448 + i / 64], static_cast<uint8_t>(expected[448 + i / 64]));
      allowed = std::max(largest / 8, double{format::e8m0_to_f32(exponent)} * 0x1p-9);
      d.differing += got[i] != static_cast<uint8_t>(expected[i]);
    }
    d.wrong += !(error <= allowed);
  }
  d.wrong += got[455] != 0;
  return d;
}

/// Packed index rows (68 bytes).
inline RowDifference compare_index_rows(const uint8_t* got, const std::byte* expected) {
  float a[128], b[128];
  const cpu::RowCodec codec(true);
  codec.decode_index(reinterpret_cast<const std::byte*>(got), a);
  codec.decode_index(expected, b);
  RowDifference d;
  d.codes = 128;
  for (size_t i = 0; i < 128; ++i) {
    const double largest = std::max(std::abs(a[i]), std::abs(b[i])), error = std::abs(double{a[i]} - b[i]);
    const auto exponent = std::max(got[64 + i / 32], static_cast<uint8_t>(expected[64 + i / 32]));
    d.wrong += !(error <= std::max(largest / 3, double{format::e8m0_to_f32(exponent)} / 2) * (1 + 1e-6));
    d.differing += a[i] != b[i];
  }
  return d;
}

}  // namespace ds4::cuda
