// What: a random choice among the logits of one row: top-k, softmax at a temperature, min-p, top-p, one draw.
// Layout: a warp for each group of 256 logits sums their weights, or enters them into a histogram by distance
// from
//   the maximum; one block then finds the group of the drawn token, or sorts what lies within the distance
//   that top-k or top-p can reach.
// Preconditions: a finite maximum; scratch that was prepared, which the kernels leave prepared.
// Bytes and FLOPs: 4 B a logit read once (0.5 MB for 129,280); without min-p some 40 operations a logit.
// Why this shape: weights are whole numbers (sampling/weight.hpp), so that sums need no order and every step
// may be
//   spread over threads at will; what must be sorted is found without sorting.
#include "backend/cuda/indexer/ordered_key.cuh"
#include "backend/cuda/sampling/device_draw.hpp"

namespace ds4::cuda {
namespace {

using Sum = unsigned long long;  // whole weights; atomicAdd knows this type

constexpr uint32_t all_lanes = 0xffffffffu;
constexpr uint32_t group_logits = 256;
constexpr int weigh_threads = 256;
constexpr int choose_threads = 1024;

/// Coarse distance from the best logit, to find what needs exact ordering: 64 bins for a difference of 1. The
/// logit must be finite.
constexpr uint32_t distance_bins = 2048;
__device__ inline uint32_t distance_bin(float maximum, float logit) {
  const float distance = (maximum - logit) * 64.0f;
  return distance < static_cast<float>(distance_bins - 1) ? static_cast<uint32_t>(distance)
                                                          : distance_bins - 1;
}

enum class Mode { by_id, top_p, top_k };

__host__ __device__ inline uint32_t group_count(uint32_t vocabulary) {
  return (vocabulary + group_logits - 1) / group_logits;
}

/// Scratch: the histogram, which is zero between calls, then the sum and the least distance bin of every
/// group.
struct Scratch {
  Sum* histogram;
  Sum* sums;
  uint32_t* nearest;

  __device__ Scratch(void* memory, uint32_t vocabulary)
      : histogram(static_cast<Sum*>(memory)),
        sums(histogram + distance_bins),
        nearest(reinterpret_cast<uint32_t*>(sums + group_count(vocabulary))) {}
};

__device__ inline Sum warp_total(Sum value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(all_lanes, value, step);
  return value;
}

/// Logit of a lane's j-th place (0..7) in a group: two rounds of 128 consecutive logits, four to a lane.
__device__ inline uint32_t place(uint32_t group, uint32_t lane, uint32_t j) {
  return group * group_logits + j / 4 * 128 + lane * 4 + j % 4;
}

/// The eight logits of a lane; -infinity beyond the vocabulary.
__device__ inline void load_group(const DrawArguments& a, uint32_t group, uint32_t lane, float (&values)[8]) {
#pragma unroll
  for (uint32_t round = 0; round < 2; ++round) {
    const uint32_t i = place(group, lane, 4 * round);
    if (i + 4 <= a.vocabulary) {
      const float4 v = *reinterpret_cast<const float4*>(a.logits + i);
      values[4 * round] = v.x;
      values[4 * round + 1] = v.y;
      values[4 * round + 2] = v.z;
      values[4 * round + 3] = v.w;
    } else {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        values[4 * round + j] = i + j < a.vocabulary ? a.logits[i + j] : -INFINITY;
      }
    }
  }
}

template <Mode mode>
__global__ void __launch_bounds__(weigh_threads) weigh_kernel(DrawArguments a) {
  __shared__ Sum histogram[mode == Mode::by_id ? 1 : distance_bins];
  if (mode != Mode::by_id) {
    for (uint32_t i = threadIdx.x; i < distance_bins; i += weigh_threads) histogram[i] = 0;
    __syncthreads();
  }
  const Scratch scratch(a.scratch, a.vocabulary);
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t group = blockIdx.x * (weigh_threads / 32) + threadIdx.x / 32;
  if (group < group_count(a.vocabulary)) {
    float values[8];
    load_group(a, group, lane, values);
    Sum sum = 0;
    uint32_t nearest = distance_bins;
#pragma unroll
    for (float value : values) {
      if (mode == Mode::by_id) {
        sum += a.softmax.kept_weight(value);
        continue;
      }
      if (!isfinite(value)) continue;
      Sum entry = 1;
      if (mode == Mode::top_p) {
        const float relative = a.softmax.relative(value);
        const Sum weight = sampling::Softmax::whole(relative);
        sum += weight;
        entry = relative >= a.softmax.min_p ? weight : 0;
      }
      if (entry == 0) continue;
      const uint32_t bin = distance_bin(a.softmax.maximum, value);
      nearest = min(nearest, bin);
      atomicAdd(&histogram[bin], entry);
    }
    if (mode != Mode::top_k) {
      sum = warp_total(sum);
      if (lane == 0) scratch.sums[group] = sum;
    }
    if (mode != Mode::by_id) {
      nearest = __reduce_min_sync(all_lanes, nearest);
      if (lane == 0) scratch.nearest[group] = nearest;
    }
  }
  if (mode != Mode::by_id) {
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < distance_bins; i += weigh_threads) {
      if (histogram[i] != 0) atomicAdd(&scratch.histogram[i], histogram[i]);
    }
  }
}

