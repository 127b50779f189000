// The kernel of both expert products: gate and up with SwiGLU, and down.
// Layout: activations and tiles in half_expert_scratch.cuh; weights in planes, experts one after the other. A
// block multiplies 128 rows of gate and the same of up (down: 256 rows) with the up to 128 tokens of a tile.
// Preconditions: half_experts.hpp. Bytes: a tile's weights once; its activations once for 128 rows, from L2.
// Why: weights are the operand of 64 rows, so that any number of tokens is a width of the tensor cores, and
// are decoded straight into registers, once for all tokens of the tile; only activations and codes pass
// through shared memory. One warpgroup copies, some steps of 128 columns ahead and on into the next tile; the
// four others take turns at decoding and at the tensor cores. Blocks take tiles from a
// counter, since tiles differ in tokens; no result depends on which block makes it.
#pragma once

#include "backend/cuda/gemm/half_expert_formats.cuh"
#include "backend/cuda/gemm/half_expert_product.hpp"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace ds4::cuda::half_expert {

inline constexpr uint32_t consumer_warps = 16;
inline constexpr uint32_t consumer_threads = consumer_warps * 32;
inline constexpr uint32_t producer_threads = 128;
inline constexpr uint32_t kernel_threads = consumer_threads + producer_threads;
inline constexpr uint32_t staged_rows = consumer_warps * 16;
inline constexpr uint32_t max_stages = 6;
inline constexpr uint32_t x_row_bytes = 128;  // half a step: the rows of a swizzled tile
inline constexpr float swiglu_limit = 10.0f;

__host__ __device__ constexpr uint32_t stage_bytes(uint32_t tile_tokens, uint32_t pitch) {
  return tile_tokens * 2 * x_row_bytes + staged_rows * pitch;
}
__host__ __device__ constexpr uint32_t table_bytes(TensorType type) {
  return type == TensorType::iq2_xxs ? static_cast<uint32_t>(iq2_half_tables_bytes) : 0;
}

/// What a block works on; count 0 ends.
struct Work {
  uint32_t expert, first, count, row_tile;
};

/// Behind the stages in shared memory.
struct Control {
  uint64_t full[max_stages];
  uint64_t empty[max_stages + 1];  // the last one is for nothing: consume()
  uint32_t next_item[2];
  Work work[max_stages];  // of the stage, valid in the first step of a tile
};

/// Tables of the format, stages, Control: activations of a stage in two tiles of 64 columns, then codes.
extern __shared__ __align__(1024) uint8_t shared_memory[];

