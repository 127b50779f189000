// What:   adds the squares of what the matrices of routed experts are multiplied with to running sums.
// Layout: activations in order of places, columns permuted (half_expert_scratch.cuh); sums F64
// [expert][column]. Needs:  places sorted; x and mid complete, x not yet written over. Bytes:  2 for an
// activation, and 16 for a sum; 4 FLOPs an activation, half of them F64. Why:    a thread adds one place
// after the other to the sums that are there: their order is that of the tokens, however a text is cut. Runs
// only when somebody collects.
#include "backend/cuda/gemm/half_expert_scratch.cuh"

namespace ds4::cuda {
namespace {

constexpr uint32_t threads = 128;

struct Rows {
  const __half* values;  // [places][stride]
  uint32_t stride, cols;
  double* sums;  // [E][cols]
};

/// Two neighbouring positions of one expert's rows. `tokens` may be null.
__global__ void __launch_bounds__(threads)
    add_squares_kernel(Rows rows, const uint32_t* expert_first, const uint32_t* expert_count,
                       unsigned long long* tokens) {
  const uint32_t expert = blockIdx.y, position = (blockIdx.x * threads + threadIdx.x) * 2;
  const uint32_t first = expert_first[expert], count = expert_count[expert];
  if (tokens != nullptr && position == 0) tokens[expert] += count;
  if (position >= rows.stride || count == 0) return;
  const uint32_t s = position / 16 % 8, h = position / 8 % 2, c = position / 2 % 4;
  const uint32_t column = position / expert_step_columns * expert_step_columns + 32 * c + 4 * s + h;
  if (column >= rows.cols) return;
  double* const to = rows.sums + size_t{expert} * rows.cols + column;
  double low = to[0], high = to[2];
  const __half* const from = rows.values + size_t{first} * rows.stride + position;
#pragma unroll 8
  for (uint32_t i = 0; i < count; ++i) {
    const float2 x = __half22float2(*reinterpret_cast<const __half2*>(from + size_t{i} * rows.stride));
    low += double{x.x} * double{x.x};
    high += double{x.y} * double{x.y};
  }
  to[0] = low;
  to[2] = high;
}

}  // namespace

cudaError_t add_expert_inputs(const HalfExperts& args, const HalfExpertScratch& scratch,
                              cudaStream_t stream) {
  const auto add = [&](const Rows& rows, unsigned long long* tokens) {
    const dim3 grid((rows.stride / 2 + threads - 1) / threads, args.experts);
    add_squares_kernel<<<grid, threads, 0, stream>>>(rows, scratch.expert_first, scratch.expert_count,
                                                     tokens);
    return cudaPeekAtLastError();
  };
  const HalfExpertInputSums& sums = args.sums;
  const cudaError_t status = add({scratch.x, scratch.x_stride, args.gate.cols, sums.gate_up}, sums.tokens);
  if (status != cudaSuccess) return status;
  return add({scratch.mid, scratch.mid_stride, args.down.cols, sums.down}, nullptr);
}

}  // namespace ds4::cuda
