#include "backend/cuda/cuda_backend.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/checks.hpp"
#include "backend/cuda/device/read_bandwidth.hpp"
#include "backend/cuda/device/stream.hpp"
#include "backend/cuda/device_plan.hpp"
#include "backend/cuda/drafter/drafter.hpp"
#include "backend/cuda/pass.hpp"
#include "backend/cuda/prefill/prefill.hpp"
#include "backend/cuda/sampling/last_logits.hpp"
#include "backend/cuda/state/cuda_sequence.hpp"
#include "backend/cuda/state/portable_state.hpp"
#include "base/error.hpp"
#include "base/out_of_memory.hpp"
#include "sampling/draw.hpp"

namespace ds4::cuda {
namespace {

// Inside a catch (...) block: what the device or the host refused.
Error caught_error() {
  try {
    throw;
  } catch (const CudaFailure& failure) {
    return failure.error;
  } catch (const std::bad_alloc&) {
    return out_of_memory("a call of the CUDA backend");
  }
}

class CudaBackend final : public backend::Backend {
 public:
  CudaBackend(const model::ModelShape& shape, const model::ModelWeights& weights,
              const model::MtpWeights* mtp, const CudaOptions& options, const cudaDeviceProp& device,
              uint32_t chunk_tokens)
      : shape_(shape),
        layout_(shape_, mtp != nullptr),
        weights_(weights, mtp, stream_.get(), options.on_load_progress),
        pass_(shape_, weights_, stream_.get()),
        prefill_(shape_, weights_, stream_.get(), chunk_tokens),
        last_logits_(shape_.vocabulary, stream_.get()),
        copier_(shape_, layout_) {
    if (!options.directions.empty()) {
      directions_ = DeviceBuffer<float>(options.directions.size(), "steering directions");
      check(cudaMemcpyAsync(directions_.data(), options.directions.data(), directions_.bytes(),
                            cudaMemcpyHostToDevice, stream_.get()),
            "steering directions");
      check(cudaStreamSynchronize(stream_.get()), "steering directions");
      prefill_.set_directions(directions_.data());
      pass_.set_directions(directions_.data());
    }
    if (mtp != nullptr) drafter_.emplace(shape_, weights_, stream_.get());
    info_.drafter = mtp != nullptr;
    info_.name = device_name(device);
    info_.state_bytes_per_token = state_bytes_per_token(shape_);
  }

  const backend::BackendInfo& info() const override { return info_; }

  Result<std::unique_ptr<backend::Sequence>> create_sequence() const override {
    const std::lock_guard lock(mutex_);
    try {
      return std::unique_ptr<backend::Sequence>(new CudaSequence(shape_, layout_, pools_, stream_.get()));
    } catch (...) {
      return caught_error();
    }
  }

  Result<void> prefill(backend::Sequence& sequence, std::span<const Token> tokens, size_t logit_rows,
                       std::span<float> logits, const backend::EvalControl& control) const override {
    DS4_TRY(backend::check_prefill(sequence, tokens, logit_rows, logits.size(), shape_));
    DS4_TRY(backend::prepare_capture(control.capture, tokens.size(), shape_.layers, shape_.width));
    auto& state = static_cast<CudaSequence&>(sequence);
    const std::lock_guard lock(mutex_);
    Before before;
    try {
      if (control.capture != nullptr && tokens.size() > prefill_.reserve()) {
        return fail(ErrorCode::unsupported, "activations of {} tokens at once do not fit; those of {} do",
                    tokens.size(), prefill_.reserve());
      }
      if (state.position() == 0) state.initialise(stream_.get());
      before = keep(state);
      last_logits_.reserve(1);
      if (!append(state, tokens, logit_rows, logits, control)) {
        go_back(state, std::move(before));
        return fail(ErrorCode::cancelled, "prefill was cancelled at token {}", state.position());
      }
      check(cudaStreamSynchronize(stream_.get()), "prefill");
      return {};
    } catch (...) {
      Error error = caught_error();
      if (error.code != ErrorCode::out_of_memory || !try_to_go_back(state, std::move(before))) {
        state.clear();
      }
      return error;
    }
  }