/// The ring of stages.
template <bool warpgroup, TensorType type>
struct Pipeline {
  uint32_t stages;
  uint32_t portable_tile_tokens;
  uint32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint32_t tile_tokens() const {
    return warpgroup ? max_half_tile_tokens : portable_tile_tokens;
  }
  __device__ __forceinline__ uint32_t bytes() const {
    return stage_bytes(tile_tokens(), HalfFormat<type>::pitch);
  }
  /// Of one of the two tiles of activations.
  __device__ __forceinline__ uint32_t x_bytes() const { return tile_tokens() * x_row_bytes; }
  __device__ __forceinline__ uint8_t* x() const {
    return shared_memory + table_bytes(type) + stage * bytes();
  }
  __device__ __forceinline__ uint8_t* codes() const { return x() + 2 * x_bytes(); }
  __device__ __forceinline__ Control& control() const {
    return *reinterpret_cast<Control*>(shared_memory + table_bytes(type) + stages * bytes());
  }
  __device__ __forceinline__ uint64_t* full() const { return control().full + stage; }
  __device__ __forceinline__ uint64_t* empty() const { return control().empty + stage; }
  __device__ __forceinline__ void wait_full() const { barrier_wait(full(), parity); }
  /// By the producers, whose first pass over the stages finds them empty.
  __device__ __forceinline__ void wait_empty() const { barrier_wait(empty(), parity ^ 1); }
  __device__ __forceinline__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Staged row 16 * warp + 8 * r + g is row g + 8 r of a warp's fragments. For gate and up r is the matrix,
/// and the features of a warp are neighbours in the permuted order.
template <bool gate_up>
__device__ __forceinline__ uint32_t matrix_of(uint32_t staged) {
  return gate_up ? staged / 8 % 2 : 0;
}
template <bool gate_up>
__device__ __forceinline__ uint32_t expert_row(uint32_t row_tile, uint32_t staged) {
  if constexpr (!gate_up) return row_tile * staged_rows + staged;
  const uint32_t g = staged % 8, warp = staged / 16;
  return row_tile * 128 + g / 2 * 32 + warp / 2 * 4 + g % 2 * 2 + warp % 2;
}

__device__ __forceinline__ ExpertWeights weights_of(const DeviceMatrix& m) {
  return {m.quants, m.scales, m.extras, m.cols};
}

/// Copies the codes of a step, 128 columns of 256 rows.
template <TensorType type, bool gate_up>
__device__ __forceinline__ void copy_codes(const HalfExpertProduct& p, const Work& work, uint32_t step,
                                           uint8_t* to) {
  using Format = HalfFormat<type>;
  if constexpr (Format::staged) {
    const uint32_t t = threadIdx.x - consumer_threads, last = p.expert_rows - 1, cols = p.w[0].cols;
    const uint32_t first_row = work.expert * p.expert_rows;
    constexpr uint32_t row_chunks = Format::row_bytes / 16, rows_of_pass = producer_threads / row_chunks;
    static_assert(rows_of_pass % 16 == 0);  // a thread copies rows of one matrix
    const uint32_t chunk = t % row_chunks, first = t / row_chunks;
    const bool valid = step * expert_step_columns + chunk * (expert_step_columns / row_chunks) < cols;
    const uint32_t row_bytes = cols / 32 * (Format::row_bytes / 4);
    const uint8_t* const quants =
        p.w[matrix_of<gate_up>(first)].quants + (valid ? (step * row_chunks + chunk) * 16 : 0);
    uint8_t* const slot = to + first * Format::pitch + chunk * 16;
#pragma unroll 4
    for (uint32_t i = 0; i < staged_rows / rows_of_pass; ++i) {
      const uint32_t in_expert = expert_row<gate_up>(work.row_tile, i * rows_of_pass + first);
      const size_t row = first_row + min(in_expert, last);
      copy_16_async_if(slot + i * rows_of_pass * Format::pitch, quants + row * row_bytes, valid);
    }
    if (step % 2 == 0) {
#pragma unroll
      for (uint32_t i = 0; i < staged_rows; i += producer_threads) {
        const uint32_t row = first_row + min(expert_row<gate_up>(work.row_tile, i + t), last);
        Format::prefetch(weights_of(p.w[matrix_of<gate_up>(i + t)]), row, step);
      }
    }
  }
}

/// Begins the copies of a step's activations, and announces them to the stage's barrier.
template <bool warpgroup, TensorType type>
__device__ __forceinline__ void copy_x(const HalfExpertProduct& p, const Work& work, uint32_t step,
                                       const Pipeline<warpgroup, type>& pipe) {
  const uint32_t t = threadIdx.x - consumer_threads;
  uint8_t* const x = pipe.x();
  if constexpr (warpgroup) {
    if (t == 0) {
      const uint32_t boxes = (work.count + x_box_tokens - 1) / x_box_tokens;
      constexpr uint32_t box_bytes = x_box_tokens * x_row_bytes;
      barrier_arrive_expect(pipe.full(), boxes * 2 * box_bytes);
      const int32_t column = static_cast<int32_t>(step * expert_step_columns);
#pragma unroll 1
      for (uint32_t i = 0; i < boxes; ++i) {
        const int32_t row = static_cast<int32_t>(work.first + i * x_box_tokens);
        copy_tensor(x + i * box_bytes, &p.x_map, pipe.full(), column, row);
        copy_tensor(x + i * box_bytes + pipe.x_bytes(), &p.x_map, pipe.full(), column + 64, row);
      }
    }
  } else {
    const uint32_t chunk = t % 16, first = t / 16;
    uint8_t* const to = x + chunk / 8 * pipe.x_bytes() + first * x_row_bytes + (chunk % 8 ^ first) * 16;
    const __half* const from = p.x + step * expert_step_columns + chunk * 8;
#pragma unroll 1
    for (uint32_t i = 0; 8 * i < work.count; ++i) {
      const size_t place = work.first + min(8 * i + first, work.count - 1);
      copy_16_async_if(to + i * 8 * x_row_bytes, from + place * p.x_stride, true);
    }
    if (t == 0) barrier_arrive(pipe.full());
  }
}

/// One warpgroup copies all that the consumers read.
template <bool warpgroup, TensorType type, bool gate_up>
__device__ __forceinline__ void produce(const HalfExpertProduct& p, Pipeline<warpgroup, type> pipe) {
  const bool is_first = threadIdx.x == consumer_threads;
  const uint32_t items = *p.tiles.count * p.row_tiles;
  Control& control = pipe.control();
  uint32_t item = blockIdx.x, following = 0;  // the first thread takes its next item one turn ahead
  if (is_first) following = gridDim.x + atomicAdd(p.tiles.next, 1u);
#pragma unroll 1
  for (uint32_t turn = 0; item < items; turn ^= 1) {
    if (is_first) {
      control.next_item[turn] = following;
      following = gridDim.x + atomicAdd(p.tiles.next, 1u);
    }
    const HalfExpertTile tile = p.tiles.tiles[item / p.row_tiles];
    const Work work = {tile.expert, tile.first, tile.count, item % p.row_tiles};
#pragma unroll 1
    for (uint32_t step = 0; step < p.steps; ++step, pipe.advance()) {
      pipe.wait_empty();
      if (is_first) control.work[pipe.stage] = work;
      copy_x(p, work, step, pipe);
      copy_codes<type, gate_up>(p, work, step, pipe.codes());
      arrive_after_copies(pipe.full());
    }
    sync_threads(1, producer_threads);
    item = control.next_item[turn];
  }
  pipe.wait_empty();
  if (is_first) {
    control.work[pipe.stage] = {0, 0, 0, 0};
    barrier_arrive(pipe.full());
  }
  arrive_after_copies(pipe.full());
}

/// `x` within +-limit; NaN stays, of which fminf() and fmaxf() would make a number.
__device__ __forceinline__ float clamped(float x, float limit) {
  return x > limit ? limit : x < -limit ? -limit : x;
}
__device__ __forceinline__ float swiglu(float gate, float up, float weight) {
  const float g = gate > swiglu_limit ? swiglu_limit : gate, u = clamped(up, swiglu_limit);
  return __fdividef(g, 1.0f + __expf(-g)) * u * weight;
}

/// Results of a warp, for all tokens.
template <bool gate_up, uint32_t n>
__device__ __forceinline__ void store(const HalfExpertProduct& p, const Work& work, const float (&sums)[n]) {
  const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  const uint32_t row = expert_row<gate_up>(work.row_tile, 16 * warp + g);
#pragma unroll
  for (uint32_t j = 0; j < n / 4; ++j) {
    if (8 * j >= work.count) break;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t token = 8 * j + 2 * c + i, place = work.first + token;
      if (token >= work.count) continue;
      if constexpr (gate_up) {
        const float v = swiglu(sums[4 * j + i], sums[4 * j + 2 + i], __ldg(p.place_weight + place));
        p.mid[size_t{place} * p.mid_stride + work.row_tile * 128 + 8 * warp + g] =
            row < p.expert_rows ? __float2half_rn(clamped(v, 65504.0f)) : __ushort_as_half(0);
      } else {
        float* const to = p.products + size_t{place} * p.expert_rows + row;
        if (row < p.expert_rows) to[0] = sums[4 * j + i];
        if (row + 8 < p.expert_rows) to[8] = sums[4 * j + 2 + i];
      }
    }
  }
}

