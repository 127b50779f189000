#include "backend/cpu/cpu_backend.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "backend/checks.hpp"
#include "backend/cpu/drafter.hpp"
#include "backend/cpu/portable_state.hpp"
#include "backend/cpu/read_bandwidth.hpp"
#include "base/error.hpp"
#include "base/out_of_memory.hpp"
#include "sampling/draw.hpp"

namespace ds4::cpu {
namespace {

static_assert(retractable_tokens >= backend::max_decode_rows);

/// Logits after a sequence's last token, shared with images of it.
struct KeptLogits {
  std::shared_ptr<const std::vector<float>> values;
  sampling::LogitSummary summary;

  size_t memory_bytes() const { return values == nullptr ? 0 : values->size() * sizeof(float); }
};

class CpuSequence final : public backend::Sequence {
 public:
  explicit CpuSequence(SequenceState initial) : state(std::move(initial)) {}
  size_t position() const override { return state.position; }
  size_t state_bytes() const override {
    size_t bytes = state.memory_bytes();
    for (const KeptLogits& row : logits) bytes += row.memory_bytes();
    return bytes;
  }
  using Sequence::logit_summary;
  const sampling::LogitSummary* logit_summary(size_t behind) const override {
    return position() > 0 && behind < logits.size() ? &logits[logits.size() - 1 - behind].summary : nullptr;
  }
  void clear() override {  // a pass that starts at 0 starts from an empty state
    state.clear();
    logits.clear();
  }

  SequenceState state;
  std::vector<KeptLogits> logits;  // of the newest tokens, the last one's last
};

class CpuStateImage final : public backend::StateImage {
 public:
  explicit CpuStateImage(const CpuSequence& source) : state(source.state) {
    if (!source.logits.empty()) logits = source.logits.back();
  }
  size_t position() const override { return state.position; }
  size_t size_bytes() const override { return state.memory_bytes() + logits.memory_bytes(); }
  size_t own_bytes() const override { return size_bytes() - state.page_bytes(); }

  const SequenceState state;
  KeptLogits logits;
};

class CpuExpertInputs final : public backend::ExpertInputs {
 public:
  explicit CpuExpertInputs(const model::ModelShape& shape) {
    const size_t experts = size_t{shape.layers} * shape.experts;
    sums.layers = shape.layers;
    sums.experts = shape.experts;
    sums.width = shape.width;
    sums.expert_width = shape.expert_width;
    sums.gate_up.resize(experts * shape.width);
    sums.down.resize(experts * shape.expert_width);
    sums.tokens.resize(experts);
  }

  ExpertInputSums sums;
};

class CpuBackend final : public backend::Backend {
 public:
  CpuBackend(model::ModelShape shape, const model::ModelWeights& weights, const model::MtpWeights* mtp,
             const CpuOptions& options)
      : shape_(std::move(shape)),
        weights_(make_cpu_weights(weights, mtp)),
        codec_(options.round_trips),
        observer_(options.observer),
        directions_(options.directions),
        pool_(options.threads),
        scratch_(pool_.size(), options.exact_activations ? ActivationMode::f32 : ActivationMode::quantized) {
    info_.name =
        fmt::format("cpu ({} thread{}, {})", pool_.size(), pool_.size() == 1 ? "" : "s", cpu_target_name());
    info_.drafter = weights_.drafter.has_value();
    for (uint32_t ratio : shape_.ratios) {
      if (ratio == 0) continue;
      info_.state_bytes_per_token += static_cast<double>(codec_.attention_bytes()) / ratio;
      if (ratio == model::csa_ratio)
        info_.state_bytes_per_token += static_cast<double>(codec_.index_bytes()) / ratio;
    }
  }

  const backend::BackendInfo& info() const override { return info_; }

  Result<std::unique_ptr<backend::Sequence>> create_sequence() const override {
    try {
      return std::unique_ptr<backend::Sequence>(new CpuSequence(empty_state()));
    } catch (const std::bad_alloc&) {
      return out_of_memory("a new sequence");
    }
  }

  Result<void> prefill(backend::Sequence& sequence, std::span<const Token> tokens, size_t logit_rows,
                       std::span<float> logits, const backend::EvalControl& control) const override {
    DS4_TRY(backend::check_prefill(sequence, tokens, logit_rows, logits.size(), shape_));
    DS4_TRY(backend::prepare_capture(control.capture, tokens.size(), shape_.layers, shape_.width));
    return append(static_cast<CpuSequence&>(sequence), tokens, {logit_rows, 1, logits}, control);
  }

  Result<void> verify(backend::Sequence& sequence, std::span<const Token> tokens) const override {
    DS4_TRY(backend::check_verify(sequence, tokens, shape_));
    return append(static_cast<CpuSequence&>(sequence), tokens, {0, tokens.size(), {}}, {});
  }