struct Shared {
  uint64_t keys[draw_candidates];  // ordered key of the logit, then complement of the id
  Sum warp_sums[32];
  Sum found;  // see find()
  uint32_t index;
  uint32_t count;  // candidates
  uint32_t near_count;
  uint32_t near_groups[choose_threads];  // of a round of collect()
};

/// Sum over this and all threads before it; `total` is the block's sum.
__device__ inline Sum inclusive_sum(Sum value, Shared& s, Sum& total) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Sum inclusive = value;
  for (int step = 1; step < 32; step *= 2) {
    const Sum other = __shfl_up_sync(all_lanes, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == 31) s.warp_sums[warp] = inclusive;
  __syncthreads();
  Sum sums = s.warp_sums[lane];
  for (int step = 1; step < 32; step *= 2) {
    const Sum other = __shfl_up_sync(all_lanes, sums, step);
    if (lane >= step) sums += other;
  }
  total = __shfl_sync(all_lanes, sums, 31);
  const Sum before = __shfl_sync(all_lanes, sums, warp == 0 ? 0 : warp - 1);
  __syncthreads();  // warp_sums may be written again
  return inclusive + (warp == 0 ? 0 : before);
}

/// Where values (value(i) for i < count) first add up to `target`: the index, or count - 1 if they never do,
/// and what is missing from `target` before it, in every thread.
template <class Value>
__device__ inline void find(uint32_t count, Sum target, Shared& s, uint32_t& index, Sum& rest,
                            const Value& value) {
  Sum before_all = 0;
  if (threadIdx.x == 0) s.index = count - 1;
  for (uint32_t begin = 0; begin < count; begin += choose_threads) {
    const uint32_t i = begin + threadIdx.x;
    const Sum mine = i < count ? value(i) : 0;
    Sum total = 0;
    const Sum end = before_all + inclusive_sum(mine, s, total);
    if (end >= target && end - mine < target) {
      s.index = i;
      s.found = target - (end - mine);
    }
    before_all += total;
    if (before_all >= target) break;
  }
  __syncthreads();
  index = s.index;
  rest = s.found;
  __syncthreads();
}

template <class Value>
__device__ inline Sum sum_of(uint32_t count, Shared& s, const Value& value) {
  Sum mine = 0, total = 0;
  for (uint32_t i = threadIdx.x; i < count; i += choose_threads) mine += value(i);
  inclusive_sum(mine, s, total);
  return total;
}

/// The token in id order at which kept weights reach the drawn number.
__device__ inline int32_t choose_by_id(const DrawArguments& a, Shared& s) {
  const Scratch scratch(a.scratch, a.vocabulary);
  const uint32_t groups = group_count(a.vocabulary);
  const auto group_sum = [&](uint32_t i) { return scratch.sums[i]; };
  const Sum total = sum_of(groups, s, group_sum);
  uint32_t group = 0, offset = 0;
  Sum rest = 0;
  find(groups, sampling::draw_target(a.uniform, total), s, group, rest, group_sum);
  find(group_logits, rest, s, offset, rest, [&](uint32_t i) -> Sum {
    const uint32_t token = group * group_logits + i;
    return token < a.vocabulary ? a.softmax.kept_weight(a.logits[token]) : 0;
  });
  return static_cast<int32_t>(group * group_logits + offset);
}

__device__ inline float logit_of(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

/// Puts the keys of the finite logits within `last_bin` into s.keys, in any order.
__device__ inline void collect(const DrawArguments& a, uint32_t last_bin, bool min_p, Shared& s) {
  const Scratch scratch(a.scratch, a.vocabulary);
  const uint32_t groups = group_count(a.vocabulary), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) s.count = 0;
  for (uint32_t begin = 0; begin < groups; begin += choose_threads) {
    if (threadIdx.x == 0) s.near_count = 0;
    __syncthreads();
    const uint32_t mine = begin + threadIdx.x;
    if (mine < groups && scratch.nearest[mine] <= last_bin) {
      s.near_groups[atomicAdd(&s.near_count, 1u)] = mine;
    }
    __syncthreads();
    for (uint32_t n = threadIdx.x / 32; n < s.near_count; n += choose_threads / 32) {
      const uint32_t group = s.near_groups[n];
      float values[8];
      load_group(a, group, lane, values);
#pragma unroll
      for (uint32_t j = 0; j < 8; ++j) {
        if (!isfinite(values[j]) || distance_bin(a.softmax.maximum, values[j]) > last_bin) continue;
        if (min_p && a.softmax.kept_weight(values[j]) == 0) continue;
        const uint32_t slot = atomicAdd(&s.count, 1u);
        if (slot >= draw_candidates) continue;
        s.keys[slot] = static_cast<uint64_t>(ordered_key(values[j])) << 32 |
                       static_cast<uint32_t>(~place(group, lane, j));
      }
    }
    __syncthreads();
  }
}