  Result<void> decode(std::span<const backend::DecodeRow> rows, std::span<float> logits) const override {
    DS4_TRY(backend::check_decode(rows, logits.size(), shape_));
    const std::lock_guard lock(mutex_);
    bool computing = false;
    try {
      std::vector<RowInfo> infos;
      for (const backend::DecodeRow& row : rows) {
        auto& state = static_cast<CudaSequence&>(*row.sequence);
        if (state.position() == 0) state.initialise(stream_.get());
        state.prepare_rows(1, stream_.get());
        infos.push_back({row.token, 0, state.position(), 1, 0, state.layer_caches(), state.steering});
      }
      last_logits_.reserve(rows.size());
      computing = true;
      pass_.run(infos);
      follow(infos, rows);
      const float* computed = pass_.logits(0, rows.size());
      if (!logits.empty()) copy_to_host(computed, rows.size(), logits.data());
      std::vector<KeptLogits*> kept;
      for (const backend::DecodeRow& row : rows) {
        CudaState& state = static_cast<CudaSequence&>(*row.sequence).state;
        state.logits.resize(1);
        kept.push_back(&state.logits.front());
        state.advance(1);
      }
      last_logits_.keep(computed, kept);
      return {};
    } catch (...) {
      Error error = caught_error();
      if (computing || error.code != ErrorCode::out_of_memory) {
        for (const backend::DecodeRow& row : rows) row.sequence->clear();
      }
      return error;
    }
  }

  Result<void> verify(backend::Sequence& sequence, std::span<const Token> tokens) const override {
    DS4_TRY(backend::check_verify(sequence, tokens, shape_));
    auto& state = static_cast<CudaSequence&>(sequence);
    const std::lock_guard lock(mutex_);
    bool computing = false;
    try {
      if (state.position() == 0) state.initialise(stream_.get());
      state.prepare_rows(tokens.size(), stream_.get());
      last_logits_.reserve(tokens.size());
      computing = true;
      advance(state, tokens);
      state.state.logits.resize(tokens.size());
      std::vector<KeptLogits*> kept;
      kept.reserve(tokens.size());
      for (KeptLogits& row : state.state.logits) kept.push_back(&row);
      last_logits_.keep(pass_.logits(0, tokens.size()), kept);
      return {};
    } catch (...) {
      Error error = caught_error();
      if (computing || error.code != ErrorCode::out_of_memory) state.clear();
      return error;
    }
  }

  Result<void> retract(backend::Sequence& sequence, size_t count) const override {
    CudaState& state = static_cast<CudaSequence&>(sequence).state;
    const std::lock_guard lock(mutex_);
    if (!state.retract(count)) return backend::cannot_retract(count, state.position);
    return {};
  }

  Result<void> logits(const backend::Sequence& sequence, std::span<float> out) const override {
    DS4_TRY(backend::check_logits(sequence, out.size(), shape_.vocabulary));
    const std::lock_guard lock(mutex_);
    try {
      last_logits_.fetch(*static_cast<const CudaSequence&>(sequence).state.kept_logits(0), out.data());
      return {};
    } catch (...) {
      return caught_error();
    }
  }

  Result<Token> sample(const backend::Sequence& sequence, const SamplingParams& params, float uniform,
                       size_t behind) const override {
    DS4_TRY(backend::check_choice(sequence, behind));
    const KeptLogits& kept = *static_cast<const CudaSequence&>(sequence).state.kept_logits(behind);
    if (sampling::is_greedy(params)) return kept.summary.best;
    const std::lock_guard lock(mutex_);
    try {
      return last_logits_.draw(kept, params, uniform);
    } catch (...) {
      return caught_error();
    }
  }

  Result<std::vector<backend::Draft>> draft(const backend::Sequence& sequence,
                                            const backend::DraftRequest& request) const override {
    const auto& state = static_cast<const CudaSequence&>(sequence);
    DS4_TRY(backend::check_draft(info_, sequence, request, shape_.vocabulary));
    const std::lock_guard lock(mutex_);
    try {
      const uint64_t last = state.position() - 1;
      return drafter_->draft({state.token_streams(last), request.next, last, state.layer_caches()}, request);
    } catch (...) {
      return caught_error();
    }
  }

  Result<std::shared_ptr<const backend::StateImage>> snapshot(
      const backend::Sequence& sequence) const override {
    const std::lock_guard lock(mutex_);
    try {
      return std::shared_ptr<const backend::StateImage>(
          std::make_shared<CudaStateImage>(static_cast<const CudaSequence&>(sequence), stream_.get()));
    } catch (...) {
      return caught_error();
    }
  }

