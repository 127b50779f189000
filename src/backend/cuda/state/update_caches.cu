// What:   the small work between a layer's first projections and its attention: query rank norm, KV row,
//         compressors (docs/model.md §5.1, §6).
// Layout: rows of a sequence follow each other; a block for every role and row. One more role ends the mixing
// of the
//         attention sublayer (hc/finish_mix.cuh), which has time until the sublayer is left.
// Needs:  pages for the rows that complete in this pass; ring slots for the window and the pass.
// Bytes:  per row 2 KB of KV in and 584 B out; 16 KB (ratio 4) or 4 KB (ratio 128) of compressor state a
// token. Why:    independent roles share one launch. A window is pooled by the block of the token that
// completes it,
//         from the projections and the old state, so rows of a prefill pass do not wait for each other; the
//         new state is written when nobody reads the old one any more.
#include "backend/cuda/attention/rope.cuh"
#include "backend/cuda/attention/row_codec.cuh"
#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/device/reduce.cuh"
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

// Where a compressor's tokens are before their window is pooled: those of the pass in the projections, older
// ones in the state (docs/model.md §11.3).
struct Windows {
  const CompressorJob& job;
  float* values;  // state
  float* scores;
  int64_t first;  // position of the sequence's first token in the pass
  int64_t row;    // its row
  int ratio, dim, width;

  __device__ Windows(const CacheUpdate& u, const CompressorJob& compressor, const RowInfo& info, int info_row,
                     bool indexer)
      : job(compressor),
        first(static_cast<int64_t>(info.position) - info.place),
        row(info_row - static_cast<int>(info.place)),
        ratio(static_cast<int>(u.ratio)) {
    const LayerCache& cache = info.layers[u.layer];
    values = indexer ? cache.index_values : cache.values;
    scores = indexer ? cache.index_scores : cache.scores;
    dim = indexer ? index_head : head;
    width = ratio == 4 ? 2 * dim : dim;
  }
  // State row of an older token: of the open window, or (ratio 4) of the one before it.
  __device__ int64_t state_row(int64_t token) const {
    return token % ratio + (ratio == 4 && token >= first / ratio * ratio ? 4 : 0);
  }
  __device__ float value(int64_t token, int column) const {
    return token >= first ? job.values[(row + token - first) * width + column]
                          : values[state_row(token) * width + column];
  }
  __device__ float score(int64_t token, int column) const {
    return token >= first
               ? job.gates[(row + token - first) * width + column] + job.ape[token % ratio * width + column]
               : scores[state_row(token) * width + column];
  }
  // Softmax-pooled column of the window that ends with token `last`. Ratio 4: the window before it gives the
  // first half of its columns (nothing at the start of the sequence), the window itself the second half.
  __device__ float pool(int64_t last, int column) const {
    const int64_t end = last + 1, begin = max(int64_t{0}, end - (ratio == 4 ? 8 : ratio));
    const auto place = [&](int64_t token) { return ratio == 4 && token >= end - 4 ? dim + column : column; };
    float largest = -INFINITY;
    for (int64_t t = begin; t < end; ++t) largest = fmaxf(largest, score(t, place(t)));
    float weights = 0, sum = 0;
    for (int64_t t = begin; t < end; ++t) {
      const float weight = expf(score(t, place(t)) - largest);
      weights += weight;
      sum = fmaf(weight, value(t, place(t)), sum);
    }
    return sum / weights;
  }
};

