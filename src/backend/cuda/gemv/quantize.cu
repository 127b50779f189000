// F32 activations to int8 codes with one F32 scale for 32 columns: d = max|x| / 127, codes = x / d rounded to
// even. Layout: input, codes and scales row-major with one stride (device_types.hpp). Preconditions: columns
// and stride are multiples of 32; input aligned to 16 bytes. Bytes: 5.125 for a value; about 4 FLOPs. At 16
// rows of 4096: 336 KB, so the launch itself is the cost. Why: eight lanes hold a block as one float4 each:
// whole sectors, three shuffles, one 4-byte store for four codes.
#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/gemv/quantize.hpp"
#include "backend/cuda/gemv/quantize_device.cuh"

namespace ds4::cuda {
namespace {

__global__ void quantize_kernel(QuantizeRows args) {
  start_successor();
  wait_for_predecessor();
  const uint32_t column = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  const bool inside = column < args.cols;  // the same for the eight lanes of a block of 32
  const size_t at = size_t{blockIdx.y} * args.stride + column;
  float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (inside) x = *reinterpret_cast<const float4*>(args.input + at);
  uint32_t largest =
      max(max(magnitude_bits(x.x), magnitude_bits(x.y)), max(magnitude_bits(x.z), magnitude_bits(x.w)));
#pragma unroll
  for (int mask = 4; mask > 0; mask >>= 1) largest = max(largest, __shfl_xor_sync(~0u, largest, mask));
  if (!inside) return;
  const float d = activation_scale(largest);
  char4 codes;
  codes.x = static_cast<signed char>(activation_code(x.x, d));
  codes.y = static_cast<signed char>(activation_code(x.y, d));
  codes.z = static_cast<signed char>(activation_code(x.z, d));
  codes.w = static_cast<signed char>(activation_code(x.w, d));
  *reinterpret_cast<char4*>(args.codes + at) = codes;
  if (threadIdx.x % 8 == 0) args.scales[at / 32] = d;
}

}  // namespace

cudaError_t quantize(const QuantizeRows& rows, cudaStream_t stream) {
  if (rows.cols % 32 != 0 || rows.stride % 32 != 0 || rows.cols > rows.stride) return cudaErrorInvalidValue;
  if (rows.rows == 0 || rows.cols == 0) return cudaSuccess;
  constexpr uint32_t threads = 128;
  const uint32_t blocks = (rows.cols / 4 + threads - 1) / threads;
  return launch(quantize_kernel, dim3(blocks, rows.rows), threads, 0, stream, rows);
}

}  // namespace ds4::cuda