/// Fragments of the four products of 16 columns that read one tile of activations: two octets.
struct HalfStep {
  uint32_t a[4][4];
};

/// Keeps the compiler from decoding after this place, where products may already run.
__device__ __forceinline__ void pin(HalfStep& w) {
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) asm volatile("" : "+r"(w.a[i / 4][i % 4])::"memory");
}

/// Decodes an octet of rows g and g + 8.
template <TensorType type, uint32_t octet>
__device__ __forceinline__ void decode(typename HalfFormat<type>::Block (&rows)[2], const uint8_t* codes,
                                       uint32_t c, HalfStep& to) {
  using Format = HalfFormat<type>;
#pragma unroll
  for (uint32_t r = 0; r < 2; ++r) {
    uint32_t pairs[4];
    Format::template decode<octet>(rows[r], codes + r * 8 * Format::pitch, c, shared_memory, pairs);
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) to.a[octet % 2 * 2 + i / 2][i % 2 * 2 + r] = pairs[i];
  }
}

/// Descriptor of a tile of activations, without the upper half, which all tiles have in common.
__device__ __forceinline__ uint32_t low_descriptor(const uint8_t* tile) {
  return static_cast<uint32_t>(wgmma_tile(tile));
}

template <int tokens>
__device__ __forceinline__ void multiply_warpgroup(float (&sums)[64], HalfStep& w, uint32_t x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  float(&used)[tokens / 2] = reinterpret_cast<float(&)[tokens / 2]>(sums);
  wgmma_begin();
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) wgmma_f16(used, w.a[i], wgmma_swizzle_descriptor | (x + 2 * i), true);
  wgmma_commit();
