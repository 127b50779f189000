// What:   the small work of a prefill chunk between a layer's first projections and its attention: query rank
//         norm, KV rows, compressors, decoded rows for attention (docs/model.md §5.1, §6, §11.3).
// Layout: a warp for a row, lane l of an attention row with elements 128 i + 4 l .. + 3; four columns a
// thread
//         for pooling.
// Needs:  pages for the rows that complete in this chunk; ring slots for the window and 16 more.
// Bytes:  4096 tokens of Flash: 8 MB of KV rows, 17 MB of query ranks, 34 MB (ratio 4) or 17 MB (ratio 128)
//         of projections in, 12 MB of rows and query ranks out; 1.6 KB for each older compressed row.
// Why:    raw rows pass through registers once: rounded as the cache rounds them, written decoded, and packed
//         only where they outlive the chunk. Windows are pooled from the projections and the old state, which
//         is written over by a launch of its own when nobody reads it any more.
#include <algorithm>

#include "backend/cuda/attention/rope.cuh"
#include "backend/cuda/attention/row_codec.cuh"
#include "backend/cuda/device/magnitude.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/prefill/prefill_caches.hpp"

namespace ds4::cuda {
namespace {

constexpr int head = 512, index_head = 128, window = 128;
// Raw rows that outlive the chunk: the window's, and those that come into view when the newest tokens are
// taken back.
constexpr int kept_rows = window + retractable_tokens;
static_assert(kept_rows <= ring_slots);
constexpr int warps_per_block = 4;
constexpr float epsilon = 1e-6f;

// To nearest; numbers beyond the finite range become its ends, NaN stays.
__device__ __half finite_half(float x) {
  return __float2half_rn(x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x);
}

__device__ void store_halves(__half* place, const float (&v)[4]) {
  const __half2 pair[2] = {__halves2half2(finite_half(v[0]), finite_half(v[1])),
                           __halves2half2(finite_half(v[2]), finite_half(v[3]))};
  *reinterpret_cast<uint2*>(place) = *reinterpret_cast<const uint2*>(pair);
}

// A value of an attention row from its code, as decode_attention_row() has it.
__device__ float attention_value(uint32_t code, float scale) {
  return __uint_as_float((code & 0x7fu) << 20 | (code & 0x80u) << 24) * 0x1p120f * scale;
}

template <int groups>
__device__ void normalise(float4 (&v)[groups], const float* norm, int lane) {
  float squares = 0;
#pragma unroll
  for (const float4& x : v) {
    squares = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, squares))));
  }
  const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(128 * groups) + epsilon);
#pragma unroll
  for (int i = 0; i < groups; ++i) {
    const float4 w = __ldg(reinterpret_cast<const float4*>(norm) + 32 * i + lane);
    v[i] = make_float4(v[i].x * factor * w.x, v[i].y * factor * w.y, v[i].z * factor * w.z,
                       v[i].w * factor * w.w);
  }
}

// Rotates the last 64 elements of a row: those of lanes 16 and up in its last 128.
__device__ void rotate_tail(float4& v, uint64_t position, const float* frequencies, int lane) {
  if (lane < 16) return;
  const int pair = 2 * (lane - 16);
  rotate(v.x, v.y, rope_angle(position, frequencies, pair));
  rotate(v.z, v.w, rope_angle(position, frequencies, pair + 1));
}

