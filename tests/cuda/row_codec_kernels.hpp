// Launches of the device row codec, for tests: one warp a row, everything in device memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds4::cuda {

/// rows [count][512] to packed [count][584], and back to decoded [count][512].
void launch_attention_codec(const float* rows, size_t count, uint8_t* packed, float* decoded);
/// rows [count][128] to packed [count][68], to decoded [count][128], and to rounded query heads [count][128].
void launch_index_codec(const float* rows, size_t count, uint8_t* packed, float* decoded, float* rounded);
/// raw index query heads [count][128] of one position to prepared ones; frequencies [32].
void launch_index_queries(const float* raw, size_t count, uint64_t position, const float* frequencies,
                          float* prepared);
/// Both BF16 decoders for every code and exponent: out [256 exponents][256 codes][2], the value of the low
/// half.
void launch_pair_decoders(float* out);

}  // namespace ds4::cuda
