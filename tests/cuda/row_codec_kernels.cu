#include "backend/cuda/attention/heads.cuh"
#include "row_codec_kernels.hpp"

namespace ds4::cuda {
namespace {

__global__ void attention_codec_kernel(const float* rows, uint8_t* packed, float* decoded) {
  const int lane = threadIdx.x;
  encode_attention_row(rows + size_t{blockIdx.x} * 512, packed + size_t{blockIdx.x} * attention_row_bytes,
                       lane);
  __syncwarp();
  decode_attention_row(packed + size_t{blockIdx.x} * attention_row_bytes, decoded + size_t{blockIdx.x} * 512,
                       lane);
}

__global__ void index_codec_kernel(const float* rows, uint8_t* packed, float* decoded, float* rounded) {
  const int lane = threadIdx.x;
  const float* row = rows + size_t{blockIdx.x} * 128 + 4 * lane;
  float v[4] = {row[0], row[1], row[2], row[3]};
  encode_index_row(v, packed + size_t{blockIdx.x} * index_row_bytes, lane);
  __syncwarp();
  decode_index_row(packed + size_t{blockIdx.x} * index_row_bytes, decoded + size_t{blockIdx.x} * 128, lane);
  float w[4] = {row[0], row[1], row[2], row[3]};
  round_index_query(w, lane);
  for (int i = 0; i < 4; ++i) rounded[size_t{blockIdx.x} * 128 + 4 * lane + i] = w[i];
}

__global__ void index_query_kernel(const float* raw, uint64_t position, const float* frequencies,
                                   float* prepared) {
  __shared__ float2 angles[rope_pair_count];
  const int lane = threadIdx.x;
  angles[lane] = rope_angle(position, frequencies, lane);
  __syncwarp();
  const float* row = raw + size_t{blockIdx.x} * 128 + 4 * lane;
  float v[4] = {row[0], row[1], row[2], row[3]};
  prepare_index_query(v, angles, lane);
  for (int i = 0; i < 4; ++i) prepared[size_t{blockIdx.x} * 128 + 4 * lane + i] = v[i];
}

__global__ void pair_kernel(float* out) {
  const uint32_t code = threadIdx.x, scale = bf16_scale_pair(blockIdx.x);
  // The neighbour has the complement, so that a value in the wrong half shows.
  const uint32_t e4m3 = e4m3_pair(code | (~code & 0xffu) << 8, scale);
  const uint32_t e2m1 = e2m1_pair((code & 15u) | (~code & 15u) << 4, scale);
  out[(blockIdx.x * 256 + code) * 2] = bf16_low(e4m3);
  out[(blockIdx.x * 256 + code) * 2 + 1] = code < 16 ? bf16_low(e2m1) : bf16_high(e2m1);
}

}  // namespace

void launch_attention_codec(const float* rows, size_t count, uint8_t* packed, float* decoded) {
  attention_codec_kernel<<<static_cast<unsigned>(count), 32>>>(rows, packed, decoded);
}
void launch_index_codec(const float* rows, size_t count, uint8_t* packed, float* decoded, float* rounded) {
  index_codec_kernel<<<static_cast<unsigned>(count), 32>>>(rows, packed, decoded, rounded);
}
void launch_index_queries(const float* raw, size_t count, uint64_t position, const float* frequencies,
                          float* prepared) {
  index_query_kernel<<<static_cast<unsigned>(count), 32>>>(raw, position, frequencies, prepared);
}

void launch_pair_decoders(float* out) {
  pair_kernel<<<256, 256>>>(out);
}

}  // namespace ds4::cuda