// A finished row of 512, rounded as encode_attention_row() rounds it: decoded to `row`, and packed to
// `packed` if that is not null.
__device__ void store_attention_row(const float4 (&v)[4], int lane, uint8_t* packed, __half* row) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float x[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
    uint32_t largest = magnitude_bits(1e-4f);
    for (const float value : x) largest = max(largest, magnitude_bits(value));
#pragma unroll
    for (int step = 8; step > 0; step /= 2) {  // a block of 64 is half a warp
      largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    }
    float decoded[4];
    if (i == 3 && lane >= 16) {
      const uint2 bits = {f16_bits(x[0]) | f16_bits(x[1]) << 16, f16_bits(x[2]) | f16_bits(x[3]) << 16};
      if (packed != nullptr) {
        *reinterpret_cast<uint2*>(packed + attention_tail_offset + 8 * (lane - 16)) = bits;
      }
      for (int k = 0; k < 4; ++k) decoded[k] = x[k];
    } else {
      const uint32_t exponent = rounded_up_exponent(__fmul_rn(__uint_as_float(largest), 1.0f / 448.0f));
      const float inverse = e8m0_value(254u - min(exponent, 254u)), scale = e8m0_value(min(exponent, 255u));
      uint32_t codes = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t code = e4m3_code(__fmul_rn(x[k], inverse));
        codes |= code << 8 * k;
        decoded[k] = attention_value(code, scale);
      }
      if (packed != nullptr) {
        *reinterpret_cast<uint32_t*>(packed + 128 * i + 4 * lane) = codes;
        if (lane % 16 == 0) {
          packed[attention_exponents_offset + 2 * i + lane / 16] = static_cast<uint8_t>(min(exponent, 255u));
        }
      }
    }
    store_halves(row + 128 * i + 4 * lane, decoded);
  }
  if (packed != nullptr && lane == 0) packed[attention_exponents_offset + 7] = 0;
}

// Raw rows before the chunk and compressed rows before it, unpacked; a warp for a row.
__global__ void __launch_bounds__(32 * warps_per_block)
    unpack_rows_kernel(PrefillCaches u, uint32_t older, uint32_t compressed) {
  const int lane = threadIdx.x % 32;
  const uint32_t index = blockIdx.x * warps_per_block + threadIdx.x / 32;
  if (index >= older + compressed) return;
  const uint8_t* packed;
  __half* row = u.rows;
  if (index < older) {
    packed = u.cache->ring + (u.position - older + index) % ring_slots * attention_row_bytes;
    row += size_t{index} * head;
  } else {
    const uint32_t c = index - older;
    packed = u.cache->pages[c / rows_per_page] + c % rows_per_page * attention_row_bytes;
    row += (size_t{older} + u.tokens + c) * head;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i == 3 && lane >= 16) {
      *reinterpret_cast<uint2*>(row + 128 * i + 4 * lane) =
          *reinterpret_cast<const uint2*>(packed + attention_tail_offset + 8 * (lane - 16));
      continue;
    }
    const uint32_t codes = *reinterpret_cast<const uint32_t*>(packed + 128 * i + 4 * lane);
    const float scale = e8m0_value(packed[attention_exponents_offset + 2 * i + lane / 16]);
    float v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = attention_value(codes >> 8 * k & 0xffu, scale);
    store_halves(row + 128 * i + 4 * lane, v);
  }
}

__device__ void query_rank(const PrefillCaches& u, uint32_t token, int lane) {
  const float4* q = reinterpret_cast<const float4*>(u.q_low + size_t{token} * u.q_rank);
  const int quads = static_cast<int>(u.q_rank / 4);
  float squares = 0;
  for (int i = lane; i < quads; i += 32) {
    const float4 x = q[i];
    squares = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, squares))));
  }
  const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(u.q_rank) + epsilon);
  for (int i = lane; i < quads; i += 32) {
    const float4 x = q[i], w = __ldg(reinterpret_cast<const float4*>(u.q_norm) + i);
    const float y[4] = {x.x * factor * w.x, x.y * factor * w.y, x.z * factor * w.z, x.w * factor * w.w};
    store_halves(u.q_low_half + size_t{token} * u.q_rank + 4 * i, y);
  }
}

// blockIdx.y = 0: KV rows; 1: query ranks.
__global__ void __launch_bounds__(32 * warps_per_block) token_rows_kernel(PrefillCaches u, uint32_t older) {
  const int lane = threadIdx.x % 32;
  const uint32_t token = blockIdx.x * warps_per_block + threadIdx.x / 32;
  if (token >= u.tokens) return;
  if (blockIdx.y == 1) return query_rank(u, token, lane);
  float4 v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = reinterpret_cast<const float4*>(u.kv + size_t{token} * head)[32 * i + lane];
  }
  normalise(v, u.kv_norm, lane);
  const uint64_t position = u.position + token;
  rotate_tail(v[3], position, u.frequencies, lane);
  const bool stays = token + kept_rows >= u.tokens;
  uint8_t* slot = stays ? u.cache->ring + position % ring_slots * attention_row_bytes : nullptr;
  store_attention_row(v, lane, slot, u.rows + (size_t{older} + token) * head);
}

