#include "support/scripted_backend.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "backend/checks.hpp"
#include "base/error.hpp"
#include "ds4/sampling.hpp"
#include "engine/engine_impl.hpp"
#include "format/gguf.hpp"
#include "model/shape.hpp"
#include "text/gguf_tokenizer.hpp"

namespace ds4::testing {
namespace {

using backend::StateImage;

constexpr float likely = 20;

struct ScriptedImage : StateImage {
  explicit ScriptedImage(std::vector<Token> history) : tokens(std::move(history)) {}
  size_t position() const override { return tokens.size(); }
  size_t size_bytes() const override { return tokens.size() * sizeof(Token); }
  size_t own_bytes() const override { return 1000; }
  std::vector<Token> tokens;
};

struct ScriptedSequence : backend::Sequence {
  explicit ScriptedSequence(std::shared_ptr<std::atomic<size_t>> in_use) : all_tokens(std::move(in_use)) {}
  ~ScriptedSequence() override { *all_tokens -= counted; }
  /// Keeps the sum over all sequences; false if it is more than `limit`, and nothing is changed.
  bool count(size_t size, size_t limit) {
    if (size > counted && *all_tokens + (size - counted) > limit) return false;
    *all_tokens += size - counted;
    counted = size;
    return true;
  }

  size_t position() const override { return tokens.size(); }
  size_t state_bytes() const override { return 1000 + tokens.size() * 100; }
  void clear() override {
    tokens.clear();
    imported.clear();
    summaries.clear();
  }
  const sampling::LogitSummary* logit_summary(size_t behind) const override {
    return behind < summaries.size() ? &summaries[summaries.size() - 1 - behind] : nullptr;
  }

  std::vector<Token> tokens;
  std::vector<Token> imported;                    // of blocks, until the frontier comes
  std::vector<sampling::LogitSummary> summaries;  // after the last tokens
  std::shared_ptr<std::atomic<size_t>> all_tokens;
  size_t counted = 0;
};

class ScriptedBackend : public backend::Backend {
 public:
  ScriptedBackend(ScriptedOptions options, model::ModelShape shape, ScriptedCounters* counters)
      : options_(std::move(options)),
        shape_(std::move(shape)),
        vocabulary_(shape_.vocabulary),
        counters_(counters) {
    info_.name = "script";
  }

  const backend::BackendInfo& info() const override { return info_; }
  Result<std::unique_ptr<backend::Sequence>> create_sequence() const override {
    return std::unique_ptr<backend::Sequence>(std::make_unique<ScriptedSequence>(in_use_));
  }

  Result<void> prefill(backend::Sequence& sequence, std::span<const Token> tokens, size_t logit_rows,
                       std::span<float> logits, const backend::EvalControl& control) const override {
    DS4_TRY(backend::check_prefill(sequence, tokens, logit_rows, logits.size(), shape_));
    DS4_TRY(check_device());
    for (size_t i = 0; i < tokens.size(); i += 64) {
      const size_t piece = std::min<size_t>(64, tokens.size() - i);
      if (control.cancelled && control.cancelled()) return fail(ErrorCode::cancelled, "cancelled");
      std::this_thread::sleep_for(options_.per_prompt_token * piece);
      if (control.on_progress) {
        control.on_progress(static_cast<double>(i + piece) / static_cast<double>(tokens.size()));
      }
    }
    auto& state = static_cast<ScriptedSequence&>(sequence);
    DS4_TRY(take(state, state.tokens.size() + tokens.size()));
    if (counters_ != nullptr) counters_->prefill_tokens += tokens.size();
    state.tokens.insert(state.tokens.end(), tokens.begin(), tokens.end());
    state.summaries = {summary(state)};
    for (size_t row = 0; row < logit_rows; ++row) fill(state, logits.subspan(row * vocabulary_, vocabulary_));
    return {};
  }

  Result<void> decode(std::span<const backend::DecodeRow> rows, std::span<float> logits) const override {
    DS4_TRY(backend::check_decode(rows, logits.size(), shape_));
    DS4_TRY(check_device());
    std::this_thread::sleep_for(options_.per_pass);
    if (counters_ != nullptr) {
      ++counters_->decode_passes;
      counters_->decode_rows += rows.size();
    }
    for (const backend::DecodeRow& row : rows) {
      if (!options_.decoding_takes_memory) break;
      auto& state = static_cast<ScriptedSequence&>(*row.sequence);
      DS4_TRY(take(state, state.tokens.size() + 1));
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      auto& state = static_cast<ScriptedSequence&>(*rows[i].sequence);
      state.tokens.push_back(rows[i].token);
      state.summaries = {summary(state)};
      if (!logits.empty()) fill(state, logits.subspan(i * vocabulary_, vocabulary_));
    }
    return {};
  }

