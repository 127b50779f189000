// What: softmax attention with sinks; chunks of a row's list of KV rows go to separate blocks, a second
// kernel joins
//   them, un-rotates the tail and rounds to int8 (flash decoding).
// Layout: block = (chunk, or several of them if there are several rows; 16 heads; row of the pass), 8 warps;
// warp w owns columns 64 w .. 64 w + 63 of every KV row,
//   as keys and as values, and keeps them in registers. Heads are the M dimension of m16n8k16.
// Preconditions: packed rows on 8 bytes, query on 16. Chunks depend on the row's own count alone, so a row
// gives the
//   same bits in every batch. BF16 holds E4M3 times a power of two exactly; queries, weights and the F16 tail
//   are split into two BF16 (16 bits), which leaves a relative L2 error near 1e-5 against float64.
// Bytes and FLOPs: 584 B a KV row and head group; 131,072 FLOP for 64 heads (twice that in split products);
// partial
//   results 2 KB a chunk and head, written and read once, in L2 but for the longest contexts.
// Why this shape: with columns split over warps one decoded fragment serves both products (transposed by
// movmatrix),
//   nothing but scores and weights passes through shared memory, and 640 rows make 80 blocks for a single
//   row.
#include "backend/cuda/attention/attention.hpp"
#include "backend/cuda/attention/rope.cuh"
#include "backend/cuda/attention/row_codec.cuh"
#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/gemv/quantize_device.cuh"

namespace ds4::cuda {
namespace {

constexpr int warps = 8;             // one for each 64 columns
constexpr int tile_rows = 32;        // KV rows at a time
constexpr int group_heads = 16;      // heads of a block
constexpr uint32_t max_chunks = 32;  // blocks that share a row's list
constexpr int window_rows = 128;
constexpr float score_scale = 0.044194173824159216f;  // 512^(-1/2)
constexpr int score_stride = tile_rows + 2;   // floats; even for float2, odd pairs against bank conflicts
constexpr int weight_stride = tile_rows + 8;  // BF16; 16 heads fall into distinct banks

__host__ __device__ inline uint32_t divide_up(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}

/// Rows in a chunk of a list of `count`, a multiple of tile_rows.
__host__ __device__ inline uint32_t chunk_rows(uint32_t count) {
  return tile_rows * divide_up(count, tile_rows * max_chunks);
}

/// Chunks that a launch provides for.
uint32_t launch_chunks(uint32_t ratio, uint32_t top_k, uint32_t max_compressed) {
  uint32_t compressed = ratio == 0 ? 0 : max_compressed;
  if (ratio == 4) compressed = compressed < top_k ? compressed : top_k;
  const uint32_t count = window_rows + compressed;
  return count > tile_rows * max_chunks ? max_chunks : divide_up(count, tile_rows);
}

/// The KV rows that a row of the pass sees: raw rows oldest first, then compressed rows ascending.
struct RowList {
  const LayerCache* cache;
  const uint32_t* selected;  // null: all compressed rows
  uint64_t first_position;
  uint32_t raw;
  uint32_t count;
  uint32_t old_raw, old_compressed;  // rows that were there before the pass

  __device__ RowList(const AttentionArguments& a, uint32_t index) {
    const RowInfo row = a.rows[index];
    cache = row.layers + a.layer;
    raw = row.position + 1 < window_rows ? static_cast<uint32_t>(row.position + 1) : window_rows;
    first_position = row.position + 1 - raw;
    uint32_t compressed = visible_rows(row.position, a.ratio);
    selected = nullptr;
    if (a.ratio == 4 && compressed > a.top_k) {
      compressed = a.top_k;
      selected = a.selected + size_t{index} * a.top_k;
    }
    count = raw + compressed;
    const uint64_t begin = row.position - row.place;  // of the sequence in the pass
    old_raw = begin > first_position ? static_cast<uint32_t>(begin - first_position) : 0;
    old_compressed = selected != nullptr || begin == 0 ? 0 : visible_rows(begin - 1, a.ratio);
  }

  /// Nothing of the pass is needed to find or read row i.
  __device__ bool is_old(uint32_t i) const { return i < raw ? i < old_raw : i - raw < old_compressed; }

