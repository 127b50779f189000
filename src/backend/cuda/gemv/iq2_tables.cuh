// The IQ2_XXS tables in shared memory, made so that a look-up by all lanes of a warp never conflicts.
//
// A grid entry has eight levels out of {8, 25, 43}. It is kept as eight nibbles (level 0, 1, 2), which
// __byte_perm turns into signed bytes by selecting from {8, 25, 43, -, -8, -25, -43, -}: bit 2 of a nibble is
// the sign, so the sign pattern is one more look-up (128 entries: nibble j = 4 when the sign of element j is
// negative) and one XOR. 4 bytes an entry instead of 8 halve the look-up cost: one wavefront for 32 lanes
// instead of two. Layout: grid entry e, copy l (one copy for every lane, so that lane l only ever touches
// bank l) at byte 256 e + 4 l, the sign pattern of the low seven bits of e at 256 e + 128 + 4 l. An address
// is the index as byte 1 and the lane as byte 0: one byte permutation, whatever stands in the eighth bit of a
// sign index. With one copy, 32 random look-ups take 3.5 wavefronts on average; here 1. Per chunk of 64
// weights: 16 wavefronts of shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace ds4::cuda {

inline constexpr size_t iq2_pairs_bytes = 256 * 256;

/// format::kIq2XxsGrid with level j (bits 4j..4j+3) as 0, 1, 2 for 8, 25, 43 (from GGML, see NOTICE).
// clang-format off
static __device__ const uint32_t iq2_grid[256] = {
    0x00000000, 0x00000002, 0x00000011, 0x00000020, 0x00000022, 0x00000101, 0x00000110, 0x00000200,
    0x00000202, 0x00000220, 0x00000222, 0x00001001, 0x00001010, 0x00001100, 0x00001120, 0x00001201,
    0x00001210, 0x00002000, 0x00002002, 0x00002022, 0x00002202, 0x00010001, 0x00010010, 0x00010100,
    0x00010111, 0x00011000, 0x00012010, 0x00012120, 0x00020000, 0x00020002, 0x00020202, 0x00022002,
    0x00100001, 0x00100010, 0x00100100, 0x00100201, 0x00100210, 0x00101000, 0x00101002, 0x00101020,
    0x00101200, 0x00102001, 0x00102010, 0x00102100, 0x00102210, 0x00110000, 0x00110002, 0x00110020,
    0x00110200, 0x00111012, 0x00111221, 0x00112000, 0x00112101, 0x00120021, 0x00120100, 0x00121000,
    0x00122010, 0x00122210, 0x00200000, 0x00200011, 0x00200020, 0x00200110, 0x00200220, 0x00201001,
    0x00201010, 0x00201100, 0x00201102, 0x00202020, 0x00210010, 0x00211000, 0x00220002, 0x00220110,
    0x01000001, 0x01000010, 0x01000100, 0x01000201, 0x01001000, 0x01001200, 0x01002010, 0x01002100,
    0x01002111, 0x01010000, 0x01010020, 0x01010200, 0x01011100, 0x01011122, 0x01012000, 0x01020210,
    0x01021011, 0x01100000, 0x01100020, 0x01100200, 0x01100211, 0x01101021, 0x01102000, 0x01110120,
    0x01111202, 0x01120000, 0x01120112, 0x01200001, 0x01200010, 0x01200100, 0x01201000, 0x01202001,
    0x01210000, 0x01210011, 0x01212200, 0x01221101, 0x02000000, 0x02000002, 0x02000022, 0x02001010,
    0x02001201, 0x02002000, 0x02002002, 0x02010221, 0x02011020, 0x02020000, 0x02020002, 0x02100001,
    0x02100010, 0x02100100, 0x02101000, 0x02101112, 0x02110000, 0x02111001, 0x02111210, 0x02122100,
    0x02200020, 0x02200200, 0x02202110, 0x02221010, 0x10000001, 0x10000010, 0x10000100, 0x10000120,
    0x10000201, 0x10000210, 0x10001000, 0x10001020, 0x10001112, 0x10001200, 0x10002001, 0x10002010,
    0x10002100, 0x10010000, 0x10010200, 0x10011201, 0x10012000, 0x10012011, 0x10020001, 0x10020100,
    0x10021020, 0x10021112, 0x10021220, 0x10100000, 0x10100020, 0x10100200, 0x10102000, 0x10102121,
    0x10110102, 0x10110210, 0x10120000, 0x10200001, 0x10200010, 0x10200100, 0x10201000, 0x10201011,
    0x10210000, 0x10211120, 0x10211201, 0x10212002, 0x10221011, 0x10222100, 0x11000000, 0x11000020,
    0x11000101, 0x11000121, 0x11000200, 0x11002000, 0x11002020, 0x11010010, 0x11011002, 0x11012210,
    0x11022101, 0x11102100, 0x11102102, 0x11110022, 0x11120001, 0x11121110, 0x11200000, 0x11200101,
    0x11200121, 0x11201210, 0x11211000, 0x11220020, 0x12000010, 0x12000100, 0x12001000, 0x12001220,
    0x12010000, 0x12011111, 0x12020120, 0x12021200, 0x12100000, 0x12100011, 0x12110100, 0x12110102,
    0x12112010, 0x12201002, 0x20000000, 0x20000002, 0x20000022, 0x20001001, 0x20002002, 0x20010010,
    0x20010120, 0x20011000, 0x20020101, 0x20100001, 0x20100010, 0x20100100, 0x20100111, 0x20101000,
    0x20101200, 0x20110000, 0x20111012, 0x20112110, 0x20120021, 0x20121000, 0x20121200, 0x20200002,
    0x20210010, 0x20220101, 0x21000010, 0x21000100, 0x21000210, 0x21001000, 0x21002201, 0x21010112,
    0x21012000, 0x21021011, 0x21100000, 0x21100202, 0x21101010, 0x21111101, 0x21202001, 0x21210200,
    0x22000002, 0x22001100, 0x22002011, 0x22010021, 0x22020000, 0x22100120, 0x22201100, 0x22210010,
};
// clang-format on

