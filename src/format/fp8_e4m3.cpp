#include "format/fp8_e4m3.hpp"

namespace ds4::format {

void decode_fp8_e4m3(const std::byte* codes, const std::byte* scales, size_t row, size_t cols, float* out) {
  const size_t tiles = (cols + kFp8Tile - 1) / kFp8Tile;
  const std::byte* row_codes = codes + row * cols;
  const std::byte* row_scales = scales + row / kFp8Tile * tiles;
  for (size_t i = 0; i < cols; ++i) {
    const auto code = static_cast<uint8_t>(row_codes[i]);
    const float scale = e8m0_to_f32(static_cast<uint8_t>(row_scales[i / kFp8Tile]));
    out[i] = (code & 127) == 127 ? 0.0f : e4m3_to_f32(code) * scale;
  }
}

}  // namespace ds4::format