  Result<void> restore(backend::Sequence& sequence, const backend::StateImage& image) const override {
    const std::lock_guard lock(mutex_);
    try {
      restore_locked(static_cast<CudaSequence&>(sequence), static_cast<const CudaStateImage&>(image));
      return {};
    } catch (...) {
      sequence.clear();
      return caught_error();
    }
  }

  Result<std::unique_ptr<backend::ExpertInputs>> create_expert_inputs() const override {
    const std::lock_guard lock(mutex_);
    try {
      return std::unique_ptr<backend::ExpertInputs>(new CudaExpertInputs(shape_, stream_.get()));
    } catch (...) {
      return caught_error();
    }
  }

  Result<ExpertInputSums> read(const backend::ExpertInputs& inputs) const override {
    const std::lock_guard lock(mutex_);
    try {
      return static_cast<const CudaExpertInputs&>(inputs).read(stream_.get());
    } catch (...) {
      return caught_error();
    }
  }

  Result<void> export_state(const backend::StateImage& image, const StateParts& parts,
                            std::span<std::byte> out) const override {
    DS4_TRY(backend::check_export(image, parts, out.size(), shape_));
    const auto& source = static_cast<const CudaStateImage&>(image);
    if (parts.is_frontier() && source.state.kept_logits(0) == nullptr) {
      return backend::no_logits(parts.position);
    }
    const std::lock_guard lock(copy_mutex_);
    try {
      copier_.export_parts(source, parts, out.data());
      return {};
    } catch (...) {
      return caught_error();
    }
  }

  Result<void> import_state(backend::Sequence& sequence, const StateParts& parts,
                            std::span<const std::byte> bytes) const override {
    DS4_TRY(backend::check_import(sequence, parts, bytes.size(), shape_));
    auto& target = static_cast<CudaSequence&>(sequence);
    if (!target.state.follows(parts)) return backend::out_of_order(parts.position);
    try {
      {
        const std::lock_guard lock(copy_mutex_);
        copier_.import_parts(target, parts, bytes.data());
      }
      if (!parts.is_frontier()) return {};
      std::vector<float> logits(shape_.vocabulary);
      std::memcpy(logits.data(), bytes.data() + parts.logits.offset, parts.logits.bytes());
      target.state.logits.resize(1);
      const std::lock_guard lock(mutex_);
      last_logits_.keep(logits, target.state.logits.front());
      return {};
    } catch (...) {
      return caught_error();
    }
  }

  Result<double> measure_read_bandwidth() const override {
    const std::lock_guard lock(mutex_);
    try {
      return cuda::measure_read_bandwidth(stream_.get());
    } catch (...) {
      return caught_error();
    }
  }

 private:
  // Chunk after chunk; false when cancelled.
  bool append(CudaSequence& state, std::span<const Token> tokens, size_t logit_rows, std::span<float> logits,
              const backend::EvalControl& control) const {
    const size_t first_logits = tokens.size() - logit_rows, layers = shape_.layers;
    const PrefillViews views{control.capture, static_cast<CudaExpertInputs*>(control.expert_inputs)};
    for (size_t begin = 0; begin < tokens.size();) {
      // Few tokens stream the weights, as decoding does, where nothing is to be seen of them.
      const size_t left = tokens.size() - begin;
      const bool few = left <= max_rows && !views.any();
      const size_t count = few ? left : std::min<size_t>(left, prefill_.reserve()), end = begin + count;
      const auto go_on = [&](size_t layers_done) {
        if (layers_done > 0 && control.on_progress) {
          control.on_progress(static_cast<double>(begin * layers + count * layers_done) /
                              static_cast<double>(tokens.size() * layers));
        }
        return !control.cancelled || !control.cancelled();
      };
      if (!go_on(0)) return false;
      const bool last = end == tokens.size();
      const size_t wanted = end > first_logits ? std::min(count, end - first_logits) : 0;
      float* out = wanted > 0 ? logits.data() + (end - wanted - first_logits) * shape_.vocabulary : nullptr;
      if (few) {
        advance(state, tokens.subspan(begin));
        finish(pass_, state, count, wanted, out, last);
      } else {
        // The drafter wants the streams of the tokens in its window, and of the one before them.
        size_t kept = std::max<size_t>(wanted, last ? 1 : 0);
        if (drafter_) kept = std::max(kept, std::min<size_t>(count, model::window + 1));
        const auto chunk = tokens.subspan(begin, count);
        if (!prefill_.run(state, chunk, kept, views, go_on)) return false;
        follow(state, chunk, 0, drafter_ ? prefill_.streams(0) : nullptr);
        state.state.advance(count);
        finish(prefill_, state, count, wanted, out, last);
      }
      begin = end;
      if (control.on_progress)
        control.on_progress(static_cast<double>(end) / static_cast<double>(tokens.size()));
    }
    return true;
  }