#endif
}
/// Adds the products of half a step with 16 * width tokens; `sums` are those of all tokens of a tile. The
/// width is chosen here and not around the loop over steps: accumulators of several loops do not fit the
/// registers.
__device__ __forceinline__ void multiply(float (&sums)[64], HalfStep& w, uint32_t x, uint32_t width) {
  pin(w);
  if (width > 4) {
    if (width > 6) {
      if (width > 7) return multiply_warpgroup<128>(sums, w, x);
      return multiply_warpgroup<112>(sums, w, x);
    }
    if (width > 5) return multiply_warpgroup<96>(sums, w, x);
    return multiply_warpgroup<80>(sums, w, x);
  }
  if (width > 2) {
    if (width > 3) return multiply_warpgroup<64>(sums, w, x);
    return multiply_warpgroup<48>(sums, w, x);
  }
  if (width > 1) return multiply_warpgroup<32>(sums, w, x);
  return multiply_warpgroup<16>(sums, w, x);
}
/// The same by single warps, at most 64 tokens.
__device__ __forceinline__ void multiply(float (&sums)[32], HalfStep& w, const uint8_t* tile,
                                         uint32_t width) {
  const uint32_t lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8;
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j) {
    if (j >= width) break;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t b[4];
      load_matrices(b, tile + (j * 16 + row) * x_row_bytes + ((i * 2 + lane / 8 % 2) ^ row % 8) * 16);
      mma_f16(reinterpret_cast<float(&)[4]>(sums[8 * j]), w.a[i], b[0], b[1]);
      mma_f16(reinterpret_cast<float(&)[4]>(sums[8 * j + 4]), w.a[i], b[2], b[3]);
    }
  }
}

/// This warp has read a stage.
__device__ __forceinline__ void release(uint64_t* empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

/// A tile from its first step on, which is there.
template <bool warpgroup, TensorType type, bool gate_up>
__device__ __forceinline__ void consume(const HalfExpertProduct& p, const Work& work,
                                        Pipeline<warpgroup, type>& pipe) {
  using Format = HalfFormat<type>;
  const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  const uint32_t codes_at = (16 * warp + g) * Format::pitch;
  float sums[(warpgroup ? max_half_tile_tokens : max_portable_tile_tokens) / 2] = {};
  if constexpr (warpgroup) wgmma_pin(sums);
  const uint32_t width = (work.count + 15) / 16;
  typename Format::Block block[2];
  typename Format::Loaded next[2];
  uint32_t row[2];
#pragma unroll
  for (uint32_t r = 0; r < 2; ++r) {
    const uint32_t in_expert = expert_row<gate_up>(work.row_tile, 16 * warp + 8 * r + g);
    row[r] = work.expert * p.expert_rows + min(in_expert, p.expert_rows - 1);
    next[r] = Format::load(weights_of(p.w[r]), row[r], 0, c);
  }
  // A branch in the loop would make the compiler wait for every product: the first step releases a spare
  // barrier.
  uint64_t* read = pipe.control().empty + max_stages;
  const auto multiply_half = [&]<uint32_t half>(const uint8_t* codes, const uint8_t* x) {
    HalfStep w;
    if constexpr (warpgroup) {
      wgmma_wait<0>();
      if constexpr (half == 0) release(read);
    }
    decode<type, 2 * half>(block, codes, c, w);
    decode<type, 2 * half + 1>(block, codes, c, w);
    if constexpr (warpgroup) {
      multiply(sums, w, low_descriptor(x) + half * pipe.x_bytes() / 16, width);
    } else {
      multiply(sums, w, x + half * pipe.x_bytes(), width);
    }
  };
#pragma unroll 1
  for (uint32_t step = 0; step < p.steps; ++step, pipe.advance()) {
    if (step != 0) pipe.wait_full();
    const uint8_t* const codes = pipe.codes() + codes_at;
    const uint8_t* const x = pipe.x();
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      Format::prepare(block[r], next[r], codes + r * 8 * Format::pitch, c, step);
      next[r] = Format::load(weights_of(p.w[r]), row[r], min(step + 1, p.steps - 1), c);
    }
    multiply_half.template operator()<0>(codes, x);
    multiply_half.template operator()<1>(codes, x);
    read = pipe.empty();
    if constexpr (!warpgroup) release(read);
  }
  if constexpr (warpgroup) {
    wgmma_wait<0>();
    wgmma_pin(sums);
    release(read);
  }
  store<gate_up>(p, work, sums);
}

