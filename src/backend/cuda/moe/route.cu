// What:   router probabilities, the best experts of each row and their weights (docs/model.md §8.1).
// Layout: logits [row][expert]; selected experts ascending, so that sums over experts have one order. A block
// for a
//         row; two threads for an expert compare it with half of the others each.
// Needs:  at most 1024 experts, at most 32 of them used.
// Bytes:  a few kilobytes a row; a comparison for every pair of experts.
// Why:    counting who is better needs no rounds that wait for each other: the whole choice is three
// barriers.
#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/moe/route.hpp"

namespace ds4::cuda {
namespace {

constexpr unsigned all = 0xffffffffu;
constexpr int most_experts = 1024, most_used = 32;
constexpr int threads = 512;

__device__ float probability(float logit) {
  return sqrtf(logit > 20.0f ? logit : log1pf(expf(logit)));
}

// Keys compare as the numbers do, NaN below every number. Above 0, so that one less is still a key.
__device__ uint32_t ordered_key(float x) {
  if (isnan(x)) return 1;
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u ? ~bits : bits | 0x80000000u) + 1;
}

struct Shared {
  alignas(16) uint32_t keys[most_experts];  // 0 beyond the last expert
  float probabilities[most_experts];
  int ranks[threads];  // of the second half of comparisons
  int counts[most_experts / 32];
  int chosen[most_used];
};

/// How many of keys [begin, end) are better than expert e: larger, or as large and lower in number.
__device__ int better(const Shared& s, int e, int begin, int end) {
  const uint32_t key = s.keys[e];
  int rank = 0;
#pragma unroll 8
  for (int j = begin; j < end; j += 4) {
    const uint4 other = *reinterpret_cast<const uint4*>(&s.keys[j]);
    rank += (other.x > key - (j < e)) + (other.y > key - (j + 1 < e)) + (other.z > key - (j + 2 < e)) +
            (other.w > key - (j + 3 < e));
  }
  return rank;
}

/// The experts with the largest scores, ties to the lower one, ascending into s.chosen.
__device__ void choose(const RouteJob& job, Shared& s) {
  constexpr int half = threads / 2;
  const int lane = threadIdx.x % 32, padded = (job.experts + 31) / 32 * 32, middle = padded / 2 / 4 * 4;
  const int part = threadIdx.x / half;
  int before = 0;  // experts chosen in earlier rounds
  for (int base = 0; base < padded; base += half) {
    const int e = base + static_cast<int>(threadIdx.x) % half;
    const int rank = e >= padded ? most_experts
                     : part == 0 ? better(s, e, 0, middle)
                                 : better(s, e, middle, padded);
    if (part == 1) s.ranks[threadIdx.x] = rank;
    __syncthreads();
    const bool chosen = part == 0 && e < job.experts && rank + s.ranks[threadIdx.x + half] < job.used;
    const unsigned votes = __ballot_sync(all, chosen);
    if (part == 0 && lane == 0) s.counts[threadIdx.x / 32] = __popc(votes);
    __syncthreads();
    int place = before + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < half / 32; ++w) {
      if (w < static_cast<int>(threadIdx.x) / 32) place += s.counts[w];
      before += s.counts[w];
    }
    if (chosen) s.chosen[place] = e;
    __syncthreads();
  }
}

__global__ void __launch_bounds__(threads) route_kernel(RouteJob job) {
  __shared__ Shared s;
  start_successor();
  const int row = blockIdx.x, lane = threadIdx.x % 32;
  const float* logits = job.logits + static_cast<size_t>(row) * job.experts;
  constexpr int per_thread = most_experts / threads;
  float bias[per_thread];
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int e = static_cast<int>(threadIdx.x) + i * threads;
    bias[i] = job.table == nullptr && e < job.experts ? job.bias[e] : 0.0f;
  }
  int listed = 0;
  if (job.table != nullptr && threadIdx.x < job.used) {
    listed = job.table[static_cast<size_t>(job.rows[row].token) * job.used + threadIdx.x];
  }
  wait_for_predecessor();
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int e = static_cast<int>(threadIdx.x) + i * threads;
    if (e < job.experts) s.probabilities[e] = probability(logits[e]);
    s.keys[e] = e < job.experts ? ordered_key(s.probabilities[e] + bias[i]) : 0;
  }
  __syncthreads();
  if (job.table == nullptr) {
    choose(job, s);
  } else if (threadIdx.x < 32) {
    // Rank among the listed gives the ascending order; equal ids keep their places.
    int rank = 0;
    for (int k = 0; k < job.used; ++k) {
      const int other = __shfl_sync(all, listed, k);
      rank += other < listed || (other == listed && k < lane);
    }
    if (lane < job.used) s.chosen[rank] = listed;
    __syncwarp();
  }
  if (threadIdx.x >= 32) return;
  const int mine = lane < job.used ? s.chosen[lane] : 0;
  const float own = s.probabilities[mine];
  float sum = 0;
  for (int k = 0; k < job.used; ++k) sum += __shfl_sync(all, own, k);
  if (lane < job.used) {
    job.selected[row * job.used + lane] = mine;
    job.weights[row * job.used + lane] = own / fmaxf(sum, 6.103515625e-5f) * job.scale;
  }
}

}  // namespace

cudaError_t route(const RouteJob& job, int rows, cudaStream_t stream) {
  if (job.experts > most_experts || job.used > most_used || job.used > job.experts)
    return cudaErrorInvalidValue;
  return launch(route_kernel, rows, threads, 0, stream, job);
}

}  // namespace ds4::cuda