  // The drafter's rows of what a pass computed, and the streams it needs later; before the positions move.
  void follow(std::span<const RowInfo> infos, std::span<const backend::DecodeRow> rows) const {
    if (!drafter_) return;
    std::vector<DraftPair> pairs;
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto& state = static_cast<const CudaSequence&>(*rows[r].sequence);
      if (state.position() == 0) continue;
      const uint64_t before = state.position() - 1;
      pairs.push_back({state.token_streams(before), infos[r].token, before, state.layer_caches()});
    }
    if (!pairs.empty()) drafter_->seed(pairs);
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto& state = static_cast<const CudaSequence&>(*rows[r].sequence);
      keep_streams(state, state.position(), pass_.streams() + r * stream_values());
    }
  }

  // The same for consecutive tokens of one sequence, whose streams are those from `streams` on for the tokens
  // from `first` on. Only what the drafter's window can still see counts.
  void follow(const CudaSequence& state, std::span<const Token> tokens, size_t first,
              const float* streams) const {
    if (!drafter_) return;
    const auto row = [&](size_t token) { return streams + (token - first) * stream_values(); };
    const uint64_t start = state.position();
    std::vector<DraftPair> pairs;
    for (size_t i = tokens.size() - std::min<size_t>(tokens.size(), model::window); i < tokens.size(); ++i) {
      if (start + i == 0) continue;
      const float* before = i == 0 ? state.token_streams(start - 1) : row(i - 1);
      pairs.push_back({before, tokens[i], start + i - 1, state.layer_caches()});
      if (pairs.size() < max_draft_pairs) continue;
      drafter_->seed(pairs);
      pairs.clear();
    }
    if (!pairs.empty()) drafter_->seed(pairs);
    for (size_t i = tokens.size() - std::min<size_t>(tokens.size(), retractable_tokens + 1);
         i < tokens.size(); ++i) {
      keep_streams(state, start + i, row(i));
    }
  }

  size_t stream_values() const { return size_t{model::streams} * shape_.width; }

  void keep_streams(const CudaSequence& state, uint64_t position, const float* streams) const {
    check(cudaMemcpyAsync(state.token_streams(position), streams, stream_values() * sizeof(float),
                          cudaMemcpyDeviceToDevice, stream_.get()),
          "streams for the drafter");
  }

  // A pass over up to 16 consecutive tokens of one sequence.
  void advance(CudaSequence& state, std::span<const Token> tokens) const {
    state.prepare_rows(tokens.size(), stream_.get());
    std::vector<RowInfo> infos;
    infos.reserve(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      infos.push_back({tokens[i], static_cast<uint32_t>(i), state.position() + i,
                       static_cast<uint32_t>(tokens.size()), 0, state.layer_caches(), state.steering});
    }
    pass_.run(infos);
    follow(state, tokens, 0, pass_.streams());
    state.state.advance(tokens.size());
  }

  // What go_back() needs, beside the copy of the fixed-size state in before_. Pages need no copy: rows beyond
  // the position count for nothing, and the rows before it stay as they are.
  struct Before {
    bool valid = false;
    uint64_t position = 0, furthest = 0;
    std::vector<KeptLogits> logits;
  };

  Before keep(const CudaSequence& state) const {
    if (before_.size() == 0) before_ = DeviceBuffer<uint8_t>(layout_.bytes, "state before a prefill");
    check(cudaMemcpyAsync(before_.data(), state.arena.data(), layout_.bytes, cudaMemcpyDeviceToDevice,
                          stream_.get()),
          "state before a prefill");
    return {true, state.state.position, state.state.furthest, state.state.logits};
  }

  void go_back(CudaSequence& state, Before before) const {
    check(cudaMemcpyAsync(state.arena.data(), before_.data(), layout_.bytes, cudaMemcpyDeviceToDevice,
                          stream_.get()),
          "undone prefill");
    state.state.position = before.position;
    state.state.furthest = before.furthest;
    state.state.logits = std::move(before.logits);
    check(cudaStreamSynchronize(stream_.get()), "undone prefill");
  }