/// Without code for sm_90a the kernel of warpgroups is empty.
template <bool warpgroup, TensorType type, bool gate_up>
__global__ void __launch_bounds__(kernel_threads, 1)
    product_kernel(const __grid_constant__ HalfExpertProduct p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool exists = true;
#else
  constexpr bool exists = !warpgroup;
#endif
  if constexpr (exists) {
    Pipeline<warpgroup, type> pipe = {p.stages, p.tile_tokens};
    if (threadIdx.x == 0) {
      if (shared_address(shared_memory) % 1024 != 0) __trap();
      Control& control = pipe.control();
      for (uint32_t i = 0; i < p.stages; ++i) {
        barrier_init(control.full + i, producer_threads + 1);
        barrier_init(control.empty + i, consumer_warps);
      }
      barrier_init(control.empty + max_stages, consumer_warps);
      if constexpr (warpgroup) barrier_init_fence();
    }
    if constexpr (type == TensorType::iq2_xxs) fill_iq2_half_tables(shared_memory);
    __syncthreads();
    if (threadIdx.x >= consumer_threads) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
      if constexpr (warpgroup) shrink_registers<32>();
#endif
      produce<warpgroup, type, gate_up>(p, pipe);
    } else {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
      if constexpr (warpgroup) grow_registers<112>();
#endif
      while (true) {
        pipe.wait_full();
        const Work work = pipe.control().work[pipe.stage];
        if (work.count == 0) break;
        consume<warpgroup, type, gate_up>(p, work, pipe);
      }
    }
  }
}

/// Starts the kernel for one format.
template <bool warpgroup, TensorType type, bool gate_up>
cudaError_t launch(HalfExpertProduct p, const HalfExpertDevice& device, cudaStream_t stream) {
  const uint32_t bytes = stage_bytes(p.tile_tokens, HalfFormat<type>::pitch), tables = table_bytes(type);
  const uint32_t taken = static_cast<uint32_t>(sizeof(Control)) + tables;
  if (device.shared_bytes < taken + 2 * bytes) return cudaErrorInvalidValue;
  const uint32_t fitting = (device.shared_bytes - taken) / bytes;
  p.stages = fitting < max_stages ? fitting : max_stages;
  const uint32_t total = p.stages * bytes + taken;
  const auto kernel = product_kernel<warpgroup, type, gate_up>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(total));
  if (status != cudaSuccess) return status;
  kernel<<<device.processors, kernel_threads, total, stream>>>(p);
  return cudaPeekAtLastError();
}

template <bool warpgroup, bool gate_up>
cudaError_t launch_type(const HalfExpertProduct& p, const HalfExpertDevice& device, cudaStream_t stream) {
  switch (p.w[0].type) {
    case TensorType::f32:
      return launch<warpgroup, TensorType::f32, gate_up>(p, device, stream);
    case TensorType::f16:
      return launch<warpgroup, TensorType::f16, gate_up>(p, device, stream);
    case TensorType::bf16:
      return launch<warpgroup, TensorType::bf16, gate_up>(p, device, stream);
    case TensorType::q8_0:
      return launch<warpgroup, TensorType::q8_0, gate_up>(p, device, stream);
    case TensorType::q4_k:
      return launch<warpgroup, TensorType::q4_k, gate_up>(p, device, stream);
    case TensorType::q2_k:
      return launch<warpgroup, TensorType::q2_k, gate_up>(p, device, stream);
    case TensorType::iq2_xxs:
      return launch<warpgroup, TensorType::iq2_xxs, gate_up>(p, device, stream);
    case TensorType::mxfp4:
      return launch<warpgroup, TensorType::mxfp4, gate_up>(p, device, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace ds4::cuda::half_expert
