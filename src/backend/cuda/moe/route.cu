// What:   router probabilities, the best experts of each row and their weights (docs/model.md §8.1).
// Layout: logits [row][expert]; selected experts ascending, so that sums over experts have one order.
// Needs:  at most 1024 experts, at most 32 of them used.
// Bytes:  a few kilobytes a row; 2 comparisons for every expert and selected one.
// Why:    one warp a row: six rounds of the warp-wide maximum cost less than a second launch would.
#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/moe/route.hpp"

namespace ds4::cuda {
namespace {

constexpr unsigned all = 0xffffffffu;
constexpr int no_expert = 0x7fffffff;

__device__ float probability(float logit) {
  return sqrtf(logit > 20.0f ? logit : log1pf(expf(logit)));
}

// Keys compare as the numbers do; NaN and what was taken already have key 0, below every number.
__device__ uint32_t ordered_key(float x) {
  if (isnan(x)) return 0;
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Lane k gets the expert chosen k-th: the largest score, ties to the lower expert.
template <int per_lane>
__device__ int select(const RouteJob& job, const float* logits) {
  const int lane = threadIdx.x;
  uint32_t key[per_lane];
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const int e = i * 32 + lane;
    key[i] = e < job.experts ? ordered_key(probability(logits[e]) + job.bias[e]) : 0;
  }
  int mine = no_expert;
  for (int k = 0; k < job.used; ++k) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) best = max(best, key[i]);
    best = __reduce_max_sync(all, best);
    unsigned expert = no_expert;
#pragma unroll
    for (int i = per_lane - 1; i >= 0; --i) {
      if (key[i] == best && i * 32 + lane < job.experts) expert = i * 32 + lane;
    }
    expert = __reduce_min_sync(all, expert);
    if (best == 0) expert = k;  // no number is left: a damaged model, but still a valid expert
    if (lane == k) mine = static_cast<int>(expert);
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      if (i * 32 + lane == static_cast<int>(expert)) key[i] = 0;
    }
  }
  return mine;
}

template <int per_lane>
__global__ void __launch_bounds__(32) route_kernel(RouteJob job) {
  start_successor();
  wait_for_predecessor();
  const int row = blockIdx.x, lane = threadIdx.x;
  const float* logits = job.logits + static_cast<size_t>(row) * job.experts;
  int mine = no_expert;
  if (job.table == nullptr) {
    mine = select<per_lane>(job, logits);
  } else if (lane < job.used) {
    mine = job.table[static_cast<size_t>(job.rows[row].token) * job.used + lane];
  }
  // Rank among the chosen gives the ascending order; equal ids (possible in a table) keep their places.
  int rank = 0;
  for (int k = 0; k < job.used; ++k) {
    const int other = __shfl_sync(all, mine, k);
    rank += other < mine || (other == mine && k < lane);
  }
  __shared__ float ordered[32];
  if (lane < job.used) {
    job.selected[row * job.used + rank] = mine;
    ordered[rank] = probability(logits[mine]);
  }
  __syncwarp();
  float sum = 0;
  for (int k = 0; k < job.used; ++k) sum += ordered[k];
  if (lane < job.used) {
    job.weights[row * job.used + lane] = ordered[lane] / fmaxf(sum, 6.103515625e-5f) * job.scale;
  }
}

}  // namespace

cudaError_t route(const RouteJob& job, int rows, cudaStream_t stream) {
  if (job.experts > 1024) return cudaErrorInvalidValue;
  return launch(job.experts <= 256 ? route_kernel<8> : route_kernel<32>, rows, 32, 0, stream, job);
}

}  // namespace ds4::cuda