// The compressed row that this token completes.
__device__ void pool_row(const CacheUpdate& u, const CompressorJob& job, const RowInfo& info, int row,
                         bool indexer, Shared& s) {
  const Windows windows(u, job, info, row, indexer);
  if (threadIdx.x < windows.dim)
    s.row[threadIdx.x] = windows.pool(static_cast<int64_t>(info.position), threadIdx.x);
  __syncthreads();
  normalise(s, job.norm, windows.dim);
  rotate_tail(s, windows.dim, info.position + 1 - u.ratio, layer_frequencies(u.frequencies, u.ratio));
  if (threadIdx.x >= 32) return;
  const LayerCache& cache = info.layers[u.layer];
  const uint64_t index = info.position / u.ratio;
  if (indexer) {
    float v[4];
    for (int k = 0; k < 4; ++k) v[k] = s.row[4 * threadIdx.x + k];
    encode_index_row(v, cache.index_pages[index / rows_per_page] + index % rows_per_page * index_row_bytes,
                     threadIdx.x);
  } else {
    encode_attention_row(
        s.row, cache.pages[index / rows_per_page] + index % rows_per_page * attention_row_bytes, threadIdx.x);
  }
}

// The state after the pass: ratio 4 keeps the last complete window in rows 0..3 and the open one in rows 4..;
// ratio 128 the open window. Runs after all pooling of the sequence; `info` is its first row.
__device__ void store_state(const CacheUpdate& u, const CompressorJob& job, const RowInfo& info, int row,
                            bool indexer) {
  const Windows windows(u, job, info, row, indexer);
  const int width = windows.width;
  const int64_t begin = windows.first, end = begin + info.rows_of_sequence,
                open = end / windows.ratio * windows.ratio;
  for (int c = threadIdx.x; c < width; c += threads) {
    if (windows.ratio == 4 && open > begin) {
      for (int k = 0; k < 4; ++k) {
        windows.values[k * width + c] = windows.value(open - 4 + k, c);
        windows.scores[k * width + c] = windows.score(open - 4 + k, c);
      }
    }
    for (int64_t t = max(begin, open); t < end; ++t) {
      const int64_t state = (t % windows.ratio + (windows.ratio == 4 ? 4 : 0)) * width + c;
      windows.values[state] = windows.value(t, c);
      windows.scores[state] = windows.score(t, c);
    }
  }
}

// A lone token is pooled and stored by one block; where a sequence has more rows, others still read the old
// state.
__device__ void compress(const CacheUpdate& u, const CompressorJob& job, const RowInfo& info, int row,
                         bool indexer, Shared& s) {
  if ((info.position + 1) % u.ratio == 0) pool_row(u, job, info, row, indexer, s);
  if (info.rows_of_sequence > 1) return;
  __syncthreads();
  store_state(u, job, info, row, indexer);
}

__global__ void __launch_bounds__(threads) update_kernel(CacheUpdate u) {
  __shared__ Shared s;
  start_successor();
  const int row = blockIdx.y;
  const RowInfo info = u.rows[row];
  wait_for_predecessor();
  switch (blockIdx.x) {
    case 0:
      query_rank(u, row, s);
      break;
    case 1:
      kv_row(u, info, row, s);
      break;
    case 2:
      finish_mix(u.mix, row, s.parts);
      break;
    case 3:
      compress(u, u.compressor, info, row, false, s);
      break;
    default:
      compress(u, u.index_compressor, info, row, true, s);
      break;
  }
}

__global__ void __launch_bounds__(threads) store_kernel(CacheUpdate u) {
  start_successor();
  const int row = blockIdx.y;
  const RowInfo info = u.rows[row];
  wait_for_predecessor();
  if (info.place != 0 || info.rows_of_sequence == 1) return;
  store_state(u, blockIdx.x == 0 ? u.compressor : u.index_compressor, info, row, blockIdx.x == 1);
}

}  // namespace

cudaError_t update_caches(const CacheUpdate& update, int rows, cudaStream_t stream) {
  constexpr unsigned always = 3;  // roles of layers without a compressor
  const unsigned compressors = update.ratio == 0 ? 0 : update.ratio == 4 ? 2 : 1;
  const auto height = static_cast<unsigned>(rows);
  const cudaError_t status =
      launch(update_kernel, dim3(always + compressors, height), threads, 0, stream, update);
  if (status != cudaSuccess || rows == 1 || compressors == 0) return status;
  return launch(store_kernel, dim3(compressors, height), threads, 0, stream, update);
}

}  // namespace ds4::cuda
