// What: query heads divided by their root mean square, tail rotated; index heads rotated, transformed,
// rounded to FP4. Layout: one warp for a head; lane l of a query head holds elements 128 i + 4 l .. + 3, of
// an index head 4 l .. + 3. Preconditions: heads on 16 bytes; frequencies are those of the layer. Bytes and
// FLOPs: 4 KB read and written a query head, about 1600 FLOP; all in L2. 4 MB for 16 rows of 64 heads. Why
// this shape: everything a head needs is within one warp, so that no block has to wait.
#include "backend/cuda/attention/heads.hpp"
#include "backend/cuda/attention/rope.cuh"
#include "backend/cuda/attention/row_codec.cuh"

namespace ds4::cuda {
namespace {

constexpr int warps_per_block = 4;

__device__ void prepare_query(float* head, uint64_t position, const float* frequencies, int lane) {
  float4 v[4];
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    v[i] = reinterpret_cast<const float4*>(head)[32 * i + lane];
    sum = fmaf(v[i].x, v[i].x, fmaf(v[i].y, v[i].y, fmaf(v[i].z, v[i].z, fmaf(v[i].w, v[i].w, sum))));
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fmul_rn(sum, 1.0f / 512.0f), 1e-6f)));
  for (float4& x : v) x = make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse);
  if (lane >= 16) {  // elements 448 and up
    const int pair = 2 * (lane - 16);
    rotate(v[3].x, v[3].y, rope_angle(position, frequencies, pair));
    rotate(v[3].z, v[3].w, rope_angle(position, frequencies, pair + 1));
  }
  for (int i = 0; i < 4; ++i) reinterpret_cast<float4*>(head)[32 * i + lane] = v[i];
}

__device__ void prepare_index_query(float* head, uint64_t position, const float* frequencies, int lane) {
  const float4 x = reinterpret_cast<const float4*>(head)[lane];
  float v[4] = {x.x, x.y, x.z, x.w};
  if (lane >= 16) {  // elements 64 and up
    const int pair = 2 * (lane - 16);
    rotate(v[0], v[1], rope_angle(position, frequencies, pair));
    rotate(v[2], v[3], rope_angle(position, frequencies, pair + 1));
  }
  round_index_query(v, lane);
  reinterpret_cast<float4*>(head)[lane] = make_float4(v[0], v[1], v[2], v[3]);
}

__global__ void __launch_bounds__(32 * warps_per_block) prepare_heads_kernel(HeadsArguments a) {
  const int lane = threadIdx.x % 32;
  const uint32_t head = blockIdx.x * warps_per_block + threadIdx.x / 32;
  const RowInfo& row = a.rows[blockIdx.y];
  const uint64_t position = row.position;
  if (head < a.heads) {
    prepare_query(a.query + (size_t{blockIdx.y} * a.heads + head) * 512, position, a.frequencies, lane);
  } else if (head < a.heads + a.index_heads && visible_rows(position, 4) > a.top_k) {
    prepare_index_query(a.index_query + (size_t{blockIdx.y} * a.index_heads + head - a.heads) * 128, position,
                        a.frequencies, lane);
  }
}

}  // namespace

cudaError_t prepare_heads(const HeadsArguments& arguments, cudaStream_t stream) {
  const uint32_t heads = arguments.heads + arguments.index_heads;
  const dim3 grid((heads + warps_per_block - 1) / warps_per_block, arguments.row_count);
  prepare_heads_kernel<<<grid, 32 * warps_per_block, 0, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace ds4::cuda