/// Bitonic sort, largest first, of `count` keys padded with zeros to a power of two. One warp sorts what it
/// has lanes for, without waiting for the block at each step.
__device__ inline void sort_keys(uint32_t count, Shared& s) {
  uint32_t size = 2;
  while (size < count) size *= 2;
  for (uint32_t i = count + threadIdx.x; i < size; i += choose_threads) s.keys[i] = 0;
  __syncthreads();
  const bool one_warp = size / 2 <= 32;
  if (!one_warp || threadIdx.x < 32) {
    for (uint32_t run = 2; run <= size; run *= 2) {
      for (uint32_t step = run / 2; step > 0; step /= 2) {
        for (uint32_t pair = threadIdx.x; pair < size / 2; pair += choose_threads) {
          const uint32_t low = 2 * pair - (pair & (step - 1)), high = low + step;
          const uint64_t first = s.keys[low], second = s.keys[high];
          const bool descending = (low & run) == 0;
          if ((first < second) == descending) {
            s.keys[low] = second;
            s.keys[high] = first;
          }
        }
        if (one_warp) {
          __syncwarp();
        } else {
          __syncthreads();
        }
      }
    }
  }
  __syncthreads();
}

/// top-k or top-p: candidates best first.
__device__ inline int32_t choose_ranked(const DrawArguments& a, Shared& s) {
  const Scratch scratch(a.scratch, a.vocabulary);
  const bool top_k = a.top_k > 0;
  const auto bin_sum = [&](uint32_t i) { return scratch.histogram[i]; };
  const auto group_sum = [&](uint32_t i) { return scratch.sums[i]; };
  Sum total = top_k ? 0 : sum_of(group_count(a.vocabulary), s, group_sum);
  const Sum wanted = top_k ? a.top_k : sampling::nucleus_target(a.top_p, total);
  uint32_t last_bin = 0;
  Sum rest = 0;
  find(distance_bins, wanted, s, last_bin, rest, bin_sum);
  for (uint32_t i = threadIdx.x; i < distance_bins; i += choose_threads) scratch.histogram[i] = 0;
  collect(a, last_bin, !top_k, s);
  uint32_t count = s.count;
  if (count > draw_candidates) return draw_undecided;
  sort_keys(count, s);

  if (top_k) {
    count = min(count, a.top_k);
    total = sum_of(count, s, [&](uint32_t i) { return a.softmax.weight(logit_of(s.keys[i])); });
  }
  const auto kept = [&](uint32_t i) { return a.softmax.kept_weight(logit_of(s.keys[i])); };
  Sum kept_sum = sum_of(count, s, kept);
  uint32_t index = 0;
  const Sum enough = a.top_p < 1 ? sampling::nucleus_target(a.top_p, total) : kept_sum;
  if (enough < kept_sum) {
    find(count, enough, s, index, rest, kept);
    kept_sum = enough - rest + kept(index);
  }
  find(count, sampling::draw_target(a.uniform, kept_sum), s, index, rest, kept);
  return static_cast<int32_t>(~static_cast<uint32_t>(s.keys[index]));
}

template <Mode mode>
__global__ void __launch_bounds__(choose_threads) choose_kernel(DrawArguments a) {
  __shared__ Shared s;
  const int32_t token = mode == Mode::by_id ? choose_by_id(a, s) : choose_ranked(a, s);
  if (threadIdx.x == 0) *a.token = token;
}

template <Mode mode>
cudaError_t launch(const DrawArguments& a, cudaStream_t stream) {
  constexpr uint32_t groups_per_block = weigh_threads / 32;
  const uint32_t blocks = (group_count(a.vocabulary) + groups_per_block - 1) / groups_per_block;
  weigh_kernel<mode><<<blocks, weigh_threads, 0, stream>>>(a);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  choose_kernel<mode><<<1, choose_threads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace

size_t draw_scratch_bytes(uint32_t vocabulary) {
  return distance_bins * sizeof(Sum) + group_count(vocabulary) * (sizeof(Sum) + sizeof(uint32_t));
}

cudaError_t prepare_draw_scratch(void* scratch, uint32_t vocabulary, cudaStream_t stream) {
  return cudaMemsetAsync(scratch, 0, draw_scratch_bytes(vocabulary), stream);
}

cudaError_t draw(const DrawArguments& arguments, cudaStream_t stream) {
  if (arguments.top_k > 0) return launch<Mode::top_k>(arguments, stream);
  if (arguments.top_p < 1) return launch<Mode::top_p>(arguments, stream);
  return launch<Mode::by_id>(arguments, stream);
}

}  // namespace ds4::cuda
