// What:   the small work between a layer's first projections and its attention: query rank norm, KV row,
// compressors
//         (docs/model.md §5.1, §6).
// Layout: rows of a sequence follow each other; the first one's block walks a compressor through all of them.
// Needs:  pages for the rows that complete in this pass; ring slots for window + pass.
// Bytes:  per row 4 KB of KV in, 584 B out; compressor state 16 KB (ratio 4) or 4 KB (ratio 128) a token, all
// of it
//         once a window.
// Why:    four independent roles share one launch. A compressor is sequential in its tokens and independent
// between
//         columns, so one block per sequence, a thread a column, is as parallel as it gets.
#include "backend/cuda/attention/rope.cuh"
#include "backend/cuda/attention/row_codec.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/state/update_caches.hpp"

namespace ds4::cuda {
namespace {

constexpr int threads = 512;
constexpr int head = 512, tail = 64, index_head = 128;
constexpr float epsilon = 1e-6f;

struct Shared {
  float row[head];
  float reduce[32];
};

// row /= rms(row), times norm; `dim` values in shared memory, dim <= threads.
__device__ void normalise(Shared& s, const float* norm, int dim) {
  const int i = threadIdx.x;
  const float x = i < dim ? s.row[i] : 0.0f;
  const float factor = 1.0f / sqrtf(block_sum(x * x, s.reduce) / static_cast<float>(dim) + epsilon);
  if (i < dim) s.row[i] = x * factor * norm[i];
  __syncthreads();
}

__device__ void rotate_tail(Shared& s, int dim, uint64_t position, const float* frequencies) {
  if (threadIdx.x < tail / 2) {
    float* pair = s.row + dim - tail + 2 * threadIdx.x;
    rotate(pair[0], pair[1], rope_angle(position, frequencies, threadIdx.x));
  }
  __syncthreads();
}

__device__ void query_rank(const CacheUpdate& u, int row, Shared& s) {
  float* q = u.q_low + static_cast<size_t>(row) * u.rank;
  float squares = 0;
  for (int i = threadIdx.x; i < u.rank; i += threads) squares = fmaf(q[i], q[i], squares);
  const float factor = 1.0f / sqrtf(block_sum(squares, s.reduce) / static_cast<float>(u.rank) + epsilon);
  for (int i = threadIdx.x; i < u.rank; i += threads) {  // whole warps: rank is a multiple of 32
    const float x = q[i] * factor * u.q_norm[i];
    const float scale = warp_max(fabsf(x)) / 127.0f;
    const size_t place = static_cast<size_t>(row) * u.rank + i;
    q[i] = x;
    u.q_codes[place] = static_cast<int8_t>(scale > 0 ? __float2int_rn(x / scale) : 0);
    if (i % 32 == 0) u.q_scales[place / 32] = scale;
  }
}

__device__ void kv_row(const CacheUpdate& u, const RowInfo& info, int row, Shared& s) {
  s.row[threadIdx.x] = u.kv[static_cast<size_t>(row) * head + threadIdx.x];
  __syncthreads();
  normalise(s, u.kv_norm, head);
  rotate_tail(s, head, info.position, layer_frequencies(u.frequencies, u.ratio));
  uint8_t* slot = info.layers[u.layer].ring + info.position % ring_slots * attention_row_bytes;
  if (threadIdx.x < 32) encode_attention_row(s.row, slot, threadIdx.x);
}

// Softmax-pooled column of a complete window.
__device__ float pool_column(const float* values, const float* scores, uint32_t ratio, int dim, int column) {
  const int width = ratio == 4 ? 2 * dim : dim, count = ratio == 4 ? 8 : static_cast<int>(ratio);
  // Ratio 4: the previous window gives its first half of columns, the current one its second half.
  const auto place = [=](int k) {
    return static_cast<size_t>(k) * width + (ratio == 4 && k >= 4 ? dim : 0) + column;
  };
  float max = scores[place(0)];
  for (int k = 1; k < count; ++k) max = fmaxf(max, scores[place(k)]);
  float weights = 0, sum = 0;
  for (int k = 0; k < count; ++k) {
    const float weight = expf(scores[place(k)] - max);
    weights += weight;
    sum = fmaf(weight, values[place(k)], sum);
  }
  return sum / weights;
}

__device__ void compress(const CacheUpdate& u, const CompressorJob& job, const RowInfo& first, int row,
                         bool indexer, Shared& s) {
  const LayerCache& cache = first.layers[u.layer];
  float* values = indexer ? cache.index_values : cache.values;
  float* scores = indexer ? cache.index_scores : cache.scores;
  const int dim = indexer ? index_head : head, width = u.ratio == 4 ? 2 * dim : dim;
  for (uint32_t i = 0; i < first.rows_of_sequence; ++i) {
    const uint64_t position = first.position + i;
    const int place = static_cast<int>(position % u.ratio), state_row = u.ratio == 4 ? 4 + place : place;
    const size_t in = (static_cast<size_t>(row) + i) * width, state = static_cast<size_t>(state_row) * width;
    for (int c = threadIdx.x; c < width; c += threads) {
      values[state + c] = job.values[in + c];
      scores[state + c] = job.gates[in + c] + job.ape[place * width + c];
    }
    if (place + 1 != static_cast<int>(u.ratio)) continue;
    __syncthreads();
    if (threadIdx.x < dim) s.row[threadIdx.x] = pool_column(values, scores, u.ratio, dim, threadIdx.x);
    __syncthreads();
    normalise(s, job.norm, dim);
    rotate_tail(s, dim, position + 1 - u.ratio, layer_frequencies(u.frequencies, u.ratio));
    const uint64_t index = position / u.ratio;
    if (threadIdx.x < 32 && indexer) {
      float v[4];
      for (int k = 0; k < 4; ++k) v[k] = s.row[4 * threadIdx.x + k];
      encode_index_row(v, cache.index_pages[index / rows_per_page] + index % rows_per_page * index_row_bytes,
                       threadIdx.x);
    } else if (threadIdx.x < 32) {
      encode_attention_row(s.row,
                           cache.pages[index / rows_per_page] + index % rows_per_page * attention_row_bytes,
                           threadIdx.x);
    }
    if (u.ratio == 4) {
      for (int c = threadIdx.x; c < 4 * width; c += threads) {
        values[c] = values[4 * width + c];
        scores[c] = scores[4 * width + c];
      }
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(threads) update_kernel(CacheUpdate u) {
  __shared__ Shared s;
  const int row = blockIdx.y;
  const RowInfo info = u.rows[row];
  switch (blockIdx.x) {
    case 0:
      query_rank(u, row, s);
      break;
    case 1:
      kv_row(u, info, row, s);
      break;
    case 2:
      if (info.place == 0) compress(u, u.compressor, info, row, false, s);
      break;
    default:
      if (info.place == 0) compress(u, u.index_compressor, info, row, true, s);
      break;
  }
}

}  // namespace

cudaError_t update_caches(const CacheUpdate& update, int rows, cudaStream_t stream) {
  const unsigned roles = update.ratio == 0 ? 2 : update.ratio == 4 ? 4 : 3;
  update_kernel<<<dim3(roles, static_cast<unsigned>(rows)), threads, 0, stream>>>(update);
  return cudaGetLastError();
}

}  // namespace ds4::cuda