  __device__ const uint8_t* row(uint32_t i) const {
    if (i < raw) return cache->ring + (first_position + i) % ring_slots * attention_row_bytes;
    const uint32_t j = selected != nullptr ? selected[i - raw] : i - raw;
    return cache->pages[j / rows_per_page] + j % rows_per_page * attention_row_bytes;
  }
};

/// The 16 columns of one KV row that a lane holds: 16 c .. 16 c + 15 of the warp's 64, as eight pairs: F16 in
/// the tail, else BF16.
struct Fragment {
  uint32_t pair[8];
};

struct RawColumns {
  uint2 bytes[4];     // 16 codes in the first two, or 16 F16
  uint32_t exponent;  // of the codes
};

template <bool kTail>
__device__ inline void load_columns(const uint8_t* row, int warp, int c, RawColumns& raw) {
  const uint2* source =
      reinterpret_cast<const uint2*>(kTail ? row + attention_tail_offset + 32 * c : row + 64 * warp + 16 * c);
#pragma unroll
  for (int i = 0; i < (kTail ? 4 : 2); ++i) raw.bytes[i] = __ldcg(source + i);
  if (!kTail) raw.exponent = __ldcg(row + attention_exponents_offset + warp);
}

template <bool kTail>
__device__ inline void decode_columns(const RawColumns& raw, Fragment& out) {
  if constexpr (kTail) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out.pair[i] = i % 2 == 0 ? raw.bytes[i / 2].x : raw.bytes[i / 2].y;
  } else {
    const uint32_t scale = bf16_scale_pair(raw.exponent);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t codes = i % 2 == 0 ? raw.bytes[i / 2].x : raw.bytes[i / 2].y;
      out.pair[2 * i] = e4m3_pair(codes, scale);
      out.pair[2 * i + 1] = e4m3_pair(codes >> 16, scale);
    }
  }
}

/// Waits for all warps of the block, which may come from different places in the code: __syncthreads() may
/// not.
__device__ inline void block_barrier() {
  asm volatile("barrier.sync 1, %0;" ::"n"(32 * warps) : "memory");
}

struct alignas(16) Shared {
  float scores[warps][group_heads][score_stride];      // partial, over each warp's columns
  uint16_t weights[2][2][group_heads][weight_stride];  // BF16, then F16; major, then minor parts
  float rescale[group_heads];
  float squares[group_heads][warps];  // of the raw query, by columns
  float2 angles[rope_pair_count];     // of the row's position
};

template <bool kTail>
__device__ inline void split(float low, float high, uint32_t& major, uint32_t& minor) {
  if constexpr (kTail) {
    split_f16(low, high, major, minor);
  } else {
    split_bf16(low, high, major, minor);
  }
}

template <bool kTail>
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kTail) {
    mma_f16(c, a, b0, b1);
  } else {
    mma_bf16(c, a, b0, b1);
  }
}

/// Queries of heads g and g + 8 over the lane's 16 columns, divided by their root mean square, rotated, split
/// in two.
struct QueryFragment {
  uint32_t major[4][4];
  uint32_t minor[4][4];
};

template <bool kTail>
__device__ inline void load_query(const float* query, uint32_t heads_left, int warp, int g, int c,
                                  Shared& shared, QueryFragment& q) {
  float4 v[2][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t head = g + 8 * half;
    const float4* source = reinterpret_cast<const float4*>(query + size_t{head} * 512 + 64 * warp + 16 * c);
#pragma unroll
    for (int s = 0; s < 4; ++s) v[half][s] = head < heads_left ? source[s] : make_float4(0, 0, 0, 0);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0;
#pragma unroll
    for (const float4& x : v[half]) sum = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, sum))));
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (c == 0) shared.squares[g + 8 * half][warp] = sum;
  }
  block_barrier();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) sum += shared.squares[g + 8 * half][w];
    const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fmul_rn(sum, 1.0f / 512.0f), 1e-6f)));
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      float4 x = v[half][s];
      x = make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse);
      if constexpr (kTail) {
        rotate(x.x, x.y, shared.angles[8 * c + 2 * s]);
        rotate(x.z, x.w, shared.angles[8 * c + 2 * s + 1]);
      }
      split<kTail>(x.x, x.y, q.major[s][half], q.minor[s][half]);
      split<kTail>(x.z, x.w, q.major[s][half + 2], q.minor[s][half + 2]);
    }
  }
}