  Result<void> verify(backend::Sequence& sequence, std::span<const Token> tokens) const override {
    DS4_TRY(backend::check_verify(sequence, tokens, shape_));
    auto& state = static_cast<ScriptedSequence&>(sequence);
    state.summaries.clear();
    for (const Token token : tokens) {
      state.tokens.push_back(token);
      state.summaries.push_back(summary(state));
    }
    return {};
  }

  Result<void> retract(backend::Sequence& sequence, size_t count) const override {
    auto& state = static_cast<ScriptedSequence&>(sequence);
    if (count > std::min(state.tokens.size(), backend::max_decode_rows)) {
      return backend::cannot_retract(count, state.tokens.size());
    }
    state.tokens.resize(state.tokens.size() - count);
    state.summaries.resize(state.summaries.size() - std::min(count, state.summaries.size()));
    return {};
  }

  Result<void> logits(const backend::Sequence& sequence, std::span<float> out) const override {
    DS4_TRY(backend::check_logits(sequence, out.size(), vocabulary_));
    fill(static_cast<const ScriptedSequence&>(sequence), out);
    return {};
  }

  Result<Token> sample(const backend::Sequence& sequence, const SamplingParams&, float,
                       size_t behind) const override {
    DS4_TRY(backend::check_choice(sequence, behind));
    return sequence.logit_summary(behind)->best;
  }

  Result<std::vector<backend::Draft>> draft(const backend::Sequence&,
                                            const backend::DraftRequest&) const override {
    return fail(ErrorCode::unsupported, "a script has no drafter");
  }

  Result<std::shared_ptr<const StateImage>> snapshot(const backend::Sequence& sequence) const override {
    return std::shared_ptr<const StateImage>(
        std::make_shared<ScriptedImage>(static_cast<const ScriptedSequence&>(sequence).tokens));
  }
  Result<void> restore(backend::Sequence& sequence, const StateImage& image) const override {
    auto& state = static_cast<ScriptedSequence&>(sequence);
    DS4_TRY(take(state, image.position()));
    state.tokens = static_cast<const ScriptedImage&>(image).tokens;
    state.summaries.clear();
    if (!state.tokens.empty()) state.summaries = {summary(state)};
    return {};
  }

  // The tokens stand in for rows: those of a block in its first bytes, the rest in the frontier's first
  // window.
  Result<void> export_state(const StateImage& image, const StateParts& parts,
                            std::span<std::byte> out) const override {
    DS4_TRY(backend::check_export(image, parts, out.size(), shape_));
    const auto tokens = part_of(static_cast<const ScriptedImage&>(image).tokens, parts);
    std::fill(out.begin(), out.end(), std::byte{0});
    std::memcpy(out.data(), tokens.data(), tokens.size_bytes());
    return {};
  }
  Result<void> import_state(backend::Sequence& sequence, const StateParts& parts,
                            std::span<const std::byte> bytes) const override {
    DS4_TRY(backend::check_import(sequence, parts, bytes.size(), shape_));
    auto& state = static_cast<ScriptedSequence&>(sequence);
    const size_t before = state.imported.size();
    state.imported.resize(static_cast<size_t>(parts.position));
    const auto tokens = part_of(state.imported, parts);
    if (before + tokens.size() != parts.position) return backend::out_of_order(parts.position);
    std::memcpy(state.imported.data() + before, bytes.data(), tokens.size_bytes());
    if (!parts.is_frontier()) return {};
    DS4_TRY(take(state, state.imported.size()));
    state.tokens = std::move(state.imported);
    state.summaries = {summary(state)};
    return {};
  }

 private:
  /// The tokens that a block or frontier adds.
  static std::span<const Token> part_of(const std::vector<Token>& tokens, const StateParts& parts) {
    const auto end = static_cast<size_t>(parts.position);
    const size_t count = parts.is_frontier() ? end % state_block_tokens : state_block_tokens;
    return std::span(tokens).subspan(end - count, count);
  }

