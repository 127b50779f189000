// Products of a warpgroup (four warps) on tensor cores: F16 operands, F32 sums, c[64][n] += a[64][16]
// b[n][16]^T (sm_90a).
//
// Accumulators of lane l in warp w of the warpgroup, with g = l / 4 and q = l mod 4: c[4 j + i] is row
// 16 w + g + 8 (i / 2), column 8 j + 2 q + i mod 2. A in registers: a[0] row 16 w + g, columns 2 q and the
// next; a[1] row + 8; a[2] columns + 8; a[3] both. Operands in shared memory are tiles of rows of 64 F16 (128
// bytes) in the 128-byte swizzle of the copy engine: chunk k (16 bytes) of row r lies at 128 r + 16 (k xor r
// mod 8), the tile aligned to 1024 bytes. Source: PTX ISA, "Asynchronous warpgroup level matrix
// instructions".
//
// Order: wgmma_begin() once the registers are written; products; wgmma_commit(); wgmma_wait<pending>() before
// registers or tiles are touched. Only kernels compiled for sm_90a may call these: `#ifdef
// __CUDA_ARCH_FEAT_SM90_ALL`.
#pragma once

#include <cstdint>

namespace ds4::cuda {

/// Upper half of every descriptor: 128-byte swizzle, 1024 bytes for 8 rows.
inline constexpr uint64_t wgmma_swizzle_descriptor = uint64_t{1} << 62 | uint64_t{1024 / 16} << 32;

/// Descriptor of a swizzled tile; `column` (a multiple of 16, below 64) is where the product begins in its
/// rows, and the first row a multiple of 8.
__device__ __forceinline__ uint64_t wgmma_tile(uint32_t shared_address, uint32_t column = 0) {
  const uint32_t address = shared_address + 2 * column;
  return wgmma_swizzle_descriptor | uint64_t{1} << 16 | (address & 0x3ffffu) >> 4;
}

__device__ __forceinline__ uint64_t wgmma_tile(const void* tile, uint32_t column = 0) {
  return wgmma_tile(static_cast<uint32_t>(__cvta_generic_to_shared(tile)), column);
}

/// The same tile 16 columns on.
__device__ __forceinline__ uint64_t wgmma_next_columns(uint64_t tile) {
  return tile + 32 / 16;
}

__device__ __forceinline__ void wgmma_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most `pending` committed groups are unfinished.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
/// Keeps the compiler from moving uses of accumulators across this place.
template <int n>
__device__ __forceinline__ void wgmma_pin(float (&c)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

/// Gives registers back to the pool of the block, or takes some: for all warps of a warpgroup, a multiple
/// of 8.
template <uint32_t registers>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <uint32_t registers>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

#define DS4_ACCUMULATORS_8(c, i)                                                              \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define DS4_ACCUMULATORS_16(c, i) DS4_ACCUMULATORS_8(c, i), DS4_ACCUMULATORS_8(c, i + 8)
#define DS4_ACCUMULATORS_32(c, i) DS4_ACCUMULATORS_16(c, i), DS4_ACCUMULATORS_16(c, i + 16)
#define DS4_ACCUMULATORS_64(c, i) DS4_ACCUMULATORS_32(c, i), DS4_ACCUMULATORS_32(c, i + 32)
#define DS4_ACCUMULATORS_128(c, i) DS4_ACCUMULATORS_64(c, i), DS4_ACCUMULATORS_64(c, i + 64)

// wgmma_f16(c, a, b, add): a is a tile of 64 rows or registers, b a tile of n rows. Without `add` c starts
// from zero.

/// n = 16.
__device__ __forceinline__ void wgmma_f16(float (&c)[8], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7}"
      ", %8, %9, p, 1, 1, 0, 0;\n}\n"
      : DS4_ACCUMULATORS_8(c, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void wgmma_f16(float (&c)[8], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7}"
      ", {%8, %9, %10, %11}, %12, p, 1, 1, 0;\n}\n"
      : DS4_ACCUMULATORS_8(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

/// n = 32.
__device__ __forceinline__ void wgmma_f16(float (&c)[16], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
      ", %16, %17, p, 1, 1, 0, 0;\n}\n"
      : DS4_ACCUMULATORS_16(c, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void wgmma_f16(float (&c)[16], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
      ", {%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}\n"
      : DS4_ACCUMULATORS_16(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

/// n = 48, a in registers.
__device__ __forceinline__ void wgmma_f16(float (&c)[24], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %29, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"
      "%23}"
      ", {%24, %25, %26, %27}, %28, p, 1, 1, 0;\n}\n"
      : DS4_ACCUMULATORS_16(c, 0), DS4_ACCUMULATORS_8(c, 16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

/// n = 64.
__device__ __forceinline__ void wgmma_f16(float (&c)[32], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31}"
      ", %32, %33, p, 1, 1, 0, 0;\n}\n"
      : DS4_ACCUMULATORS_32(c, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void wgmma_f16(float (&c)[32], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31}"
      ", {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
      : DS4_ACCUMULATORS_32(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

/// n = 80, a in registers.
__device__ __forceinline__ void wgmma_f16(float (&c)[40], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %45, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"
      "%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39}"
      ", {%40, %41, %42, %43}, %44, p, 1, 1, 0;\n}\n"
      : DS4_ACCUMULATORS_32(c, 0), DS4_ACCUMULATORS_8(c, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

/// n = 96, a in registers.
__device__ __forceinline__ void wgmma_f16(float (&c)[48], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"
      "%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,"
      "%44,%45,%46,%47}"
      ", {%48, %49, %50, %51}, %52, p, 1, 1, 0;\n}\n"
      : DS4_ACCUMULATORS_32(c, 0), DS4_ACCUMULATORS_16(c, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

/// n = 112, a in registers.
__device__ __forceinline__ void wgmma_f16(float (&c)[56], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %61, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n112k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"
      "%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,"
      "%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55}"
      ", {%56, %57, %58, %59}, %60, p, 1, 1, 0;\n}\n"
      : DS4_ACCUMULATORS_32(c, 0), DS4_ACCUMULATORS_16(c, 32), DS4_ACCUMULATORS_8(c, 48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

/// n = 128.
__device__ __forceinline__ void wgmma_f16(float (&c)[64], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
      ", %64, %65, p, 1, 1, 0, 0;\n}\n"
      : DS4_ACCUMULATORS_64(c, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void wgmma_f16(float (&c)[64], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
      ", {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"
      : DS4_ACCUMULATORS_64(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

/// n = 256.
__device__ __forceinline__ void wgmma_f16(float (&c)[128], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,"
      "%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,"
      "%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,"
      "%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}"
      ", %128, %129, p, 1, 1, 0, 0;\n}\n"
      : DS4_ACCUMULATORS_128(c, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void wgmma_f16(float (&c)[128], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,"
      "%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,"
      "%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,"
      "%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}"
      ", {%128, %129, %130, %131}, %132, p, 1, 1, 0;\n}\n"
      : DS4_ACCUMULATORS_128(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

/// n = 256 with b as it lies for a product along its rows: c[64][256] += a[64][16] b[16][256]. b is four
/// tiles of 64 columns, `tile_bytes` apart; its 16 rows begin at a multiple of 8 of the tiles.
__device__ __forceinline__ uint64_t wgmma_row_tiles(const void* tile, uint32_t tile_bytes) {
  const uint64_t bytes_between_tiles = uint64_t{tile_bytes / 16} << 16;
  return (wgmma_tile(tile) & ~(uint64_t{0x3fff} << 16)) | bytes_between_tiles;
}
__device__ __forceinline__ void wgmma_f16_rows(float (&c)[128], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
      "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,"
      "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,"
      "%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,"
      "%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,"
      "%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}"
      ", %128, %129, p, 1, 1, 0, 1;\n}\n"
      : DS4_ACCUMULATORS_128(c, 0)
      : "l"(a), "l"(b), "r"(1));
}

/// n = 128 with BF16 operands.
__device__ __forceinline__ void wgmma_bf16(float (&c)[64], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
      "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,"
      "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
      ", {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"
      : DS4_ACCUMULATORS_64(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

#undef DS4_ACCUMULATORS_8
#undef DS4_ACCUMULATORS_16
#undef DS4_ACCUMULATORS_32
#undef DS4_ACCUMULATORS_64
#undef DS4_ACCUMULATORS_128

}  // namespace ds4::cuda
