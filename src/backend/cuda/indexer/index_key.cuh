// Index keys in the registers of the lanes that multiply them: packed FP4 rows to BF16 fragments.
//
// Lane c of four owns block c of 32 elements of a key: byte j of the block holds elements j and j + 16, one
// BF16 pair. As operand of products over 16 columns at a time, pair 2 s is columns 16 s + 2 c and the next,
// pair 2 s + 1 columns 16 s + 8 + 2 c and the next; queries are permuted to match: element 32 c + j + 16 i
// lies in column 8 j + 2 c + i.
#pragma once

#include "backend/cuda/attention/row_codec.cuh"

namespace ds4::cuda {

struct KeyFragment {
  uint32_t pair[16];
};

__device__ inline void load_key(const uint8_t* row, int c, KeyFragment& key) {
  const uint32_t* codes = reinterpret_cast<const uint32_t*>(row + 16 * c);
  const uint32_t scale = bf16_scale_pair(row[index_exponents_offset + c]);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = codes[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) key.pair[4 * i + j] = e2m1_pair(word >> 8 * j & 0xffu, scale);
  }
}

}  // namespace ds4::cuda
