// Raw GGUF blocks to aligned planes.
// Layout: device_types.hpp; every plane is linear in the block index, so rows and columns do not matter here.
// Preconditions: raw blocks staged in device memory at any alignment, planes aligned to 16 bytes.
// Bytes: each block is read once and written once; no arithmetic. The host link is 50 times slower than this.
// Why: one thread makes one 4-byte word of an output plane from single bytes, since 17, 34 and 66 byte blocks
// leave nothing better aligned; neighbouring threads share the sectors they read and write whole sectors.
#include "backend/cuda/repack/repack.hpp"

namespace ds4::cuda {
namespace {

using format::TensorType;

/// Where the parts of a raw block lie: byte offset and length; length 0 when the part does not exist.
struct BlockLayout {
  uint32_t elements = 0, bytes = 0;
  uint32_t quants_at = 0, quants_bytes = 0;
  uint32_t scales_at = 0, scales_bytes = 0;
  uint32_t extras_at = 0, extras_bytes = 0;
};

BlockLayout block_layout(TensorType type) {
  switch (type) {
    case TensorType::q8_0:
      return {32, 34, 2, 32, 0, 2, 0, 0};
    case TensorType::mxfp4:
      return {32, 17, 1, 16, 0, 1, 0, 0};
    case TensorType::q4_k:
      return {256, 144, 16, 128, 0, 16, 0, 0};
    case TensorType::q2_k:
      return {256, 84, 16, 64, 0, 16, 80, 4};
    case TensorType::iq2_xxs:
      return {256, 66, 2, 64, 0, 0, 0, 2};
    default:
      return {};
  }
}

__device__ uint32_t word_at(const uint8_t* bytes) {
  return uint32_t{bytes[0]} | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16 | uint32_t{bytes[3]} << 24;
}

__device__ void copy_part(const uint8_t* from, uint8_t* to, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; ++i) to[i] = from[i];
}

__global__ void repack_kernel(BlockLayout layout, const uint8_t* __restrict__ raw, size_t first_block,
                              size_t words, uint8_t* __restrict__ quants, uint8_t* __restrict__ scales,
                              uint8_t* __restrict__ extras) {
  const uint32_t words_per_block = layout.quants_bytes / 4;
  const size_t threads = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += threads) {
    const size_t block = i / words_per_block;
    const uint32_t word = static_cast<uint32_t>(i - block * words_per_block);
    const uint8_t* source = raw + block * layout.bytes;
    const size_t target = first_block + block;
    reinterpret_cast<uint32_t*>(quants + target * layout.quants_bytes)[word] =
        word_at(source + layout.quants_at + 4 * word);
    if (word == 0) {
      copy_part(source + layout.scales_at, scales + target * layout.scales_bytes, layout.scales_bytes);
    }
    if (word == 1) {
      copy_part(source + layout.extras_at, extras + target * layout.extras_bytes, layout.extras_bytes);
    }
  }
}

}  // namespace

size_t plane_bytes(TensorType type, size_t rows, size_t cols, Plane plane) {
  if (type == TensorType::f32) return plane == Plane::quants ? rows * cols * 4 : 0;
  if (type == TensorType::f16 || type == TensorType::bf16)
    return plane == Plane::quants ? rows * cols * 2 : 0;
  const BlockLayout layout = block_layout(type);
  if (layout.elements == 0) return 0;
  const size_t blocks = rows * (cols / layout.elements);
  switch (plane) {
    case Plane::quants:
      return blocks * layout.quants_bytes;
    case Plane::scales:
      return blocks * layout.scales_bytes;
    case Plane::extras:
      return blocks * layout.extras_bytes;
  }
  return 0;
}

cudaError_t repack(TensorType type, const uint8_t* raw_blocks, size_t first_block, size_t block_count,
                   const DeviceMatrix& destination, cudaStream_t stream) {
  const BlockLayout layout = block_layout(type);
  if (layout.elements == 0 || destination.type != type) return cudaErrorInvalidValue;
  const size_t blocks = size_t{destination.rows} * (destination.cols / layout.elements);
  if (first_block > blocks || block_count > blocks - first_block) return cudaErrorInvalidValue;
  if (block_count == 0) return cudaSuccess;
  const size_t words = block_count * (layout.quants_bytes / 4);
  constexpr uint32_t threads = 256;
  const size_t grid = (words + threads - 1) / threads;
  // The planes are const for every kernel but this one, which fills them.
  repack_kernel<<<static_cast<uint32_t>(grid < 65536 ? grid : 65536), threads, 0, stream>>>(
      layout, raw_blocks, first_block, words, const_cast<uint8_t*>(destination.quants),
      const_cast<uint8_t*>(destination.scales), const_cast<uint8_t*>(destination.extras));
  return cudaPeekAtLastError();
}

}  // namespace ds4::cuda