  Result<void> decode(std::span<const backend::DecodeRow> rows, std::span<float> logits) const override {
    DS4_TRY(backend::check_decode(rows, logits.size(), shape_));
    const std::lock_guard lock(mutex_);
    try {
      Batch batch;
      for (const backend::DecodeRow& row : rows) {
        SequenceState& state = static_cast<CpuSequence*>(row.sequence)->state;
        batch.add(state, state.position, {&row.token, 1}, row.sequence->steering);
      }
      run(batch, {});
      const auto values = compute_logits(scratch_.streams.data(), rows.size());
      if (!logits.empty()) std::copy(values.begin(), values.end(), logits.begin());
      for (size_t r = 0; r < rows.size(); ++r) {
        static_cast<CpuSequence*>(rows[r].sequence)->logits =
            keep(std::span(values).subspan(r * shape_.vocabulary, shape_.vocabulary));
      }
      finish(batch);
      return {};
    } catch (const std::bad_alloc&) {
      for (const backend::DecodeRow& row : rows) row.sequence->clear();
      return out_of_memory("a decode step");
    }
  }

  Result<void> retract(backend::Sequence& sequence, size_t count) const override {
    auto& target = static_cast<CpuSequence&>(sequence);
    if (!target.state.retract(count)) return backend::cannot_retract(count, target.state.position);
    target.logits.resize(target.logits.size() - std::min(count, target.logits.size()));
    return {};
  }

  Result<void> logits(const backend::Sequence& sequence, std::span<float> out) const override {
    DS4_TRY(backend::check_logits(sequence, out.size(), shape_.vocabulary));
    const auto& values = *static_cast<const CpuSequence&>(sequence).logits.back().values;
    std::copy(values.begin(), values.end(), out.begin());
    return {};
  }

  Result<Token> sample(const backend::Sequence& sequence, const SamplingParams& params, float uniform,
                       size_t behind) const override {
    DS4_TRY(backend::check_choice(sequence, behind));
    const auto& kept = static_cast<const CpuSequence&>(sequence).logits;
    const KeptLogits& logits = kept[kept.size() - 1 - behind];
    if (sampling::is_greedy(params)) return logits.summary.best;
    try {
      return sampling::draw(*logits.values, params, uniform);
    } catch (const std::bad_alloc&) {
      return out_of_memory("a choice");
    }
  }

  Result<std::vector<backend::Draft>> draft(const backend::Sequence& sequence,
                                            const backend::DraftRequest& request) const override {
    const SequenceState& state = static_cast<const CpuSequence&>(sequence).state;
    DS4_TRY(backend::check_draft(info_, sequence, request, shape_.vocabulary));
    const std::lock_guard lock(mutex_);
    try {
      return make_drafts(context(), state, request);
    } catch (const std::bad_alloc&) {
      return out_of_memory("a draft");
    }
  }

  Result<std::shared_ptr<const backend::StateImage>> snapshot(
      const backend::Sequence& sequence) const override {
    try {
      return std::shared_ptr<const backend::StateImage>(
          std::make_shared<CpuStateImage>(static_cast<const CpuSequence&>(sequence)));
    } catch (const std::bad_alloc&) {
      return out_of_memory("a snapshot");
    }
  }

  Result<void> restore(backend::Sequence& sequence, const backend::StateImage& image) const override {
    try {
      auto& target = static_cast<CpuSequence&>(sequence);
      const auto& source = static_cast<const CpuStateImage&>(image);
      SequenceState state = source.state;
      target.logits.assign(1, source.logits);
      target.state = std::move(state);
      return {};
    } catch (const std::bad_alloc&) {
      return out_of_memory("a restored state");
    }
  }

  Result<std::unique_ptr<backend::ExpertInputs>> create_expert_inputs() const override {
    try {
      return std::unique_ptr<backend::ExpertInputs>(new CpuExpertInputs(shape_));
    } catch (const std::bad_alloc&) {
      return out_of_memory("the inputs of experts");
    }
  }

  Result<ExpertInputSums> read(const backend::ExpertInputs& inputs) const override {
    const std::lock_guard lock(mutex_);
    try {
      return static_cast<const CpuExpertInputs&>(inputs).sums;
    } catch (const std::bad_alloc&) {
      return out_of_memory("a copy of the inputs of experts");
    }
  }

  Result<void> export_state(const backend::StateImage& image, const StateParts& parts,
                            std::span<std::byte> out) const override {
    DS4_TRY(check_packed());
    DS4_TRY(backend::check_export(image, parts, out.size(), shape_));
    const auto& source = static_cast<const CpuStateImage&>(image);
    if (parts.is_frontier() && source.logits.values == nullptr) return backend::no_logits(parts.position);
    export_parts(source.state, parts, out.data());
    if (parts.is_frontier()) {
      std::memcpy(out.data() + parts.logits.offset, source.logits.values->data(), parts.logits.bytes());
    }
    return {};
  }

  Result<void> import_state(backend::Sequence& sequence, const StateParts& parts,
                            std::span<const std::byte> bytes) const override {
    DS4_TRY(check_packed());
    DS4_TRY(backend::check_import(sequence, parts, bytes.size(), shape_));
    auto& target = static_cast<CpuSequence&>(sequence);
    if (!follows(target.state, parts)) return backend::out_of_order(parts.position);
    try {
      std::vector<KeptLogits> kept;
      if (parts.is_frontier()) {
        std::vector<float> row(shape_.vocabulary);
        std::memcpy(row.data(), bytes.data() + parts.logits.offset, parts.logits.bytes());
        kept = keep(row);
      }
      import_parts(target.state, parts, bytes.data());
      if (parts.is_frontier()) target.logits = std::move(kept);
      return {};
    } catch (const std::bad_alloc&) {
      return out_of_memory("an imported state");
    }
  }

