// What:   router probabilities, the best experts of each row and their weights (docs/model.md §8.1).
// Layout: logits [row][expert]; selected experts ascending, so that sums over experts have one order.
// Needs:  at most 1024 experts, at most 32 of them used.
// Bytes:  a few kilobytes a row; 2 comparisons for every expert and selected one.
// Why:    one warp a row: repeated arg-max by shuffles costs less than a launch, and "first largest" is the
// tie rule.
#include "backend/cuda/moe/route.hpp"

namespace ds4::cuda {
namespace {

constexpr int max_per_lane = 32;  // 1024 experts

__global__ void route_kernel(RouteJob job) {
  constexpr unsigned all = 0xffffffffu;
  const int row = blockIdx.x, lane = threadIdx.x;
  const float* logits = job.logits + static_cast<size_t>(row) * job.experts;
  float probability[max_per_lane], score[max_per_lane];
#pragma unroll
  for (int i = 0; i < max_per_lane; ++i) {
    const int e = i * 32 + lane;
    const float x = e < job.experts ? logits[e] : 0.0f;
    probability[i] = sqrtf(x > 20.0f ? x : log1pf(expf(x)));
    score[i] = e < job.experts ? probability[i] + (job.bias != nullptr ? job.bias[e] : 0.0f) : -INFINITY;
  }
  int mine = 0x7fffffff;  // lane k holds the expert chosen k-th
  if (job.table != nullptr) {
    if (lane < job.used) mine = job.table[static_cast<size_t>(job.rows[row].token) * job.used + lane];
  } else {
    for (int k = 0; k < job.used; ++k) {
      float best = -INFINITY;
      int expert = 0x7fffffff;
#pragma unroll
      for (int i = 0; i < max_per_lane; ++i) {
        const int e = i * 32 + lane;
        if (e < job.experts && (score[i] > best || expert == 0x7fffffff)) {
          if (!(score[i] == -INFINITY)) {
            best = score[i];
            expert = e;
          }
        }
      }
      for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(all, best, offset);
        const int other_expert = __shfl_xor_sync(all, expert, offset);
        const bool better = other > best || (other == best && other_expert < expert);
        if ((better && other_expert != 0x7fffffff) || expert == 0x7fffffff) {
          best = other;
          expert = other_expert;
        }
      }
      if (expert == 0x7fffffff)
        expert = k;  // nothing finite is left: a damaged model, but still a valid expert
      if (lane == k) mine = expert;
#pragma unroll
      for (int i = 0; i < max_per_lane; ++i) {
        if (i * 32 + lane == expert) score[i] = -INFINITY;
      }
    }
  }
  // Rank among the chosen gives the ascending order; equal ids (possible in a table) keep their places.
  int rank = 0;
  for (int k = 0; k < job.used; ++k) {
    const int other = __shfl_sync(all, mine, k);
    rank += other < mine || (other == mine && k < lane);
  }
  float chosen = 0;
  if (lane < job.used) {
    const float x = logits[mine];
    chosen = sqrtf(x > 20.0f ? x : log1pf(expf(x)));
    job.selected[row * job.used + rank] = mine;
  }
  __shared__ float ordered[32];
  if (lane < job.used) ordered[rank] = chosen;
  __syncwarp();
  float sum = 0;
  for (int k = 0; k < job.used; ++k) sum += ordered[k];
  if (lane < job.used)
    job.weights[row * job.used + lane] = ordered[lane] / fmaxf(sum, 6.103515625e-5f) * job.scale;
}

}  // namespace

cudaError_t route(const RouteJob& job, int rows, cudaStream_t stream) {
  route_kernel<<<rows, 32, 0, stream>>>(job);
  return cudaGetLastError();
}

}  // namespace ds4::cuda
