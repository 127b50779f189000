// What:   the small work between a layer's first projections and its attention: query rank norm, KV row,
//         compressors (docs/model.md §5.1, §6).
// Layout: rows of a sequence follow each other; a block for every role and row. One more role ends the mixing
//         of the attention sublayer (hc/finish_mix.cuh), which has time until the sublayer is left.
// Needs:  pages for the rows that complete in this pass; ring slots for the window and the pass.
// Bytes:  per row 2 KB of KV in and 584 B out; 16 KB (ratio 4) or 4 KB (ratio 128) of compressor state a
// token. Why:    independent roles share one launch. A window is pooled by the block of the token that
// completes it,
//         from the projections of the pass and the ring of older ones, in which the pass writes no slot that
//         it still reads.
#include "backend/cuda/attention/rope.cuh"
#include "backend/cuda/attention/row_codec.cuh"
#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/gemv/quantize_device.cuh"
#include "backend/cuda/hc/finish_mix.cuh"
#include "backend/cuda/state/update_caches.hpp"

namespace ds4::cuda {
namespace {

constexpr int threads = 512;
constexpr int head = 512, tail = 64, index_head = 128;
constexpr float epsilon = 1e-6f;

struct Shared {
  float row[head];
  float reduce[32];
  float parts[threads / 32][32];
};

// row /= rms(row), times norm (this thread's weight); `dim` values in shared memory, dim <= threads.
__device__ void normalise(Shared& s, float norm, int dim) {
  const int i = threadIdx.x;
  const float x = i < dim ? s.row[i] : 0.0f;
  const float factor = 1.0f / sqrtf(block_sum(x * x, s.reduce) / static_cast<float>(dim) + epsilon);
  if (i < dim) s.row[i] = x * factor * norm;
  __syncthreads();
}

// The angle of this thread's pair, if it has one.
__device__ float2 tail_angle(uint64_t position, const float* frequencies) {
  return threadIdx.x < tail / 2 ? rope_angle(position, frequencies, threadIdx.x) : make_float2(1, 0);
}

__device__ void rotate_tail(Shared& s, int dim, float2 angle) {
  if (threadIdx.x < tail / 2) {
    float* pair = s.row + dim - tail + 2 * threadIdx.x;
    rotate(pair[0], pair[1], angle);
  }
  __syncthreads();
}

__device__ void query_rank(const CacheUpdate& u, int row, Shared& s) {
  constexpr int kept = 4;  // values of a thread that stay in registers: ranks up to 2048
  float* q = u.q_low + static_cast<size_t>(row) * u.rank;
  float norm[kept], x[kept];
#pragma unroll
  for (int k = 0; k < kept; ++k) {
    const int i = threadIdx.x + k * threads;
    norm[k] = i < u.rank ? u.q_norm[i] : 0.0f;
  }
  wait_for_predecessor();
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kept; ++k) {
    const int i = threadIdx.x + k * threads;
    x[k] = i < u.rank ? q[i] : 0.0f;
    squares = fmaf(x[k], x[k], squares);
  }
  for (int i = threadIdx.x + kept * threads; i < u.rank; i += threads) squares = fmaf(q[i], q[i], squares);
  const float factor = 1.0f / sqrtf(block_sum(squares, s.reduce) / static_cast<float>(u.rank) + epsilon);
  const auto store = [&](int i, float value) {  // whole warps: rank is a multiple of 32
    const size_t place = static_cast<size_t>(row) * u.rank + i;
    q[i] = value;
    quantize_block_of_warp(value, u.q_codes + place - i % 32, u.q_scales + place / 32);
  };
#pragma unroll
  for (int k = 0; k < kept; ++k) {
    const int i = threadIdx.x + k * threads;
    if (i < u.rank) store(i, x[k] * factor * norm[k]);
  }
  for (int i = threadIdx.x + kept * threads; i < u.rank; i += threads) store(i, q[i] * factor * u.q_norm[i]);
}

__device__ void kv_row(const CacheUpdate& u, const RowInfo& info, int row, Shared& s) {
  const float norm = u.kv_norm[threadIdx.x];
  const float2 angle = tail_angle(info.position, layer_frequencies(u.frequencies, u.ratio));
  uint8_t* slot = info.layers[u.layer].ring + info.position % ring_slots * attention_row_bytes;
  wait_for_predecessor();
  s.row[threadIdx.x] = u.kv[static_cast<size_t>(row) * head + threadIdx.x];
  __syncthreads();
  normalise(s, norm, head);
  rotate_tail(s, head, angle);
  if (threadIdx.x < 32) encode_attention_row(s.row, slot, threadIdx.x);
}

// Where a compressor's tokens are before their window is pooled: those of the pass in the projections, older
// ones in the state (docs/model.md §11.3). Positions fit 32 bits.
template <int ratio, int dim>
struct Windows {
  static constexpr int width = ratio == 4 ? 2 * dim : dim;

  const CompressorJob& job;
  float* values;  // state
  float* scores;
  int first;  // position of the sequence's first token in the pass
  int row;    // its row

  __device__ Windows(const CacheUpdate& u, const CompressorJob& compressor, const RowInfo& info, int info_row)
      : job(compressor),
        first(static_cast<int>(info.position) - static_cast<int>(info.place)),
        row(info_row - static_cast<int>(info.place)) {
    constexpr bool indexer = dim == index_head;
    const LayerCache& cache = info.layers[u.layer];
    values = indexer ? cache.index_values : cache.values;
    scores = indexer ? cache.index_scores : cache.scores;
  }
  static __device__ int state_row(int token) { return token % compressor_slots(ratio); }
  __device__ float value(int token, int column) const {
    return token >= first ? job.values[(row + token - first) * width + column]
                          : values[state_row(token) * width + column];
  }
  __device__ float score(int token, int column) const {
    return token >= first
               ? job.gates[(row + token - first) * width + column] + job.ape[token % ratio * width + column]
               : scores[state_row(token) * width + column];
  }
  // Column of the k-th candidate. Ratio 4: the window before gives the first half of its columns, the window
  // itself the second half.
  static __device__ int place(int k, int column) { return ratio == 4 && k >= 4 ? dim + column : column; }
};

// One column of the window that ends with a token, pooled with the softmax of its scores. What the state
// holds can be read before the pass's projections are there.
template <int ratio, int dim>
struct Pool;

template <int dim>
struct Pool<4, dim> {
  float score[8], value[8];

