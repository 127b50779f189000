// Buffers of a forward pass. They grow to the largest batch seen and are then reused: steady-state decode
// allocates nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "backend/cpu/hyper_connection.hpp"
#include "backend/cpu/matmul.hpp"
#include "backend/cpu/rope.hpp"
#include "base/aligned_buffer.hpp"

namespace ds4::cpu {

/// Attention runs on at most this many rows at a time, which bounds the query buffer.
inline constexpr size_t attention_block_rows = 256;
/// The (token, expert) pairs whose middle activations are held at once: 4096 x 2048 F32 for Flash are 32 MiB.
inline constexpr size_t expert_group_slots = 4096;

/// Of one worker thread.
struct WorkerScratch {
  AlignedBuffer<float> rows;      // decoded KV rows [rows][512]
  AlignedBuffer<float> scores;    // attention or index scores
  AlignedBuffer<uint32_t> order;  // of index rows
  AlignedBuffer<float> gate, up;  // tiles of expert products
};

/// T = rows of the batch, B = rows of an attention block.
struct Scratch {
  Scratch(size_t workers, ActivationMode mode)
      : matmul(workers), worker(workers), x(mode), q_low(mode), attended(mode), low(mode), mid(mode) {}

  /// Set by a worker that could not get memory; the calling thread turns it into an exception, since nothing
  /// may be thrown from inside a parallel loop.
  std::atomic<bool> exhausted = false;
  void check_memory() {
    if (exhausted.exchange(false)) throw std::bad_alloc();
  }

  std::vector<MatmulScratch> matmul;
  std::vector<WorkerScratch> worker;

  AlignedBuffer<float> streams;       // [T][4][d]
  AlignedBuffer<float> mix;           // [T][24]
  AlignedBuffer<HyperConnection> hc;  // [T]
  AlignedBuffer<float> normed;        // [T][d]: input of the sublayer
  AlignedBuffer<float> sublayer;      // [T][d]: its output

  AlignedBuffer<RopeAngles> plain_angles, compressed_angles;  // [T]
  AlignedBuffer<float> q_low_rows;                            // [T][q_rank]
  AlignedBuffer<float> kv;                                    // [T][512]
  AlignedBuffer<std::byte> chunk_rows;                        // [T] packed rows
  AlignedBuffer<float> values, gates;                         // [T][compressor width]
  AlignedBuffer<float> query;                                 // [B][H][512]: queries, then outputs
  AlignedBuffer<float> low_rows;                              // [B][G * rank]
  AlignedBuffer<float> index_query;                           // [B][index heads][128]
  AlignedBuffer<float> index_weights;                         // [T][index heads]
  AlignedBuffer<float> index_scores;                          // [B][visible rows, padded]
  AlignedBuffer<uint32_t> selected;                           // [B][top k]

  AlignedBuffer<float> router;           // [T][E]
  AlignedBuffer<uint32_t> experts;       // [T][K], ascending for each token
  AlignedBuffer<float> expert_weights;   // [T][K]
  AlignedBuffer<uint32_t> expert_begin;  // [E + 1]: slots of each expert
  AlignedBuffer<uint32_t> slot_token;    // [T * K]
  AlignedBuffer<float> slot_weight;      // [T * K]
  AlignedBuffer<uint32_t> slot_row;      // 0, 1, 2, ...
  AlignedBuffer<float> mid_rows;         // [slots of an expert group][F]
  AlignedBuffer<float> gate_rows;        // [T][F]: shared expert
  AlignedBuffer<float> up_rows;          // [T][F]
  AlignedBuffer<float> down_rows;        // [T][d]

  Activations x, q_low, attended, low, mid;
};

}  // namespace ds4::cpu
