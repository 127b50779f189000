#include "backend/cpu/forward.hpp"

#include <algorithm>
#include <new>

#include "backend/cpu/hyper_connection.hpp"
#include "backend/cpu/rms_norm.hpp"
#include "backend/cpu/vector_ops.hpp"
#include "format/number_formats.hpp"

namespace ds4::cpu {
namespace {

// Product of every row of x, or an exception: the callers of a pass turn it into an Error.
void multiply(const ForwardContext& context, const Matrix& w, Activations& x, float* out) {
  if (!matmul(context.pool, context.scratch.matmul, w, x, out, w.rows)) throw std::bad_alloc();
}

// Mix values of streams [rows][4][d]: fn . streams / rms(streams).
void mix_values(const ForwardContext& context, const HyperConnectionMixer& mixer, const float* streams,
                size_t rows, float* mix) {
  const size_t flat = model::streams * static_cast<size_t>(context.shape.width), width = mixer.fn.rows;
  Activations x(ActivationMode::f32);
  x.assign(streams, rows, flat, flat);
  multiply(context, mixer.fn, x, mix);
  context.pool.parallel_for(rows, 1, [&](size_t begin, size_t end, unsigned) {
    for (size_t t = begin; t < end; ++t) {
      const float factor = inverse_rms(streams + t * flat, flat);
      for (size_t k = 0; k < width; ++k) mix[t * width + k] *= factor;
    }
  });
}

// What may be seen and changed of a sublayer's output before it goes back to the streams.
void edit_output(const ForwardContext& context, Component component, size_t index, const Batch& batch) {
  const size_t d = context.shape.width;
  if (index >= context.shape.layers) return;  // the drafter's layer
  float* out = context.scratch.sublayer.data();
  if (context.capture != nullptr && context.capture->component == component) {
    const size_t rows = context.capture->rows;
    std::copy_n(out + (batch.size() - rows) * d, rows * d, context.capture->values.data() + index * rows * d);
  }
  if (context.directions.empty()) return;
  const float* direction = context.directions.data() + index * d;
  for (const Segment& segment : batch.segments) {
    const bool attention = component == Component::attention;
    const float scale = attention ? segment.steering.attention : segment.steering.feed_forward;
    if (scale == 0.0f) continue;
    for (size_t t = segment.first_row; t < segment.first_row + segment.count; ++t) {
      float* y = out + t * d;
      const float amount = scale * dot(direction, y, d);
      for (size_t i = 0; i < d; ++i) y[i] -= amount * direction[i];
    }
  }
}

}  // namespace

void set_positions(const ForwardContext& context, const Batch& batch) {
  RopeAngles* plain = context.scratch.plain_angles.grow(batch.size());
  RopeAngles* compressed = context.scratch.compressed_angles.grow(batch.size());
  context.pool.parallel_for(batch.size(), 16, [&](size_t begin, size_t end, unsigned) {
    for (size_t t = begin; t < end; ++t) {
      plain[t] = rope_angles(batch.rows[t].position, context.weights.plain_frequencies);
      compressed[t] = rope_angles(batch.rows[t].position, context.weights.compressed_frequencies);
    }
  });
}

void embed(const ForwardContext& context, const Batch& batch) {
  const size_t d = context.shape.width;
  const Matrix& table = context.weights.embedding;
  float* streams = context.scratch.streams.grow(batch.size() * model::streams * d);
  for (size_t t = 0; t < batch.size(); ++t) {
    float* row = streams + t * model::streams * d;
    format::decode_row(table.type, table.data + static_cast<size_t>(batch.tokens[t]) * table.row_bytes(), d,
                       row);
    for (size_t h = 1; h < model::streams; ++h) std::copy(row, row + d, row + h * d);
  }
}

void enter_sublayer(const ForwardContext& context, const HyperConnectionMixer& mixer, const Vector& norm,
                    size_t rows) {
  Scratch& s = context.scratch;
  const size_t d = context.shape.width;
  const float* streams = s.streams.data();
  float* mix = s.mix.grow(rows * model::mix_width);
  HyperConnection* hc = s.hc.grow(rows);
  float* normed = s.normed.grow(rows * d);
  mix_values(context, mixer, streams, rows, mix);
  context.pool.parallel_for(rows, 1, [&](size_t begin, size_t end, unsigned) {
    for (size_t t = begin; t < end; ++t) {
      hc[t] = split_mix(mix + t * model::mix_width, mixer.scale.data(), mixer.base.data());
      mix_streams(streams + t * model::streams * d, hc[t].pre.data(), d, normed + t * d);
      rms_norm(normed + t * d, norm.data(), d, normed + t * d);
    }
  });
  s.x.assign(normed, rows, d, d);
}

void leave_sublayer(const ForwardContext& context, size_t rows) {
  Scratch& s = context.scratch;
  const size_t d = context.shape.width;
  context.pool.parallel_for(rows, 1, [&](size_t begin, size_t end, unsigned) {
    for (size_t t = begin; t < end; ++t) {
      post_streams(s.streams.data() + t * model::streams * d, s.sublayer.data() + t * d, s.hc[t].post.data(),
                   s.hc[t].comb.data(), d);
    }
  });
}

void run_layer(const ForwardContext& context, const Layer& layer, size_t index, const Batch& batch,
               const LayerStateOf& layer_state) {
  enter_sublayer(context, layer.hc_attn, layer.attn_norm, batch.size());
  attention_sublayer(context, layer, index, batch, layer_state);
  edit_output(context, Component::attention, index, batch);
  leave_sublayer(context, batch.size());

  enter_sublayer(context, layer.hc_ffn, layer.ffn_norm, batch.size());
  moe_sublayer(context, layer, index, batch);
  edit_output(context, Component::feed_forward, index, batch);
  leave_sublayer(context, batch.size());

  if (context.observer != nullptr) {
    const size_t values = batch.size() * model::streams * context.shape.width;
    context.observer->on_streams(index, {context.scratch.streams.data(), values});
  }
}

void output_logits(const ForwardContext& context, const HyperConnectionMixer& head, const Vector& norm,
                   const float* streams, size_t rows, float* logits) {
  Scratch& s = context.scratch;
  const size_t d = context.shape.width;
  float* mix = s.mix.grow(rows * model::streams);
  float* merged = s.sublayer.grow(rows * d);
  mix_values(context, head, streams, rows, mix);
  for (size_t t = 0; t < rows; ++t) {
    const auto weights = split_head_mix(mix + t * model::streams, head.scale[0], head.base.data());
    mix_streams(streams + t * model::streams * d, weights.data(), d, merged + t * d);
    rms_norm(merged + t * d, norm.data(), d, merged + t * d);
  }
  s.x.assign(merged, rows, d, d);
  multiply(context, context.weights.output, s.x, logits);
}

}  // namespace ds4::cpu
