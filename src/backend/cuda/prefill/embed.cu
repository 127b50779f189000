// What:   rows of the embedding table decoded to F32, four copies each (docs/model.md §4).
// Layout: a block for a token, four columns a thread at a time.
// Needs:  columns a multiple of 32; tokens inside the table.
// Bytes:  a row of the table in, 16 d out: 268 MB for 4096 tokens of Flash.
// Why:    the table lies on the device, so that no host thread decodes or copies rows while the GPU waits.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/prefill/embed.hpp"

namespace ds4::cuda {
namespace {

constexpr int threads = 256;

using format::TensorType;

template <TensorType type>
__device__ float element(const DeviceMatrix& table, size_t index) {
  if constexpr (type == TensorType::f32) {
    return reinterpret_cast<const float*>(table.quants)[index];
  } else if constexpr (type == TensorType::f16) {
    return __half2float(reinterpret_cast<const __half*>(table.quants)[index]);
  } else if constexpr (type == TensorType::bf16) {
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(table.quants)[index]);
  } else {
    const float scale = __half2float(reinterpret_cast<const __half*>(table.scales)[index / 32]);
    return static_cast<float>(reinterpret_cast<const int8_t*>(table.quants)[index]) * scale;
  }
}

template <TensorType type>
__global__ void __launch_bounds__(threads)
    embed_kernel(DeviceMatrix table, const RowInfo* __restrict__ rows, float* __restrict__ streams) {
  const size_t row = blockIdx.x, d = table.cols;
  const size_t first = static_cast<size_t>(rows[row].token) * d;
  for (size_t column = 4 * threadIdx.x; column < d; column += 4 * threads) {
    float4 v;
    v.x = element<type>(table, first + column);
    v.y = element<type>(table, first + column + 1);
    v.z = element<type>(table, first + column + 2);
    v.w = element<type>(table, first + column + 3);
    for (size_t h = 0; h < 4; ++h) {
      *reinterpret_cast<float4*>(streams + (row * 4 + h) * d + column) = v;
    }
  }
}

}  // namespace

bool is_embedding_type(TensorType type) {
  return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16 ||
         type == TensorType::q8_0;
}

cudaError_t embed_tokens(const DeviceMatrix& table, const RowInfo* rows, uint32_t row_count, float* streams,
                         cudaStream_t stream) {
  if (row_count == 0) return cudaSuccess;
  switch (table.type) {
    case TensorType::f32:
      embed_kernel<TensorType::f32><<<row_count, threads, 0, stream>>>(table, rows, streams);
      break;
    case TensorType::f16:
      embed_kernel<TensorType::f16><<<row_count, threads, 0, stream>>>(table, rows, streams);
      break;
    case TensorType::bf16:
      embed_kernel<TensorType::bf16><<<row_count, threads, 0, stream>>>(table, rows, streams);
      break;
    case TensorType::q8_0:
      embed_kernel<TensorType::q8_0><<<row_count, threads, 0, stream>>>(table, rows, streams);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace ds4::cuda
