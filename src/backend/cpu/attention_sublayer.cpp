// The attention sublayer for a batch (docs/model.md §5 to §7): projections, caches, index selection,
// attention, output projection. The caches take every row of the batch before the first row attends.
#include <algorithm>
#include <cmath>
#include <new>

#include "backend/cpu/attention.hpp"
#include "backend/cpu/compressor.hpp"
#include "backend/cpu/forward.hpp"
#include "backend/cpu/indexer.hpp"
#include "backend/cpu/rms_norm.hpp"

namespace ds4::cpu {
namespace {

void check(bool enough_memory) {
  if (!enough_memory) throw std::bad_alloc();
}

size_t visible_rows(uint64_t position, uint32_t ratio) {
  return ratio == 0 ? 0 : (position + 1) / ratio;
}

// Projections of one compressor, then token by token through its rolling state.
void run_compressor(const ForwardContext& context, const Compressor& compressor, const Batch& batch,
                    const LayerStateOf& layer_state, bool indexer) {
  Scratch& s = context.scratch;
  const size_t width = compressor.kv.rows;
  float* values = s.values.grow(batch.size() * width);
  float* gates = s.gates.grow(batch.size() * width);
  check(matmul(context.pool, s.matmul, compressor.kv, s.x, values, width) &&
        matmul(context.pool, s.matmul, compressor.gate, s.x, gates, width));
  const CompressorParameters parameters{compressor.ape.data(), compressor.norm.data(), compressor.dim,
                                        &context.weights.compressed_frequencies};
  for (const Segment& segment : batch.segments) {
    LayerState& state = layer_state(segment);
    for (size_t i = 0; i < segment.count; ++i) {
      const size_t row = segment.first_row + i;
      compress_token(indexer ? state.index_compressor : state.compressor, parameters, context.codec,
                     segment.start + i, values + row * width, gates + row * width,
                     indexer ? state.index_rows : state.compressed);
    }
  }
}

// One block of rows on its way through attention.
struct Block {
  size_t begin = 0, end = 0;           // batch rows
  const uint32_t* selected = nullptr;  // [rows][top k] where a row sees more than top k
  size_t size() const { return end - begin; }
};

const RopeAngles* angles_of(const ForwardContext& context, const Layer& layer) {
  return layer.ratio == 0 ? context.scratch.plain_angles.data() : context.scratch.compressed_angles.data();
}

void make_queries(const ForwardContext& context, const Layer& layer, const Block& block) {
  Scratch& s = context.scratch;
  const size_t heads = context.shape.heads, width = context.shape.q_width(), rank = context.shape.q_rank;
  float* query = s.query.grow(block.size() * width);
  s.q_low.assign(s.q_low_rows.data() + block.begin * rank, block.size(), rank, rank);
  check(matmul(context.pool, s.matmul, layer.q_b, s.q_low, query, width));
  const RopeAngles* angles = angles_of(context, layer);
  context.pool.parallel_for(block.size() * heads, 16, [&](size_t begin, size_t end, unsigned) {
    for (size_t i = begin; i < end; ++i) {
      float* head = query + i * model::head_dim;
      rms_norm(head, nullptr, model::head_dim, head);
      rotate(head + model::nope_dim, angles[block.begin + i / heads]);
    }
  });
}

// Head weights of the indexer for all rows; not needed while every row sees all compressed rows.
void make_index_weights(const ForwardContext& context, const Layer& layer, const Batch& batch) {
  const size_t heads = context.shape.index_heads, top_k = context.shape.index_top_k;
  const bool needed = std::any_of(batch.rows.begin(), batch.rows.end(), [&](const Batch::Row& row) {
    return visible_rows(row.position, model::csa_ratio) > top_k;
  });
  if (!needed) return;
  float* weights = context.scratch.index_weights.grow(batch.size() * heads);
  check(matmul(context.pool, context.scratch.matmul, layer.index_proj, context.scratch.x, weights, heads));
  const float factor = 1.0f / std::sqrt(static_cast<float>(model::index_head_dim * heads));
  for (size_t i = 0; i < batch.size() * heads; ++i) weights[i] *= factor;
}

// Rounded index queries of the block, from the low-rank queries that make_queries() prepared.
void make_index_queries(const ForwardContext& context, const Layer& layer, const Block& block) {
  Scratch& s = context.scratch;
  const size_t heads = context.shape.index_heads, width = heads * model::index_head_dim;
  float* query = s.index_query.grow(block.size() * width);
  check(matmul(context.pool, s.matmul, layer.index_q_b, s.q_low, query, width));
  context.pool.parallel_for(block.size() * heads, 16, [&](size_t begin, size_t end, unsigned) {
    for (size_t i = begin; i < end; ++i) {
      float* head = query + i * model::index_head_dim;
      rotate(head + model::index_head_dim - model::rope_dim,
             context.scratch.compressed_angles[block.begin + i / heads]);
      context.codec.round_index_query(head);
    }
  });
}

// Scores of every visible index row for the rows of the block that belong to one segment.
void score_segment(const ForwardContext& context, const Block& block, const Batch& batch,
                   const Segment& segment, const RowPages& keys, size_t stride) {
  constexpr size_t rows_per_item = 4 * index_block_rows, tokens_per_item = 8;
  Scratch& s = context.scratch;
  const size_t heads = context.shape.index_heads;
  const size_t begin = std::max(block.begin, segment.first_row);
  const size_t end = std::min(block.end, segment.first_row + segment.count);
  if (begin >= end) return;
  const size_t visible = visible_rows(batch.rows[end - 1].position, model::csa_ratio);
  const size_t row_items = (visible + rows_per_item - 1) / rows_per_item;
  const size_t token_items = (end - begin + tokens_per_item - 1) / tokens_per_item;
  for (WorkerScratch& w : s.worker) w.scores.grow(index_scratch_floats(heads));
  context.pool.parallel_for(row_items * token_items, 1, [&](size_t first, size_t last, unsigned worker) {
    for (size_t item = first; item < last; ++item) {
      const size_t row = item % row_items * rows_per_item;
      const size_t token = begin + item / row_items * tokens_per_item;
      const size_t in_block = token - block.begin;
      const IndexQueries queries{s.index_query.data() + in_block * heads * model::index_head_dim,
                                 heads * model::index_head_dim,
                                 s.index_weights.data() + token * heads,
                                 heads,
                                 heads,
                                 std::min(tokens_per_item, end - token)};
      score_index_rows(queries, keys, context.codec, row, std::min(visible, row + rows_per_item),
                       s.index_scores.data() + in_block * stride, stride, s.worker[worker].scores.data());
    }
  });
}

// Chooses the rows of those tokens of the block that see more than top k.
void select_block(const ForwardContext& context, const Layer& layer, size_t index, const Batch& batch,
                  Block& block, const LayerStateOf& layer_state) {
  Scratch& s = context.scratch;
  const size_t top_k = context.shape.index_top_k;
  size_t most = 0;
  for (size_t t = block.begin; t < block.end; ++t) {
    most = std::max(most, visible_rows(batch.rows[t].position, model::csa_ratio));
  }
  if (most <= top_k) return;
  make_index_queries(context, layer, block);
  const size_t stride = (most + index_block_rows - 1) / index_block_rows * index_block_rows;
  float* scores = s.index_scores.grow(block.size() * stride);
  uint32_t* selected = s.selected.grow(block.size() * top_k);
  for (const Segment& segment : batch.segments) {
    score_segment(context, block, batch, segment, layer_state(segment).index_rows, stride);
  }
  for (WorkerScratch& w : s.worker) w.order.grow(most);
  context.pool.parallel_for(block.size(), 1, [&](size_t begin, size_t end, unsigned worker) {
    for (size_t i = begin; i < end; ++i) {
      const size_t visible = visible_rows(batch.rows[block.begin + i].position, model::csa_ratio);
      if (visible <= top_k) continue;
      select_rows(scores + i * stride, visible, top_k, selected + i * top_k, s.worker[worker].order.data());
    }
  });
  block.selected = selected;
  if (context.observer == nullptr) return;
  for (size_t i = 0; i < block.size(); ++i) {
    const size_t visible = visible_rows(batch.rows[block.begin + i].position, model::csa_ratio);
    if (visible <= top_k) continue;
    context.observer->on_index_rows(index, block.begin + i, {selected + i * top_k, top_k},
                                    {scores + i * stride, visible});
  }
}

// The rows that one batch row attends to.
VisibleRows visible_of(const ForwardContext& context, const Layer& layer, const Batch& batch,
                       const Block& block, size_t row, const LayerStateOf& layer_state) {
  const Segment& segment = batch.segments[batch.rows[row].segment];
  const LayerState& state = layer_state(segment);
  VisibleRows rows;
  rows.window = &state.window;
  rows.chunk_rows = context.scratch.chunk_rows.data() + segment.first_row * context.codec.attention_bytes();
  rows.chunk_start = segment.start;
  rows.position = batch.rows[row].position;
  if (layer.ratio == 0) return rows;
  const size_t top_k = context.shape.index_top_k;
  rows.compressed = &state.compressed;
  rows.visible = visible_rows(rows.position, layer.ratio);
  if (layer.ratio == model::csa_ratio && rows.visible > top_k) {
    rows.visible = top_k;
    rows.selected = block.selected + (row - block.begin) * top_k;
  }
  return rows;
}

// Many rows: each worker takes whole rows.
void attend_by_rows(const ForwardContext& context, const Layer& layer, const Batch& batch, const Block& block,
                    const LayerStateOf& layer_state) {
  Scratch& s = context.scratch;
  const size_t heads = context.shape.heads;
  size_t most = 0;
  for (size_t t = block.begin; t < block.end; ++t) {
    const VisibleRows rows = visible_of(context, layer, batch, block, t, layer_state);
    most = std::max(most, raw_row_count(rows.position) + rows.visible);
  }
  for (WorkerScratch& w : s.worker) {
    w.rows.grow(most * model::head_dim);
    w.scores.grow(attention_score_floats(most));
  }
  context.pool.parallel_for(block.size(), 1, [&](size_t begin, size_t end, unsigned worker) {
    WorkerScratch& w = s.worker[worker];
    for (size_t i = begin; i < end; ++i) {
      const VisibleRows rows = visible_of(context, layer, batch, block, block.begin + i, layer_state);
      const size_t count = raw_row_count(rows.position) + rows.visible;
      gather_rows(rows, context.codec, 0, count, w.rows.data());
      attend(s.query.data() + i * heads * model::head_dim, heads, layer.sinks.data(), w.rows.data(), count,
             w.scores.data());
    }
  });
}

// Few rows: all workers share the heads of one row.
void attend_by_heads(const ForwardContext& context, const Layer& layer, const Batch& batch,
                     const Block& block, const LayerStateOf& layer_state) {
  constexpr size_t heads_per_item = 4, rows_per_item = 32;
  Scratch& s = context.scratch;
  const size_t heads = context.shape.heads;
  for (size_t i = 0; i < block.size(); ++i) {
    const VisibleRows rows = visible_of(context, layer, batch, block, block.begin + i, layer_state);
    const size_t count = raw_row_count(rows.position) + rows.visible;
    float* decoded = s.worker[0].rows.grow(count * model::head_dim);
    for (WorkerScratch& w : s.worker) w.scores.grow(attention_score_floats(count));
    context.pool.parallel_for(count, rows_per_item, [&](size_t begin, size_t end, unsigned) {
      gather_rows(rows, context.codec, begin, end, decoded + begin * model::head_dim);
    });
    float* query = s.query.data() + i * heads * model::head_dim;
    context.pool.parallel_for(heads, heads_per_item, [&](size_t begin, size_t end, unsigned worker) {
      attend(query + begin * model::head_dim, end - begin, layer.sinks.data() + begin, decoded, count,
             s.worker[worker].scores.data());
    });
  }
}

// Un-rotates the attended heads and projects them group by group, then to the model width.
void project_output(const ForwardContext& context, const Layer& layer, const Block& block) {
  Scratch& s = context.scratch;
  const model::ModelShape& shape = context.shape;
  const size_t heads = shape.heads, width = shape.q_width(), low_width = shape.low_width();
  float* attended = s.query.data();
  const RopeAngles* angles = angles_of(context, layer);
  context.pool.parallel_for(block.size() * heads, 64, [&](size_t begin, size_t end, unsigned) {
    for (size_t i = begin; i < end; ++i) {
      rotate_inverse(attended + i * model::head_dim + model::nope_dim, angles[block.begin + i / heads]);
    }
  });
  float* low = s.low_rows.grow(block.size() * low_width);
  s.attended.assign(attended, block.size(), width, width);
  check(s.attended.prepare(layer.output_a.type, context.pool));
  constexpr size_t tile_rows = 32;
  const size_t rank = shape.output_rank, tiles = (rank + tile_rows - 1) / tile_rows;
  context.pool.parallel_for(shape.output_groups * tiles, 1, [&](size_t begin, size_t end, unsigned worker) {
    for (size_t item = begin; item < end; ++item) {
      const size_t group = item / tiles, row = item % tiles * tile_rows,
                   rows = std::min(tile_rows, rank - row);
      if (!matmul_rows(layer.output_a, group * rank + row, group * rank + row + rows,
                       s.attended.view(layer.output_a.type, group * shape.group_width()), s.attended.mode(),
                       nullptr, block.size(), low + group * rank + row, low_width, s.matmul[worker])) {
        s.exhausted = true;
      }
    }
  });
  s.check_memory();
  s.low.assign(low, block.size(), low_width, low_width);
  check(matmul(context.pool, s.matmul, layer.output_b, s.low, s.sublayer.data() + block.begin * shape.width,
               shape.width));
}

}  // namespace

void make_kv_rows(const ForwardContext& context, const Layer& layer, const Batch& batch) {
  Scratch& s = context.scratch;
  float* kv = s.kv.grow(batch.size() * model::head_dim);
  std::byte* packed = s.chunk_rows.grow(batch.size() * context.codec.attention_bytes());
  check(matmul(context.pool, s.matmul, layer.kv, s.x, kv, model::head_dim));
  const RopeAngles* angles = angles_of(context, layer);
  context.pool.parallel_for(batch.size(), 8, [&](size_t begin, size_t end, unsigned) {
    for (size_t t = begin; t < end; ++t) {
      float* row = kv + t * model::head_dim;
      rms_norm(row, layer.kv_norm.data(), model::head_dim, row);
      rotate(row + model::nope_dim, angles[t]);
      context.codec.encode_attention(row, packed + t * context.codec.attention_bytes());
    }
  });
}

void store_kv_rows(const ForwardContext& context, const Batch& batch, const LayerStateOf& layer_state) {
  const size_t row_bytes = context.codec.attention_bytes();
  for (const Segment& segment : batch.segments) {
    RawWindow& window = layer_state(segment).window;
    const size_t skip = segment.count > RawWindow::slots ? segment.count - RawWindow::slots : 0;
    for (size_t i = skip; i < segment.count; ++i) {
      const std::byte* row = context.scratch.chunk_rows.data() + (segment.first_row + i) * row_bytes;
      std::copy(row, row + row_bytes, window.slot(segment.start + i));
    }
  }
}

void attention_sublayer(const ForwardContext& context, const Layer& layer, size_t index, const Batch& batch,
                        const LayerStateOf& layer_state) {
  Scratch& s = context.scratch;
  const size_t count = batch.size(), rank = context.shape.q_rank;
  float* q_low = s.q_low_rows.grow(count * rank);
  check(matmul(context.pool, s.matmul, layer.q_a, s.x, q_low, rank));
  context.pool.parallel_for(count, 8, [&](size_t begin, size_t end, unsigned) {
    for (size_t t = begin; t < end; ++t) {
      rms_norm(q_low + t * rank, layer.q_a_norm.data(), rank, q_low + t * rank);
    }
  });
  make_kv_rows(context, layer, batch);
  if (layer.ratio != 0) run_compressor(context, layer.compressor, batch, layer_state, false);
  if (layer.ratio == model::csa_ratio) {
    run_compressor(context, layer.index_compressor, batch, layer_state, true);
    make_index_weights(context, layer, batch);
  }
  s.sublayer.grow(count * context.shape.width);
  for (size_t begin = 0; begin < count; begin += attention_block_rows) {
    Block block{begin, std::min(count, begin + attention_block_rows), nullptr};
    make_queries(context, layer, block);
    if (layer.ratio == model::csa_ratio) select_block(context, layer, index, batch, block, layer_state);
    if (block.size() >= 2 * context.pool.size()) {
      attend_by_rows(context, layer, batch, block, layer_state);
    } else {
      attend_by_heads(context, layer, batch, block, layer_state);
    }
    project_output(context, layer, block);
  }
  store_kv_rows(context, batch, layer_state);
}

}  // namespace ds4::cpu