// Where a compressor's tokens are before their window is pooled: those of the chunk in the projections, older
// ones in the state. Four columns at a time.
struct Windows {
  CompressorJob job;
  float* values;  // state
  float* scores;
  int64_t first, end;  // positions of the chunk
  int ratio, dim, width;

  __device__ Windows(const PrefillCaches& u, bool indexer)
      : job(indexer ? u.index_compressor : u.compressor),
        values(indexer ? u.cache->index_values : u.cache->values),
        scores(indexer ? u.cache->index_scores : u.cache->scores),
        first(static_cast<int64_t>(u.position)),
        end(first + u.tokens),
        ratio(static_cast<int>(u.ratio)),
        dim(indexer ? index_head : head),
        width(ratio == 4 ? 2 * dim : dim) {}

  __device__ int64_t state_row(int64_t token) const { return token % compressor_slots(ratio); }
  __device__ float4 value(int64_t token, int column) const {
    return *reinterpret_cast<const float4*>(token >= first ? job.values + (token - first) * width + column
                                                           : values + state_row(token) * width + column);
  }
  __device__ float4 score(int64_t token, int column) const {
    if (token < first) return *reinterpret_cast<const float4*>(scores + state_row(token) * width + column);
    const float4 gate = *reinterpret_cast<const float4*>(job.gates + (token - first) * width + column);
    const float4 ape = *reinterpret_cast<const float4*>(job.ape + token % ratio * width + column);
    return make_float4(gate.x + ape.x, gate.y + ape.y, gate.z + ape.z, gate.w + ape.w);
  }
  __device__ void store(int64_t token, int column) const {
    const int64_t place = state_row(token) * width + column;
    *reinterpret_cast<float4*>(values + place) = value(token, column);
    *reinterpret_cast<float4*>(scores + place) = score(token, column);
  }
};

// Softmax-pooled values of one column so far.
struct Pooled {
  float largest = -INFINITY, weights = 0, sum = 0;

  template <int count>
  __device__ void add(const float (&score)[count], const float (&value)[count]) {
    float most = largest;
#pragma unroll
    for (const float s : score) most = fmaxf(most, s);
    if (most == -INFINITY) return;  // nothing but absent tokens
    const float scale = expf(largest - most);
    weights *= scale;
    sum *= scale;
    largest = most;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float weight = expf(score[i] - most);
      weights += weight;
      sum = fmaf(weight, value[i], sum);
    }
  }
  __device__ void add(const Pooled& other) {
    const float most = fmaxf(largest, other.largest);
    if (most == -INFINITY) return;
    const float mine = expf(largest - most), theirs = expf(other.largest - most);
    weights = fmaf(other.weights, theirs, weights * mine);
    sum = fmaf(other.sum, theirs, sum * mine);
    largest = most;
  }
};