  Result<void> check_device() const {
    if (options_.failing_passes == nullptr || *options_.failing_passes == 0) return {};
    --*options_.failing_passes;
    return fail(ErrorCode::internal, "the script's device failed");
  }
  Result<void> take(ScriptedSequence& state, size_t tokens) const {
    if (state.count(tokens, options_.memory_tokens)) return {};
    return fail(ErrorCode::out_of_memory, "the script's memory is full");
  }
  sampling::LogitSummary summary(const ScriptedSequence& state) const {
    const Token next = options_.next(state.tokens);
    if (next < 0) return {.has_nan = true};
    return {.best = next, .maximum = likely};
  }
  void fill(const ScriptedSequence& state, std::span<float> row) const {
    const sampling::LogitSummary& known = state.summaries.back();
    const float other = known.has_nan ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    std::fill_n(row.begin(), vocabulary_, other);
    if (!known.has_nan) row[static_cast<size_t>(known.best)] = likely;
  }

  ScriptedOptions options_;
  model::ModelShape shape_;
  uint32_t vocabulary_;
  ScriptedCounters* counters_;
  std::shared_ptr<std::atomic<size_t>> in_use_ = std::make_shared<std::atomic<size_t>>(0);
  backend::BackendInfo info_;
};

template <class T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}

/// Finds the prompt's end in a history and what it asks.
class Assistant {
 public:
  Assistant(std::shared_ptr<const Tokenizer> tokenizer, std::vector<ScriptedReply> replies)
      : tokenizer_(std::move(tokenizer)) {
    for (ScriptedReply& reply : replies) {
      std::vector<Token> tokens = tokenizer_->encode_rendered(reply.text);
      replies_.push_back({std::move(reply), std::move(tokens)});
    }
  }

  Token next(std::span<const Token> history) const {
    const SpecialTokens& special = tokenizer_->special();
    size_t begin = history.size();
    while (begin > 0 && history[begin - 1] != special.assistant) --begin;
    if (begin == 0 || begin == history.size()) return special.eos;
    const Known& known = find(history.first(begin));
    const std::span<const Token> said = history.subspan(begin + 1);
    size_t place = said.size();
    if (known.reply.endless) return known.tokens[place % known.tokens.size()];
    const auto [theirs, ours] =
        std::mismatch(said.begin(), said.end(), known.tokens.begin(), known.tokens.end());
    if (theirs != said.end()) place = behind_closing_tag(said, known.tokens);
    if (place < known.tokens.size()) return known.tokens[place];
    return known.reply.no_end ? known.tokens.back() : special.eos;
  }

 private:
  struct Known {
    ScriptedReply reply;
    std::vector<Token> tokens;
  };

  const Known& find(std::span<const Token> prompt) const {
    size_t begin = prompt.size();
    while (begin > 0 && prompt[begin - 1] != tokenizer_->special().user) --begin;
    const std::string turn = tokenizer_->decode(prompt.subspan(begin));
    for (const Known& known : replies_) {
      if (turn.find(known.reply.when) != std::string::npos) return known;
    }
    throw std::runtime_error("the script has no reply to: " + turn);
  }

  size_t behind_closing_tag(std::span<const Token> said, const std::vector<Token>& tokens) const {
    const Token close = tokenizer_->special().think_close;
    const auto forced = std::find(said.begin(), said.end(), close);
    const auto scripted = std::find(tokens.begin(), tokens.end(), close);
    if (forced == said.end() || scripted == tokens.end()) return std::min(said.size(), tokens.size());
    return static_cast<size_t>((scripted - tokens.begin()) + (said.end() - forced));
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<Known> replies_;
};

}  // namespace

NextToken scripted_assistant(std::shared_ptr<const Tokenizer> tokenizer, std::vector<ScriptedReply> replies) {
  return [assistant = std::make_shared<const Assistant>(std::move(tokenizer), std::move(replies))](
             std::span<const Token> history) { return assistant->next(history); };
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path) {
  const format::GgufFile file = must(format::GgufFile::open(path));
  return std::make_shared<const Tokenizer>(must(ds4::load_tokenizer(file)));
}

Engine make_scripted_engine(const std::string& tokenizer_path, ScriptedOptions options,
                            ScriptedCounters* counters) {
  EngineOptions engine;
  engine.model_path = tokenizer_path;
  engine.backend = BackendChoice::cpu;
  engine.threads = 1;
  model::ModelShape shape = must(model::read_shape(must(format::GgufFile::open(tokenizer_path)), nullptr));
  return must(EngineAccess::open(engine, [&](std::unique_ptr<backend::Backend>) {
    return std::unique_ptr<backend::Backend>(
        std::make_unique<ScriptedBackend>(std::move(options), std::move(shape), counters));
  }));
}

}  // namespace ds4::testing
