// Mixture of experts: tokens are grouped by expert, so that an expert's weights are decoded once per batch
// (docs/model.md §8).
#include <algorithm>
#include <new>
#include <numeric>

#include "backend/cpu/forward.hpp"
#include "backend/cpu/router.hpp"
#include "backend/cpu/vector_ops.hpp"

namespace ds4::cpu {
namespace {

// Rows of an expert matrix that one work item computes.
constexpr size_t tile_rows = 64;

size_t tiles(size_t rows) {
  return (rows + tile_rows - 1) / tile_rows;
}

void route_tokens(const ForwardContext& context, const Layer& layer, size_t index, const Batch& batch) {
  Scratch& s = context.scratch;
  const size_t experts = context.shape.experts, used = context.shape.experts_used, count = batch.size();
  float* logits = s.router.grow(count * experts);
  uint32_t* selected = s.experts.grow(count * used);
  float* weights = s.expert_weights.grow(count * used);
  if (!matmul(context.pool, s.matmul, layer.router, s.x, logits, experts)) throw std::bad_alloc();
  const RouterSettings settings{experts, used, context.shape.routed_scale,
                                layer.router_bias.empty() ? nullptr : layer.router_bias.data(),
                                layer.router_table.empty() ? nullptr : layer.router_table.data()};
  context.pool.parallel_for(count, 8, [&](size_t begin, size_t end, unsigned) {
    for (size_t t = begin; t < end; ++t) {
      route(logits + t * experts, batch.tokens[t], settings, selected + t * used, weights + t * used);
    }
  });
  if (context.observer == nullptr) return;
  for (size_t t = 0; t < count; ++t) context.observer->on_experts(index, t, {selected + t * used, used});
}

// Slots are the (token, expert) pairs sorted by expert, then token.
void group_by_expert(const ForwardContext& context, size_t count) {
  Scratch& s = context.scratch;
  const size_t experts = context.shape.experts, used = context.shape.experts_used, slots = count * used;
  uint32_t* begin = s.expert_begin.grow(experts + 1);
  uint32_t* token = s.slot_token.grow(slots);
  float* weight = s.slot_weight.grow(slots);
  std::fill(begin, begin + experts + 1, 0u);
  for (size_t i = 0; i < slots; ++i) ++begin[s.experts[i] + 1];
  std::partial_sum(begin, begin + experts + 1, begin);
  // Filling moves each start to the next expert's; moved back afterwards.
  for (size_t i = 0; i < slots; ++i) {
    const uint32_t slot = begin[s.experts[i]]++;
    token[slot] = static_cast<uint32_t>(i / used);
    weight[slot] = s.expert_weights[i];
  }
  for (size_t e = experts; e > 0; --e) begin[e] = begin[e - 1];
  begin[0] = 0;
}

// Middle activations of the experts [first, last): gate, up, clamped SwiGLU, route weight.
void expert_mid(const ForwardContext& context, const Layer& layer, size_t first, size_t last) {
  Scratch& s = context.scratch;
  const size_t width = context.shape.expert_width, row_tiles = tiles(width);
  const size_t first_slot = s.expert_begin[first];
  const ActivationMode mode = s.x.mode();
  const Activations::View gate_x = s.x.view(layer.gate_experts.type), up_x = s.x.view(layer.up_experts.type);
  float* mid = s.mid_rows.data();
  context.pool.parallel_for((last - first) * row_tiles, 1, [&](size_t begin, size_t end, unsigned worker) {
    WorkerScratch& w = s.worker[worker];
    for (size_t item = begin; item < end; ++item) {
      const size_t e = first + item / row_tiles;
      const size_t row = item % row_tiles * tile_rows, rows = std::min(tile_rows, width - row);
      const size_t slot = s.expert_begin[e], n = s.expert_begin[e + 1] - slot;
      if (n == 0) continue;
      const uint32_t* token = s.slot_token.data() + slot;
      if (!matmul_rows(layer.gate_experts.slice(e * width, width), row, row + rows, gate_x, mode, token, n,
                       w.gate.data(), tile_rows, s.matmul[worker]) ||
          !matmul_rows(layer.up_experts.slice(e * width, width), row, row + rows, up_x, mode, token, n,
                       w.up.data(), tile_rows, s.matmul[worker])) {
        s.exhausted = true;
        return;
      }
      for (size_t i = 0; i < n; ++i) {
        swiglu(w.gate.data() + i * tile_rows, w.up.data() + i * tile_rows, model::swiglu_clamp,
               s.slot_weight[slot + i], rows, mid + (slot - first_slot + i) * width + row);
      }
    }
  });
  s.check_memory();
}

// Adds what the experts [first, last) were multiplied with to the sums, token after token.
void add_inputs(const ForwardContext& context, size_t index, size_t first, size_t last) {
  if (context.expert_inputs == nullptr || index >= context.shape.layers) return;  // the drafter's layer
  const Scratch& s = context.scratch;
  ExpertInputSums& sums = *context.expert_inputs;
  const size_t d = context.shape.width, width = context.shape.expert_width;
  const size_t first_slot = s.expert_begin[first];
  context.pool.parallel_for(last - first, 1, [&](size_t begin, size_t end, unsigned) {
    for (size_t e = first + begin; e < first + end; ++e) {
      const size_t expert = index * context.shape.experts + e;
      double* gate_up = sums.gate_up.data() + expert * d;
      double* down = sums.down.data() + expert * width;
      for (size_t slot = s.expert_begin[e]; slot < s.expert_begin[e + 1]; ++slot) {
        const float* x = s.normed.data() + s.slot_token[slot] * d;
        const float* mid = s.mid_rows.data() + (slot - first_slot) * width;
        for (size_t i = 0; i < d; ++i) gate_up[i] += double{x[i]} * x[i];
        for (size_t i = 0; i < width; ++i) down[i] += double{mid[i]} * mid[i];
      }
      sums.tokens[expert] += s.expert_begin[e + 1] - s.expert_begin[e];
    }
  });
}

// Adds the experts' outputs to the sublayer's, in ascending order of experts for every token.
void expert_down(const ForwardContext& context, const Layer& layer, size_t first, size_t last) {
  Scratch& s = context.scratch;
  const size_t d = context.shape.width;
  const size_t first_slot = s.expert_begin[first];
  const Activations::View mid = s.mid.view(layer.down_experts.type);
  context.pool.parallel_for(tiles(d), 1, [&](size_t begin, size_t end, unsigned worker) {
    WorkerScratch& w = s.worker[worker];
    for (size_t tile = begin; tile < end; ++tile) {
      const size_t row = tile * tile_rows, rows = std::min(tile_rows, d - row);
      for (size_t e = first; e < last; ++e) {
        const size_t slot = s.expert_begin[e], n = s.expert_begin[e + 1] - slot;
        if (n == 0) continue;
        if (!matmul_rows(layer.down_experts.slice(e * d, d), row, row + rows, mid, s.mid.mode(),
                         s.slot_row.data() + (slot - first_slot), n, w.gate.data(), tile_rows,
                         s.matmul[worker])) {
          s.exhausted = true;
          return;
        }
        for (size_t i = 0; i < n; ++i) {
          add(w.gate.data() + i * tile_rows, rows, s.sublayer.data() + s.slot_token[slot + i] * d + row);
        }
      }
    }
  });
  s.check_memory();
}

void routed_experts(const ForwardContext& context, const Layer& layer, size_t index, size_t count) {
  Scratch& s = context.scratch;
  const size_t experts = context.shape.experts, width = context.shape.expert_width;
  if (!s.x.prepare(layer.gate_experts.type, context.pool) ||
      !s.x.prepare(layer.up_experts.type, context.pool)) {
    throw std::bad_alloc();
  }
  for (WorkerScratch& w : s.worker) {
    w.gate.grow(count * tile_rows);
    w.up.grow(count * tile_rows);
  }
  for (size_t first = 0, last; first < experts; first = last) {
    const size_t first_slot = s.expert_begin[first];
    last = first + 1;
    while (last < experts && s.expert_begin[last + 1] - first_slot <= expert_group_slots) ++last;
    const size_t slots = s.expert_begin[last] - first_slot;
    if (slots == 0) continue;
    s.mid_rows.grow(slots * width);
    uint32_t* row = s.slot_row.grow(slots);
    std::iota(row, row + slots, 0u);
    expert_mid(context, layer, first, last);
    add_inputs(context, index, first, last);
    s.mid.assign(s.mid_rows.data(), slots, width, width);
    if (!s.mid.prepare(layer.down_experts.type, context.pool)) throw std::bad_alloc();
    expert_down(context, layer, first, last);
  }
}

void shared_expert(const ForwardContext& context, const Layer& layer, size_t count) {
  Scratch& s = context.scratch;
  const size_t d = context.shape.width, width = layer.gate_shared.rows;
  float* gate = s.gate_rows.grow(count * width);
  float* up = s.up_rows.grow(count * width);
  float* down = s.down_rows.grow(count * d);
  bool ok = matmul(context.pool, s.matmul, layer.gate_shared, s.x, gate, width) &&
            matmul(context.pool, s.matmul, layer.up_shared, s.x, up, width);
  context.pool.parallel_for(count, 1, [&](size_t begin, size_t end, unsigned) {
    for (size_t t = begin; t < end; ++t) {
      swiglu(gate + t * width, up + t * width, model::swiglu_clamp, 1.0f, width, gate + t * width);
    }
  });
  s.mid.assign(gate, count, width, width);
  ok = ok && matmul(context.pool, s.matmul, layer.down_shared, s.mid, down, d);
  if (!ok) throw std::bad_alloc();
  context.pool.parallel_for(count, 1, [&](size_t begin, size_t end, unsigned) {
    for (size_t t = begin; t < end; ++t) add(down + t * d, d, s.sublayer.data() + t * d);
  });
}

}  // namespace

void moe_sublayer(const ForwardContext& context, const Layer& layer, size_t index, const Batch& batch) {
  const size_t count = batch.size();
  route_tokens(context, layer, index, batch);
  group_by_expert(context, count);
  float* out = context.scratch.sublayer.grow(count * context.shape.width);
  std::fill(out, out + count * context.shape.width, 0.0f);
  routed_experts(context, layer, index, count);
  shared_expert(context, layer, count);
}

}  // namespace ds4::cpu