// A block pools one window: `groups` groups of threads share its tokens, a thread has four columns.
template <int dim, int ratio>
__global__ void __launch_bounds__(dim / 4 * (ratio == 4 ? 1 : 4))
    pool_windows_kernel(PrefillCaches u, uint32_t older) {
  constexpr int lanes = dim / 4, groups = ratio == 4 ? 1 : 4, batch = 8;
  constexpr int candidates = ratio == 4 ? 8 : ratio, share = candidates / groups;
  __shared__ Pooled parts[groups][dim];
  const Windows windows(u, dim == index_head);
  const int column = threadIdx.x % lanes * 4, group = threadIdx.x / lanes;
  const int64_t number = static_cast<int64_t>(u.position / ratio) + blockIdx.x;
  const int64_t end = (number + 1) * ratio;
  Pooled pooled[4];
  for (int begin = group * share; begin < (group + 1) * share; begin += batch) {
    float score[4][batch], value[4][batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      // Ratio 4: the window before gives the first half of its columns, the window itself the second half.
      const int64_t token = end - candidates + begin + i;
      const int place = column + (ratio == 4 && begin + i >= 4 ? dim : 0);
      const bool present = token >= 0;
      const float4 s =
          present ? windows.score(token, place) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
      const float4 v = present ? windows.value(token, place) : float4{};
      score[0][i] = s.x, score[1][i] = s.y, score[2][i] = s.z, score[3][i] = s.w;
      value[0][i] = v.x, value[1][i] = v.y, value[2][i] = v.z, value[3][i] = v.w;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) pooled[k].add(score[k], value[k]);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) parts[group][column + k] = pooled[k];
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const int lane = threadIdx.x;
  float4 row[dim / 128];
#pragma unroll
  for (int i = 0; i < dim / 128; ++i) {
    float v[4];
    for (int k = 0; k < 4; ++k) {
      Pooled all = parts[0][128 * i + 4 * lane + k];
      for (int other = 1; other < groups; ++other) all.add(parts[other][128 * i + 4 * lane + k]);
      v[k] = all.sum / all.weights;
    }
    row[i] = make_float4(v[0], v[1], v[2], v[3]);
  }
  normalise(row, windows.job.norm, lane);
  rotate_tail(row[dim / 128 - 1], static_cast<uint64_t>(end - ratio), u.frequencies, lane);
  if constexpr (dim == index_head) {
    float v[4] = {row[0].x, row[0].y, row[0].z, row[0].w};
    encode_index_row(
        v, u.cache->index_pages[number / rows_per_page] + number % rows_per_page * index_row_bytes, lane);
  } else {
    store_attention_row(row, lane,
                        u.cache->pages[number / rows_per_page] + number % rows_per_page * attention_row_bytes,
                        u.rows + (size_t{older} + u.tokens + static_cast<size_t>(number)) * head);
  }
}

// The newest tokens of the chunk into the state; blockIdx.y counts them, blockIdx.z is 1 for index rows.
__global__ void __launch_bounds__(128) store_state_kernel(PrefillCaches u) {
  const Windows windows(u, blockIdx.z == 1);
  const int column = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (column < windows.width) windows.store(windows.end - 1 - static_cast<int64_t>(blockIdx.y), column);
}

template <int dim, int ratio>
void pool_windows(const PrefillCaches& u, uint32_t older, uint32_t count, cudaStream_t stream) {
  constexpr int threads = dim / 4 * (ratio == 4 ? 1 : 4);
  if (count > 0) pool_windows_kernel<dim, ratio><<<count, threads, 0, stream>>>(u, older);
}

unsigned blocks_for(size_t rows) {
  return static_cast<unsigned>((rows + warps_per_block - 1) / warps_per_block);
}

}  // namespace

uint32_t prefill_older_rows(uint64_t position) {
  return static_cast<uint32_t>(std::min<uint64_t>(position, window - 1));
}

cudaError_t prefill_update_caches(const PrefillCaches& u, cudaStream_t stream) {
  if (u.tokens == 0) return cudaSuccess;
  const uint32_t older = prefill_older_rows(u.position);
  const auto compressed = u.ratio == 0 ? 0 : static_cast<uint32_t>(u.position / u.ratio);
  if (older + compressed > 0) {
    unpack_rows_kernel<<<blocks_for(size_t{older} + compressed), 32 * warps_per_block, 0, stream>>>(
        u, older, compressed);
  }
  token_rows_kernel<<<dim3(blocks_for(u.tokens), 2), 32 * warps_per_block, 0, stream>>>(u, older);
  if (u.ratio == 0) return cudaGetLastError();
  const uint64_t end = u.position + u.tokens;
  const auto complete = static_cast<uint32_t>(end / u.ratio) - compressed;
  const auto kept = std::min(u.tokens, static_cast<uint32_t>(compressor_slots(static_cast<int>(u.ratio))));
  if (u.ratio == 4) {
    pool_windows<head, 4>(u, older, complete, stream);
    pool_windows<index_head, 4>(u, older, complete, stream);
    store_state_kernel<<<dim3(2, kept, 2), 128, 0, stream>>>(u);
  } else {
    pool_windows<head, 128>(u, older, complete, stream);
    store_state_kernel<<<dim3(1, kept), 128, 0, stream>>>(u);
  }
  return cudaGetLastError();
}

}  // namespace ds4::cuda