  // Candidates older than the pass, or those of the pass. Where nothing precedes the sequence a weight is 0.
  __device__ void load(const Windows<4, dim>& w, int last, int column, bool older) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int token = last - 7 + k;
      if (token >= 0 && (token < w.first) != older) continue;
      score[k] = token < 0 ? -INFINITY : w.score(token, w.place(k, column));
      value[k] = token < 0 ? 0.0f : w.value(token, w.place(k, column));
    }
  }
  __device__ float result() const {
    float largest = score[0];
#pragma unroll
    for (int k = 1; k < 8; ++k) largest = fmaxf(largest, score[k]);
    float weights = 0, sum = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float weight = expf(score[k] - largest);
      weights += weight;
      sum = fmaf(weight, value[k], sum);
    }
    return sum / weights;
  }
};

template <int dim>
struct Pool<128, dim> {
  float pooled;

  __device__ void load(const Windows<128, dim>& w, int last, int column, bool older) {
    if (older) return;
    const int begin = last - 127;
    float largest = -INFINITY;
#pragma unroll 16
    for (int k = 0; k < 128; ++k) largest = fmaxf(largest, w.score(begin + k, column));
    float weights = 0, sum = 0;
#pragma unroll 16
    for (int k = 0; k < 128; ++k) {
      const float weight = expf(w.score(begin + k, column) - largest);
      weights += weight;
      sum = fmaf(weight, w.value(begin + k, column), sum);
    }
    pooled = sum / weights;
  }
  __device__ float result() const { return pooled; }
};

// The compressed row that this token completes.
template <int ratio, int dim>
__device__ void pool_row(const CacheUpdate& u, const CompressorJob& job, const RowInfo& info, int row,
                         Shared& s) {
  const Windows<ratio, dim> windows(u, job, info, row);
  const int last = static_cast<int>(info.position), column = threadIdx.x;
  const float norm = column < dim ? job.norm[column] : 0.0f;
  const float2 angle = tail_angle(info.position + 1 - ratio, layer_frequencies(u.frequencies, ratio));
  Pool<ratio, dim> pool;
  if (column < dim) pool.load(windows, last, column, true);
  wait_for_predecessor();
  if (column < dim) {
    pool.load(windows, last, column, false);
    s.row[column] = pool.result();
  }
  __syncthreads();
  normalise(s, norm, dim);
  rotate_tail(s, dim, angle);
  if (threadIdx.x >= 32) return;
  const LayerCache& cache = info.layers[u.layer];
  const uint64_t index = info.position / ratio;
  if constexpr (dim == index_head) {
    float v[4];
    for (int k = 0; k < 4; ++k) v[k] = s.row[4 * threadIdx.x + k];
    encode_index_row(v, cache.index_pages[index / rows_per_page] + index % rows_per_page * index_row_bytes,
                     threadIdx.x);
  } else {
    encode_attention_row(
        s.row, cache.pages[index / rows_per_page] + index % rows_per_page * attention_row_bytes, threadIdx.x);
  }
}

// Pools the window that the token completes, if it does, and keeps the token's projections. No other block
// reads their slots: rows that are still to be pooled lie less than compressor_slots() back.
template <int ratio, int dim>
__device__ void compress(const CacheUpdate& u, const CompressorJob& job, const RowInfo& info, int row,
                         Shared& s) {
  if ((info.position + 1) % ratio == 0) {
    pool_row<ratio, dim>(u, job, info, row, s);
  } else {
    wait_for_predecessor();
  }
  const Windows<ratio, dim> w(u, job, info, row);
  const int token = static_cast<int>(info.position);
  const size_t slot = size_t{static_cast<unsigned>(w.state_row(token))} * w.width;
  for (int c = threadIdx.x; c < w.width; c += threads) {
    w.values[slot + c] = w.value(token, c);
    w.scores[slot + c] = w.score(token, c);
  }
}

__global__ void __launch_bounds__(threads) update_kernel(const __grid_constant__ CacheUpdate u) {
  __shared__ Shared s;
  start_successor();
  const int row = blockIdx.y;
  const RowInfo info = u.rows[row];
  switch (blockIdx.x) {  // each role waits for the projections
    case 0:
      return query_rank(u, row, s);
    case 1:
      return kv_row(u, info, row, s);
    case 2:
      wait_for_predecessor();
      return finish_mix(u.mix, row, s.parts);
    case 3:
      return u.ratio == 4 ? compress<4, head>(u, u.compressor, info, row, s)
                          : compress<128, head>(u, u.compressor, info, row, s);
    default:
      return compress<4, index_head>(u, u.index_compressor, info, row, s);
  }
}

}  // namespace

cudaError_t update_caches(const CacheUpdate& update, int rows, cudaStream_t stream) {
  constexpr unsigned always = 3;  // roles of layers without a compressor
  const unsigned compressors = update.ratio == 0 ? 0 : update.ratio == 4 ? 2 : 1;
  const auto height = static_cast<unsigned>(rows);
  return launch(update_kernel, dim3(always + compressors, height), threads, 0, stream, update);
}

}  // namespace ds4::cuda
