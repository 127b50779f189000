// Plain structs that host code fills and kernels read: matrices, activations, rows of a batch, sequence
// state. Everything that depends on a position is read from device memory, so that one captured graph serves
// every token.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ds4/steering.hpp"
#include "format/tensor_type.hpp"

namespace ds4::cuda {

/// The most rows (tokens) of a decode pass, whose kernels are built for few rows.
inline constexpr int max_rows = 16;
/// How many of the newest tokens can be taken back.
inline constexpr int retractable_tokens = 16;
/// Slots of the raw ring: at least the window of 128, and what a pass writes or taking tokens back uncovers.
inline constexpr int ring_slots = 256;
static_assert(ring_slots >= 128 + max_rows && ring_slots >= 128 + retractable_tokens);
/// Rows in a page of compressed or index rows.
inline constexpr int rows_per_page = 64;
/// Packed rows: 448 FP8 codes, 7 exponents, 1 zero, 64 F16 (docs/model.md §3.3); 64 FP4 code bytes, 4
/// exponents.
inline constexpr int attention_row_bytes = 584;
inline constexpr int index_row_bytes = 68;

/// A weight matrix [rows][cols] repacked into aligned planes. For F32, F16 and BF16 `quants` is the plain
/// matrix.
///   Q8_0     quants int8 [rows][cols]          scales F16 [rows][cols / 32]
///   MXFP4    quants 16 bytes for 32 columns    scales E8M0 byte [rows][cols / 32]
///   Q4_K     quants 128 bytes for 256 columns  scales 16 bytes for 256: F16 d, F16 dmin, 12 packed bytes
///   Q2_K     quants 64 bytes for 256 columns   scales 16 bytes for 256; extras F16 d, F16 dmin for 256
///   IQ2_XXS  quants 64 bytes for 256 columns   extras F16 d for 256
struct DeviceMatrix {
  format::TensorType type = format::TensorType::f32;
  uint32_t rows = 0;
  uint32_t cols = 0;
  const uint8_t* quants = nullptr;
  const uint8_t* scales = nullptr;
  const uint8_t* extras = nullptr;
};

/// Activations of the rows of a pass: F32 and their int8 form (32 columns share one F32 scale; codes round
/// to even). Both lie in the same row order; a kernel uses the one that fits its weights.
struct DeviceActivations {
  const float* f32 = nullptr;     // [rows][stride]
  const int8_t* codes = nullptr;  // [rows][stride]
  const float* scales = nullptr;  // [rows][stride / 32]
  uint32_t stride = 0;            // columns of a row, a multiple of 32
};

/// Device memory of one layer of one sequence.
struct LayerCache {
  uint8_t* ring = nullptr;                // [ring_slots][584]; position p in slot p mod ring_slots
  uint8_t* const* pages = nullptr;        // compressed rows: row j in pages[j / 64] at (j mod 64) * 584
  uint8_t* const* index_pages = nullptr;  // index rows likewise, 68 bytes each
  float* values = nullptr;        // [compressor_slots(ratio)][width]: projections of the newest tokens,
  float* scores = nullptr;        // that at position p in slot p mod compressor_slots(ratio)
  float* index_values = nullptr;  // likewise, [compressor_slots(4)][256]
  float* index_scores = nullptr;
};

/// A window and, for ratio 4, the one before it; and what a pass writes before they are read, or taking
/// tokens back uncovers.
__host__ __device__ inline constexpr int compressor_slots(int ratio) {
  return (ratio == 4 ? 8 : ratio) + (max_rows > retractable_tokens ? max_rows : retractable_tokens);
}

/// One row of a pass.
struct RowInfo {
  int32_t token = 0;
  uint32_t place = 0;  // 0 for the first row of its sequence in this pass, then 1, 2, ...
  uint64_t position = 0;
  uint32_t rows_of_sequence = 1;  // rows of the same sequence in this pass, which follow each other
  uint32_t reserved = 0;
  const LayerCache* layers = nullptr;  // [layers (+ 1 for the drafter)]
  SteeringScales steering;
};

/// Which kernels a prefill pass takes: `best` takes warpgroup products where the device and the build have
/// them.
enum class PrefillKernel { best, portable };

/// Compressed rows visible to a token at `position`.
__host__ __device__ inline uint32_t visible_rows(uint64_t position, uint32_t ratio) {
  return ratio == 0 ? 0u : static_cast<uint32_t>((position + 1) / ratio);
}

}  // namespace ds4::cuda