/// Partial scores of 8 KV rows with 16 heads over the warp's columns.
template <bool kTail>
__device__ inline void score_rows(const QueryFragment& q, const Fragment& f, float (&sum)[4]) {
  float minor[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = 0;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    multiply_add<kTail>(sum, q.major[s], f.pair[2 * s], f.pair[2 * s + 1]);
    multiply_add<kTail>(minor, q.minor[s], f.pair[2 * s], f.pair[2 * s + 1]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] += minor[i];
}

/// Running maximum and sum of a head's weights. All 16 lanes of a head hold the same.
struct Running {
  float maximum = -INFINITY;
  float sum = 0;
};

/// Thread t takes head t / 16 and KV rows t mod 16 and 16 more: joins the partial scores, then weights e^(s -
/// maximum).
__device__ inline void weigh(Shared& shared, uint32_t valid, Running& running) {
  const int head = threadIdx.x / 16, column = threadIdx.x % 16;
  float score[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = column + 16 * i;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) sum += shared.scores[w][head][row];
    score[i] = row < valid ? sum * score_scale : -INFINITY;
  }
  float maximum = fmaxf(running.maximum, fmaxf(score[0], score[1]));
  for (int step = 8; step > 0; step /= 2)
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
  const float rescale = running.maximum == maximum ? 1.0f : expf(running.maximum - maximum);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = column + 16 * i;
    const float weight = row < valid ? expf(score[i] - maximum) : 0.0f;
    uint32_t major, minor;
    split_bf16(weight, 0, major, minor);
    shared.weights[0][0][head][row] = static_cast<uint16_t>(major);
    shared.weights[0][1][head][row] = static_cast<uint16_t>(minor);
    split_f16(weight, 0, major, minor);
    shared.weights[1][0][head][row] = static_cast<uint16_t>(major);
    shared.weights[1][1][head][row] = static_cast<uint16_t>(minor);
    sum += weight;
  }
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  running.sum = running.sum * rescale + sum;
  running.maximum = maximum;
  if (column == 0) shared.rescale[head] = rescale;
}

__device__ inline void load_weights(const uint16_t (&weights)[group_heads][weight_stride], int step, int g,
                                    int c, uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = 16 * step + 2 * c + 8 * (i / 2);
    a[i] = *reinterpret_cast<const uint32_t*>(&weights[g + 8 * (i % 2)][row]);
  }
}

/// Adds weights times values: for each pair of columns, rows 16 step .. + 15 as two transposed fragments.
template <bool kTail>
__device__ inline void add_values(const uint32_t (&major)[4], const uint32_t (&minor)[4], const Fragment& low,
                                  const Fragment& high, float (&sum)[8][4]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t b0 = transpose_8x8(low.pair[j]), b1 = transpose_8x8(high.pair[j]);
    multiply_add<kTail>(sum[j], major, b0, b1);
    multiply_add<kTail>(sum[j], minor, b0, b1);
  }
}

struct Partial {
  float* values;  // [row][head][chunks][512]
  float2* stats;  // [row][head][chunks]: maximum, sum
};

__host__ __device__ inline Partial partial_of(const AttentionArguments& a, uint32_t chunks) {
  const size_t count = size_t{a.row_count} * a.heads * chunks;
  float* values = static_cast<float*>(a.scratch);
  return {values, reinterpret_cast<float2*>(values + count * 512)};
}

/// The warp's columns of a chunk's result; the first of 16 threads writes a head's statistics.
__device__ inline void store_partial(const AttentionArguments& a, uint32_t chunks, uint32_t chunk, int warp,
                                     const float (&sum)[8][4], const Running& running) {
  const uint32_t first_head = blockIdx.y * group_heads, heads_left = a.heads - first_head;
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const Partial partial = partial_of(a, chunks);
  const auto slot = [&](uint32_t head) {
    return (size_t{blockIdx.z} * a.heads + first_head + head) * chunks + chunk;
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t head = g + 8 * half;
    if (head >= heads_left) continue;
    float4* out = reinterpret_cast<float4*>(partial.values + slot(head) * 512 + 64 * warp + 16 * c);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      out[j] = make_float4(sum[2 * j][2 * half], sum[2 * j][2 * half + 1], sum[2 * j + 1][2 * half],
                           sum[2 * j + 1][2 * half + 1]);
    }
  }
  const uint32_t head = threadIdx.x / 16;
  if (threadIdx.x % 16 == 0 && head < heads_left) {
    partial.stats[slot(head)] = make_float2(running.maximum, running.sum);
  }
}

