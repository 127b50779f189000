#include "backend/cpu/drafter.hpp"

#include <algorithm>
#include <limits>
#include <new>

#include "backend/cpu/rms_norm.hpp"
#include "backend/cpu/vector_ops.hpp"
#include "base/error.hpp"
#include "format/number_formats.hpp"
#include "sampling/draw.hpp"

namespace ds4::cpu {
namespace {

// Z[h] = e_proj . norm(E[token]) + h_proj . norm(S[h]) into scratch.streams, for rows of (streams S, token).
void enter_drafter(const ForwardContext& context, const Batch& batch, const std::vector<float>& streams) {
  const Drafter& drafter = *context.weights.drafter;
  const size_t d = context.shape.width, count = batch.size();
  Scratch& s = context.scratch;
  const Matrix& table = context.weights.embedding;
  std::vector<float> embedding(count * d), projected(count * d), normed(streams.size());
  for (size_t t = 0; t < count; ++t) {
    float* row = embedding.data() + t * d;
    format::decode_row(table.type, table.data + static_cast<size_t>(batch.tokens[t]) * table.row_bytes(), d,
                       row);
    rms_norm(row, drafter.embedding_norm.data(), d, row);
  }
  for (size_t i = 0; i < count * model::streams; ++i) {
    rms_norm(streams.data() + i * d, drafter.hidden_norm.data(), d, normed.data() + i * d);
  }
  float* out = s.streams.grow(count * model::streams * d);
  Activations x(s.x.mode());
  x.assign(embedding.data(), count, d, d);
  bool ok = matmul(context.pool, s.matmul, drafter.embedding_proj, x, projected.data(), d);
  x.assign(normed.data(), count * model::streams, d, d);
  ok = ok && matmul(context.pool, s.matmul, drafter.hidden_proj, x, out, d);
  if (!ok) throw std::bad_alloc();
  for (size_t i = 0; i < count * model::streams; ++i) {
    add(projected.data() + i / model::streams * d, d, out + i * d);
  }
}

// KV rows of the drafter for these pairs; nothing else of a row is needed before drafting.
void seed_rows(const ForwardContext& context, const Batch& batch, const std::vector<float>& streams) {
  const Layer& layer = context.weights.drafter->layer;
  set_positions(context, batch);
  enter_drafter(context, batch, streams);
  enter_sublayer(context, layer.hc_attn, layer.attn_norm, batch.size());
  make_kv_rows(context, layer, batch);
  store_kv_rows(context, batch,
                [](const Segment& segment) -> LayerState& { return segment.state->drafter->layer; });
}

// By how much the best logit exceeds the second largest.
float margin(std::span<const float> logits, const sampling::LogitSummary& summary) {
  float second = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (static_cast<Token>(i) != summary.best) second = std::max(second, logits[i]);
  }
  return summary.maximum - second;
}

}  // namespace

void update_drafter(const ForwardContext& context, const Batch& batch) {
  const size_t row = model::streams * static_cast<size_t>(context.shape.width);
  Batch pairs;
  std::vector<float> streams;
  const float* final_streams = context.scratch.streams.data();
  for (const Segment& segment : batch.segments) {
    const Token* tokens = batch.tokens.data() + segment.first_row;
    const float* own = final_streams + segment.first_row * row;
    // Pairs end with (streams of the last but one token, last token); the first uses the streams of the token
    // before the segment. Only the newest 128 can ever be seen.
    const uint64_t first = segment.start > 0 ? 0 : 1;
    const uint64_t begin = segment.count > model::window ? segment.count - model::window : first;
    if (begin < segment.count) {
      pairs.add(*segment.state, segment.start + begin - 1, {tokens + begin, tokens + segment.count});
      for (uint64_t i = begin; i < segment.count; ++i) {
        const float* before =
            i == 0 ? segment.state->drafter->streams(segment.start - 1) : own + (i - 1) * row;
        streams.insert(streams.end(), before, before + row);
      }
    }
    // The newest, and those that may become so when tokens are taken back. (Seeding overwrites the scratch.)
    const size_t kept = std::min(segment.count, retractable_tokens + 1);
    for (size_t i = segment.count - kept; i < segment.count; ++i) {
      segment.state->drafter->keep_streams(segment.start + i, {own + i * row, row});
    }
  }
  if (pairs.size() > 0) seed_rows(context, pairs, streams);
}

Result<std::vector<backend::Draft>> make_drafts(const ForwardContext& context, const SequenceState& state,
                                                const backend::DraftRequest& request) {
  const Drafter& drafter = *context.weights.drafter;
  const size_t row = model::streams * static_cast<size_t>(context.shape.width),
               vocabulary = context.shape.vocabulary;
  SequenceState scratch_state = state;
  const float* newest = state.drafter->streams(state.position - 1);
  std::vector<float> streams(newest, newest + row);
  const auto layer_state = [&](const Segment&) -> LayerState& { return scratch_state.drafter->layer; };
  std::vector<backend::Draft> drafts;
  Token token = request.next;
  for (size_t i = 0; i < request.depth; ++i) {
    Batch batch;
    batch.add(scratch_state, state.position - 1 + i, {&token, 1});
    set_positions(context, batch);
    enter_drafter(context, batch, streams);
    run_layer(context, drafter.layer, context.weights.layers.size(), batch, layer_state);
    streams.assign(context.scratch.streams.data(), context.scratch.streams.data() + row);
    backend::Draft draft;
    draft.logits.resize(vocabulary);
    output_logits(context, drafter.hc_head, drafter.norm, streams.data(), 1, draft.logits.data());
    const sampling::LogitSummary summary = sampling::summarize(draft.logits);
    if (summary.has_nan || summary.best < 0) {
      return fail(ErrorCode::not_finite, "the drafter (MTP) computed {} instead of logits",
                  summary.has_nan ? "NaN" : "no finite value");
    }
    token = draft.token = summary.best;
    draft.margin = margin(draft.logits, summary);
    if (i > 0 && draft.margin < request.min_margin) break;
    if (!request.logits) draft.logits.clear();
    drafts.push_back(std::move(draft));
  }
  return drafts;
}

}  // namespace ds4::cpu