/// Nibble j is 4 when bit j of sign pattern n is set; bit 7 makes the number of set bits even.
__device__ __forceinline__ uint32_t iq2_sign_nibbles(uint32_t n) {
  uint32_t bits = n | (__popc(n) & 1u) << 7;
  bits = (bits | bits << 12) & 0x000f000fu;
  bits = (bits | bits << 6) & 0x03030303u;
  return ((bits | bits << 3) & 0x11111111u) << 2;
}

/// prmt takes four selectors from the low 16 bits; their top bits are clear here, so no masking is needed.
__device__ __forceinline__ uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selectors) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selectors));
  return result;
}

/// Every thread of the block calls this, then the block synchronises.
__device__ inline void fill_iq2_pairs(uint8_t* pairs) {
  for (uint32_t i = threadIdx.x; i < 256 * 16; i += blockDim.x) {
    const uint32_t v = i % 16 < 8 ? iq2_grid[i / 16] : iq2_sign_nibbles(i / 16 % 128);
    reinterpret_cast<uint4*>(pairs)[i] = make_uint4(v, v, v, v);
  }
}

/// 32 weights of one group, without their scale, from the pairs, as eight words of signed bytes.
__device__ __forceinline__ void iq2_group(uint32_t indices, uint32_t signs, const uint8_t* pairs,
                                          int* words) {
  const uint32_t lane = threadIdx.x % 32 * 4;
#pragma unroll
  for (uint32_t l = 0; l < 4; ++l) {
    // Sign index l is bits 7l .. 7l + 6: times 2^l it begins at byte l.
    const uint32_t select = 0x5504u | l << 4;
    const uint32_t grid_at = permute_bytes(indices, lane, select);
    const uint32_t sign_at = permute_bytes(signs * (1u << l), lane, select);
    const uint32_t grid = *reinterpret_cast<const uint32_t*>(pairs + grid_at);
    const uint32_t sign = *reinterpret_cast<const uint32_t*>(pairs + 128 + sign_at);
    const uint32_t selectors = grid ^ sign;
    // -8 = 0xf8, -25 = 0xe7, -43 = 0xd5
    words[2 * l] = static_cast<int>(permute_bytes(0x002b1908u, 0x00d5e7f8u, selectors));
    words[2 * l + 1] = static_cast<int>(permute_bytes(0x002b1908u, 0x00d5e7f8u, selectors >> 16));
  }
}

/// As iq2_group(), for pairs that begin at a multiple of 64 KiB of the shared window: a byte permutation
/// makes the whole address out of that of the lane's copy of entry 0.
__device__ __forceinline__ void iq2_group_at(uint32_t indices, uint32_t signs, uint32_t lane_address,
                                             int* words) {
#pragma unroll
  for (uint32_t l = 0; l < 4; ++l) {
    const uint32_t select = 0x7604u | l << 4;
    const uint32_t grid_at = permute_bytes(indices, lane_address, select);
    const uint32_t sign_at = permute_bytes(signs * (1u << l), lane_address, select);
    uint32_t grid, sign;
    // Volatile, so that they stay behind the barrier that follows the filling.
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(grid) : "r"(grid_at));
    asm volatile("ld.shared.u32 %0, [%1+128];" : "=r"(sign) : "r"(sign_at));
    const uint32_t selectors = grid ^ sign;
    words[2 * l] = static_cast<int>(permute_bytes(0x002b1908u, 0x00d5e7f8u, selectors));
    words[2 * l + 1] = static_cast<int>(permute_bytes(0x002b1908u, 0x00d5e7f8u, selectors >> 16));
  }
}

}  // namespace ds4::cuda