/// One warp's part of chunks `chunk`, `chunk` + gridDim.x, ... of the list, or of the first of them alone.
/// Those rows of the first tile that are not of this pass are asked for before the queries are there; all go
/// past L1, which may hold what was there before.
template <bool kTail, bool several>
__device__ void attend_chunks(const AttentionArguments& a, const RowList& list, uint32_t chunks, int warp,
                              Shared& shared) {
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const uint32_t first_head = blockIdx.y * group_heads, heads_left = a.heads - first_head;
  const float* query = a.query + (size_t{blockIdx.z} * a.heads + first_head) * 512;
  const uint32_t rows_per_chunk = chunk_rows(list.count);
  uint32_t chunk = blockIdx.x, begin = chunk * rows_per_chunk, end = min(list.count, begin + rows_per_chunk);
  // Past the end the last row is read again; its weight is 0.
  const auto row_of = [&](uint32_t tile, int n) { return min(tile + 8 * n + g, end - 1); };
  RawColumns raw[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    if (list.is_old(row_of(begin, n))) load_columns<kTail>(list.row(row_of(begin, n)), warp, c, raw[n]);
  }
  wait_for_predecessor();
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    if (!list.is_old(row_of(begin, n))) load_columns<kTail>(list.row(row_of(begin, n)), warp, c, raw[n]);
  }
  QueryFragment q;
  load_query<kTail>(query, heads_left, warp, g, c, shared, q);
  float sum[8][4] = {};
  Running running;
  for (uint32_t tile = begin;;) {
    const uint32_t valid = min(static_cast<uint32_t>(tile_rows), end - tile);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      Fragment fragment;
      decode_columns<kTail>(raw[n], fragment);
      float scores[4];
      score_rows<kTail>(q, fragment, scores);
      *reinterpret_cast<float2*>(&shared.scores[warp][g][8 * n + 2 * c]) = make_float2(scores[0], scores[1]);
      *reinterpret_cast<float2*>(&shared.scores[warp][g + 8][8 * n + 2 * c]) =
          make_float2(scores[2], scores[3]);
    }
    block_barrier();
    weigh(shared, valid, running);
    block_barrier();
    const float low = shared.rescale[g], high = shared.rescale[g + 8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      sum[j][0] *= low;
      sum[j][1] *= low;
      sum[j][2] *= high;
      sum[j][3] *= high;
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t major[4], minor[4];
      load_weights(shared.weights[kTail][0], step, g, c, major);
      load_weights(shared.weights[kTail][1], step, g, c, minor);
      Fragment first, second;
      decode_columns<kTail>(raw[2 * step], first);
      decode_columns<kTail>(raw[2 * step + 1], second);
      add_values<kTail>(major, minor, first, second, sum);
    }
    // The next tile's weigh() comes after its first barrier, so the weights may be read until there.
    tile += tile_rows;
    const bool ended = tile >= end;
    const uint32_t next = chunk + gridDim.x;
    const bool more = several && ended && next * rows_per_chunk < list.count;
    if (more) {
      tile = next * rows_per_chunk;
      end = min(list.count, tile + rows_per_chunk);
    }
    if (!ended || more) {
#pragma unroll
      for (int n = 0; n < 4; ++n) load_columns<kTail>(list.row(row_of(tile, n)), warp, c, raw[n]);
    }
    if (!ended) continue;
    store_partial(a, chunks, chunk, warp, sum, running);
    if (!more) return;
    chunk = next;
    running = Running();
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (float& value : sum[j]) value = 0;
    }
  }
}

template <bool several>
__global__ void __launch_bounds__(32 * warps, 2)
    attend_kernel(const __grid_constant__ AttentionArguments a, uint32_t chunks) {
  __shared__ Shared shared;
  start_successor();
  if (threadIdx.x < rope_pair_count) {
    shared.angles[threadIdx.x] =
        rope_angle(a.rows[blockIdx.z].position, a.frequencies, static_cast<int>(threadIdx.x));
  }
  __syncthreads();
  const RowList list(a, blockIdx.z);
  if (blockIdx.x * chunk_rows(list.count) >= list.count) return wait_for_predecessor();
  const int warp = threadIdx.x / 32;
  if (warp == warps - 1) {
    attend_chunks<true, several>(a, list, chunks, warp, shared);
  } else {
    attend_chunks<false, several>(a, list, chunks, warp, shared);
  }
}