  // After a failure; nothing is to be undone if `before` was not taken.
  bool try_to_go_back(CudaSequence& state, Before before) const {
    if (!before.valid) return true;
    try {
      go_back(state, std::move(before));
      return true;
    } catch (const CudaFailure&) {
      return false;
    }
  }

  void copy_to_host(const float* computed, size_t rows, float* out) const {
    check(cudaMemcpyAsync(out, computed, rows * shape_.vocabulary * sizeof(float), cudaMemcpyDeviceToHost,
                          stream_.get()),
          "logits");
  }

  // The logits of the last `wanted` of the rows just computed go to `out`, those of the last row stay with
  // the sequence if its tokens end there. `source`: Pass or Prefill.
  template <class Source>
  void finish(Source& source, CudaSequence& state, size_t rows, size_t wanted, float* out, bool last) const {
    const float* row = nullptr;  // of the last token
    for (size_t done = 0; done < wanted; done += max_rows) {
      const size_t count = std::min<size_t>(max_rows, wanted - done);
      const float* computed = source.logits(rows - wanted + done, count);
      copy_to_host(computed, count, out + done * shape_.vocabulary);
      row = computed + (count - 1) * shape_.vocabulary;
    }
    if (!last) return;
    state.state.logits.resize(1);
    KeptLogits* const kept = &state.state.logits.front();
    last_logits_.keep(row != nullptr ? row : source.logits(rows - 1, 1), {&kept, 1});
  }

  void restore_locked(CudaSequence& state, const CudaStateImage& image) const {
    check(cudaMemcpyAsync(state.arena.data(), image.arena.data(), image.arena.bytes(),
                          cudaMemcpyDeviceToDevice, stream_.get()),
          "restore");
    state.state = image.state;
    state.publish_tables(stream_.get());
    check(cudaStreamSynchronize(stream_.get()), "restore");
  }

  model::ModelShape shape_;
  Stream stream_;
  ArenaLayout layout_;
  RowPools pools_;
  DeviceWeights weights_;
  backend::BackendInfo info_;
  mutable std::mutex mutex_;
  mutable Pass pass_;
  mutable Prefill prefill_;
  mutable LastLogits last_logits_;
  mutable std::optional<Drafter> drafter_;
  mutable std::mutex copy_mutex_;  // of copier_; not needed to compute
  mutable StateCopier copier_;
  DeviceBuffer<float> directions_;
  mutable DeviceBuffer<uint8_t> before_;  // fixed-size state of the sequence in prefill
};

}  // namespace

bool available(std::string* why) {
  const auto device = usable_device();
  if (!device && why != nullptr) *why = device.error().message;
  return device.has_value();
}

Result<MemoryPlan> plan_cuda_memory(const model::ModelShape& shape, const model::ModelWeights& weights,
                                    const model::MtpWeights* mtp) {
  DS4_TRY(check_limits(shape));
  DS4_ASSIGN(const cudaDeviceProp device, usable_device());
  try {
    return plan_for(device, shape, weights, mtp).memory;
  } catch (...) {
    return caught_error();
  }
}

Result<std::unique_ptr<backend::Backend>> make_cuda_backend(const model::ModelShape& shape,
                                                            const model::ModelWeights& weights,
                                                            const model::MtpWeights* mtp,
                                                            const CudaOptions& options) {
  DS4_TRY(check_limits(shape));
  DS4_ASSIGN(const cudaDeviceProp device, usable_device());
  try {
    const auto [plan, chunk_tokens] = plan_for(device, shape, weights, mtp);
    const uint64_t first_session = plan.session_total_bytes(0), needed = needed_bytes(plan);
    if (needed > plan.available_bytes) {
      const auto gib = [](uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
      return fail(ErrorCode::out_of_memory,
                  "the model needs {:.1f} GiB on the GPU ({:.1f} weights, {:.1f} scratch, {:.1f} for one "
                  "session) but {:.1f} of {:.1f} GiB are free",
                  gib(needed), gib(plan.weight_bytes()), gib(plan.scratch_bytes), gib(first_session),
                  gib(plan.available_bytes), gib(device.totalGlobalMem));
    }
    return std::unique_ptr<backend::Backend>(
        new CudaBackend(shape, weights, mtp, options, device, chunk_tokens));
  } catch (...) {
    return caught_error();
  }
}

}  // namespace ds4::cuda
