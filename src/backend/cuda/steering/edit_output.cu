// What:   y <- y - scale * d * (d . y) for the rows of a pass.
// Layout: y F32 [row][width]; a block for each row.
// Needs:  nothing.
// Bytes:  a row twice in, once out; 4 FLOPs a value.
// Why:    runs only when somebody steers; the direction stays in L2 and the row in L1 between the two
// readings.
#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/steering/edit_output.hpp"

namespace ds4::cuda {
namespace {

constexpr int threads = 256;

__global__ void __launch_bounds__(threads) edit_kernel(OutputEdit edit) {
  __shared__ float reduce[32];
  const RowInfo& info = edit.rows[blockIdx.x];
  const float scale =
      edit.component == Component::attention ? info.steering.attention : info.steering.feed_forward;
  wait_for_predecessor();
  start_successor();  // after the wait: kernels that follow count on what came before being complete
  if (scale == 0.0f) return;
  float* y = edit.out + size_t{blockIdx.x} * edit.width;
  float sum = 0;
  for (uint32_t i = threadIdx.x; i < edit.width; i += threads) sum = fmaf(edit.direction[i], y[i], sum);
  const float amount = scale * block_sum(sum, reduce);
  for (uint32_t i = threadIdx.x; i < edit.width; i += threads) y[i] = fmaf(-amount, edit.direction[i], y[i]);
}

}  // namespace

cudaError_t edit_output(const OutputEdit& edit, int rows, cudaStream_t stream) {
  return launch(edit_kernel, dim3(static_cast<unsigned>(rows)), threads, 0, stream, edit);
}

}  // namespace ds4::cuda