/// One block for a head: thread t joins columns 4 t .. 4 t + 3 of the chunks in order. The values of the
/// first chunks are asked for before their weights are known.
__global__ void __launch_bounds__(128)
    combine_kernel(const __grid_constant__ AttentionArguments a, uint32_t chunks) {
  constexpr uint32_t ahead = 20;  // chunks of the window and 512 compressed rows
  __shared__ float factor[max_chunks];
  __shared__ float denominator;
  start_successor();
  const RowList list(a, blockIdx.y);
  const uint32_t used = divide_up(list.count, chunk_rows(list.count));
  const size_t head = size_t{blockIdx.y} * a.heads + blockIdx.x;
  const Partial partial = partial_of(a, chunks);
  const uint32_t t = threadIdx.x;
  const float sink = a.sinks[blockIdx.x];
  wait_for_predecessor();
  const float4* values = reinterpret_cast<const float4*>(partial.values + head * chunks * 512) + t;
  float4 first[ahead];
#pragma unroll
  for (uint32_t i = 0; i < ahead; ++i) first[i] = values[min(i, used - 1) * 128];
  if (t < 32) {
    const float2 stats = t < used ? partial.stats[head * chunks + t] : make_float2(-INFINITY, 0);
    float maximum = fmaxf(stats.x, sink);
    for (int step = 16; step > 0; step /= 2)
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
    const float weight = t < used ? expf(stats.x - maximum) : 0.0f;
    float sum = stats.y * weight;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    factor[t] = weight;
    if (t == 0) denominator = sum + expf(sink - maximum);
  }
  __syncthreads();
  float4 v = make_float4(0, 0, 0, 0);
  const auto add = [&](uint32_t i, const float4& x) {
    const float weight = factor[i];
    v = make_float4(fmaf(weight, x.x, v.x), fmaf(weight, x.y, v.y), fmaf(weight, x.z, v.z),
                    fmaf(weight, x.w, v.w));
  };
#pragma unroll
  for (uint32_t i = 0; i < ahead; ++i) add(i, first[i]);  // weights beyond `used` are 0
  for (uint32_t i = ahead; i < used; ++i) add(i, values[i * 128]);
  v = make_float4(__fdiv_rn(v.x, denominator), __fdiv_rn(v.y, denominator), __fdiv_rn(v.z, denominator),
                  __fdiv_rn(v.w, denominator));
  if (t >= 112) {  // elements 448 and up
    const uint64_t position = a.rows[blockIdx.y].position;
    rotate_inverse(v.x, v.y, rope_angle(position, a.frequencies, 2 * (t - 112)));
    rotate_inverse(v.z, v.w, rope_angle(position, a.frequencies, 2 * (t - 112) + 1));
  }
  reinterpret_cast<float4*>(a.out + head * 512)[t] = v;
  uint32_t largest =
      max(max(magnitude_bits(v.x), magnitude_bits(v.y)), max(magnitude_bits(v.z), magnitude_bits(v.w)));
  for (int step = 4; step > 0; step /= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  const float scale = activation_scale(largest);
  const auto code = [&](float x) { return static_cast<signed char>(activation_code(x, scale)); };
  reinterpret_cast<char4*>(a.codes + head * 512)[t] = make_char4(code(v.x), code(v.y), code(v.z), code(v.w));
  if (t % 8 == 0) a.scales[head * 16 + t / 8] = scale;
}

}  // namespace

size_t attention_scratch_bytes(uint32_t row_count, uint32_t heads, uint32_t ratio, uint32_t top_k,
                               uint32_t max_compressed) {
  const size_t slots = size_t{row_count} * heads * launch_chunks(ratio, top_k, max_compressed);
  return slots * (512 * sizeof(float) + sizeof(float2));
}

cudaError_t attend(const AttentionArguments& arguments, cudaStream_t stream) {
  const uint32_t chunks = launch_chunks(arguments.ratio, arguments.top_k, arguments.max_compressed);
  const uint32_t groups = divide_up(arguments.heads, group_heads), rows = arguments.row_count;
  // Blocks of more rows than one take several chunks with one load of their queries, so that all run at a
  // time.
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const uint32_t of_block =
      rows == 1 ? 1 : divide_up(chunks * groups * rows, 2 * static_cast<uint32_t>(processors));
  const dim3 grid(divide_up(chunks, of_block), groups, rows);
  const auto kernel = of_block == 1 ? attend_kernel<false> : attend_kernel<true>;
  const cudaError_t status = launch(kernel, grid, 32 * warps, 0, stream, arguments, chunks);
  if (status != cudaSuccess) return status;
  return launch(combine_kernel, dim3(arguments.heads, arguments.row_count), 128, 0, stream, arguments,
                chunks);
}

}  // namespace ds4::cuda