  Result<double> measure_read_bandwidth() const override {
    const std::lock_guard lock(mutex_);
    try {
      return cpu::measure_read_bandwidth(pool_, read_buffer_bytes(pool_.size()));
    } catch (const std::bad_alloc&) {
      return out_of_memory("the buffer of a bandwidth measurement");
    }
  }

 private:
  SequenceState empty_state() const { return SequenceState(shape_, codec_, weights_.drafter.has_value()); }

  ForwardContext context() const {
    return {shape_, weights_, codec_, pool_, scratch_, observer_, directions_};
  }

  Result<void> check_packed() const {
    if (codec_.round_trips()) return {};
    return fail(ErrorCode::unsupported, "rows that are not packed have no portable form");
  }

  // Of the last tokens of a call: how many rows of logits are copied to `out`, how many stay with the
  // sequence.
  struct WantedLogits {
    size_t copied = 0, kept = 1;
    std::span<float> out;
  };

  Result<void> append(CpuSequence& target, std::span<const Token> tokens, const WantedLogits& wanted,
                      const backend::EvalControl& control) const {
    SequenceState& state = target.state;
    const std::lock_guard lock(mutex_);
    std::optional<SequenceState> before;  // layers advance one after the other: undone as a whole
    try {
      before.emplace(state);
      Batch batch;
      batch.add(state, state.position, tokens, target.steering);
      if (!run(batch, control)) {
        state = std::move(*before);
        return fail(ErrorCode::cancelled, "prefill was cancelled at token {}", state.position);
      }
      const size_t row = model::streams * static_cast<size_t>(shape_.width);
      const size_t computed = std::max(wanted.copied, wanted.kept);
      const auto values =
          compute_logits(scratch_.streams.data() + (tokens.size() - computed) * row, computed);
      std::copy_n(values.begin(), wanted.copied * shape_.vocabulary, wanted.out.begin());
      auto kept = keep(std::span(values).last(wanted.kept * shape_.vocabulary));
      finish(batch);
      target.logits = std::move(kept);
      return {};
    } catch (const std::bad_alloc&) {
      if (before) state = std::move(*before);
      return out_of_memory("a prefill chunk");
    }
  }

  // All layers over the batch; false if cancelled between two of them.
  bool run(const Batch& batch, const backend::EvalControl& control) const {
    ForwardContext forward = context();
    forward.capture = control.capture;
    if (control.expert_inputs != nullptr)
      forward.expert_inputs = &static_cast<CpuExpertInputs*>(control.expert_inputs)->sums;
    for (const Segment& segment : batch.segments) {
      if (segment.start == 0) *segment.state = empty_state();
    }
    set_positions(forward, batch);
    embed(forward, batch);
    for (size_t l = 0; l < weights_.layers.size(); ++l) {
      if (control.cancelled && control.cancelled()) return false;
      run_layer(forward, weights_.layers[l], l, batch,
                [l](const Segment& segment) -> LayerState& { return segment.state->layers[l]; });
      if (control.on_progress)
        control.on_progress(static_cast<double>(l + 1) / static_cast<double>(shape_.layers));
    }
    return true;
  }

  // [rows][V] from the streams of as many rows.
  std::vector<float> compute_logits(const float* streams, size_t rows) const {
    std::vector<float> values(rows * shape_.vocabulary);
    output_logits(context(), weights_.hc_head, weights_.output_norm, streams, rows, values.data());
    return values;
  }

  // Of rows [n][V].
  std::vector<KeptLogits> keep(std::span<const float> rows) const {
    std::vector<KeptLogits> kept;
    for (; !rows.empty(); rows = rows.subspan(shape_.vocabulary)) {
      const auto row = rows.first(shape_.vocabulary);
      kept.push_back(
          {std::make_shared<const std::vector<float>>(row.begin(), row.end()), sampling::summarize(row)});
    }
    return kept;
  }

  void finish(const Batch& batch) const {
    if (weights_.drafter) update_drafter(context(), batch);
    for (const Segment& segment : batch.segments) segment.state->advance(segment.start + segment.count);
  }

  model::ModelShape shape_;
  CpuWeights weights_;
  RowCodec codec_;
  ForwardObserver* observer_;
  std::vector<float> directions_;
  backend::BackendInfo info_;
  mutable std::mutex mutex_;  // one pass at a time: threads and scratch belong to the pass
  mutable ThreadPool pool_;
  mutable Scratch scratch_;
};

}  // namespace

std::unique_ptr<backend::Backend> make_cpu_backend(const model::ModelShape& shape,
                                                   const model::ModelWeights& weights,
                                                   const model::MtpWeights* mtp, const CpuOptions& options) {
  return std::make_unique<CpuBackend>(shape, weights, mtp, options);
}

}  // namespace ds4::cpu
