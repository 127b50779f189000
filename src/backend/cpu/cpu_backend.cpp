#include "backend/cpu/cpu_backend.hpp"

#include <mutex>
#include <new>
#include <utility>

#include "backend/checks.hpp"
#include "backend/cpu/drafter.hpp"
#include "backend/cpu/read_bandwidth.hpp"
#include "base/error.hpp"

namespace ds4::cpu {
namespace {

static_assert(retractable_tokens >= backend::max_decode_rows);

class CpuSequence final : public backend::Sequence {
 public:
  explicit CpuSequence(SequenceState initial) : state(std::move(initial)) {}
  size_t position() const override { return state.position; }
  size_t state_bytes() const override { return state.memory_bytes(); }
  void clear() override { state.position = 0; }  // a pass that starts at 0 starts from an empty state

  SequenceState state;
};

class CpuStateImage final : public backend::StateImage {
 public:
  explicit CpuStateImage(const SequenceState& source) : state(source) {}
  size_t position() const override { return state.position; }
  size_t size_bytes() const override { return state.memory_bytes(); }

  const SequenceState state;
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
    SequenceState& state = static_cast<CpuSequence&>(sequence).state;
    DS4_TRY(backend::check_prefill(tokens, logit_rows, logits.size(), shape_.vocabulary));
    DS4_TRY(backend::prepare_capture(control.capture, tokens.size(), shape_.layers, shape_.width));
    const std::lock_guard lock(mutex_);
    try {
      const SequenceState before = state;  // layers advance one after the other: undone as a whole
      Batch batch;
      batch.add(state, state.position, tokens, sequence.steering);
      if (!run(batch, control)) {
        state = before;
        return fail(ErrorCode::cancelled, "prefill was cancelled at token {}", before.position);
      }
      const size_t row = model::streams * static_cast<size_t>(shape_.width);
      if (logit_rows > 0) {
        output_logits(context(), weights_.hc_head, weights_.output_norm,
                      scratch_.streams.data() + (tokens.size() - logit_rows) * row, logit_rows,
                      logits.data());
      }
      finish(batch);
      return {};
    } catch (const std::bad_alloc&) {
      // A half-advanced state is worse than none: what was copied before the call may not fit a second time.
      state.position = 0;
      return out_of_memory("a prefill chunk");
    }
  }

  Result<void> decode(std::span<const backend::DecodeRow> rows, std::span<float> logits) const override {
    DS4_TRY(backend::check_decode(rows, logits.size(), shape_.vocabulary));
    const std::lock_guard lock(mutex_);
    try {
      Batch batch;
      for (const backend::DecodeRow& row : rows) {
        SequenceState& state = static_cast<CpuSequence*>(row.sequence)->state;
        batch.add(state, state.position, {&row.token, 1}, row.sequence->steering);
      }
      run(batch, {});
      output_logits(context(), weights_.hc_head, weights_.output_norm, scratch_.streams.data(), rows.size(),
                    logits.data());
      finish(batch);
      return {};
    } catch (const std::bad_alloc&) {
      for (const backend::DecodeRow& row : rows) static_cast<CpuSequence*>(row.sequence)->state.position = 0;
      return out_of_memory("a decode step");
    }
  }

  Result<void> retract(backend::Sequence& sequence, size_t count) const override {
    SequenceState& state = static_cast<CpuSequence&>(sequence).state;
    if (state.retract(count)) return {};
    return backend::cannot_retract(count, state.position);
  }

  Result<std::vector<backend::Draft>> draft(const backend::Sequence& sequence, Token next,
                                            size_t depth) const override {
    const SequenceState& state = static_cast<const CpuSequence&>(sequence).state;
    if (!weights_.drafter) return fail(ErrorCode::unsupported, "no drafter (MTP) is loaded");
    if (state.position == 0)
      return fail(ErrorCode::invalid_argument, "nothing to draft from: the sequence is empty");
    DS4_TRY(backend::check_tokens({&next, 1}, shape_.vocabulary));
    const std::lock_guard lock(mutex_);
    try {
      return make_drafts(context(), state, next, depth);
    } catch (const std::bad_alloc&) {
      return out_of_memory("a draft");
    }
  }

  Result<std::shared_ptr<const backend::StateImage>> snapshot(
      const backend::Sequence& sequence) const override {
    try {
      return std::shared_ptr<const backend::StateImage>(
          std::make_shared<CpuStateImage>(static_cast<const CpuSequence&>(sequence).state));
    } catch (const std::bad_alloc&) {
      return out_of_memory("a snapshot");
    }
  }

  Result<void> restore(backend::Sequence& sequence, const backend::StateImage& image) const override {
    try {
      static_cast<CpuSequence&>(sequence).state = static_cast<const CpuStateImage&>(image).state;
      return {};
    } catch (const std::bad_alloc&) {
      return out_of_memory("a restored state");
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

  static Error out_of_memory(const char* what) {
    return fail(ErrorCode::out_of_memory, "not enough memory for {}", what);
  }

  // All layers over the batch; false if cancelled between two of them.
  bool run(const Batch& batch, const backend::EvalControl& control) const {
    ForwardContext forward = context();
    forward.capture = control.capture;
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
