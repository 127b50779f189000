// A backend with a drafter that is as good as a test wants, and that counts what it is asked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.hpp"

namespace ds4::testing {

/// What an OracleBackend answers, and what it was asked. Stays with the test.
struct Oracle {
  std::vector<Token> text;   // all tokens of the session, those to come too; nothing is drafted beyond
  double right = 1;          // share of the drafts that are the token of the text, 0 to 1
  bool run_drafter = false;  // let the drafter of the model compute too, for the time that it takes
  uint64_t seed = 1;         // which of the drafts are wrong
  uint32_t vocabulary = 0;

  uint64_t passes = 0;  // calls of decode() and verify(), each of which gives one token at least
  uint64_t rows = 0;    // tokens that they evaluated
  uint64_t drafts = 0;

  void clear_counts() { passes = rows = drafts = 0; }
};

/// Everything but the drafts is the work of another backend. One session at a time.
class OracleBackend final : public backend::Backend {
 public:
  /// `oracle` must outlive the backend.
  OracleBackend(std::unique_ptr<backend::Backend> inner, Oracle& oracle)
      : inner_(std::move(inner)), info_(inner_->info()), oracle_(oracle) {
    info_.drafter = true;
  }

  const backend::BackendInfo& info() const override { return info_; }
  Result<std::unique_ptr<backend::Sequence>> create_sequence() const override {
    return inner_->create_sequence();
  }
  Result<void> prefill(backend::Sequence& sequence, std::span<const Token> tokens, size_t logit_rows,
                       std::span<float> logits, const backend::EvalControl& control) const override {
    return inner_->prefill(sequence, tokens, logit_rows, logits, control);
  }
  Result<void> decode(std::span<const backend::DecodeRow> rows, std::span<float> logits) const override {
    ++oracle_.passes;
    oracle_.rows += rows.size();
    return inner_->decode(rows, logits);
  }
  Result<void> verify(backend::Sequence& sequence, std::span<const Token> tokens) const override {
    ++oracle_.passes;
    oracle_.rows += tokens.size();
    return inner_->verify(sequence, tokens);
  }
  Result<void> retract(backend::Sequence& sequence, size_t count) const override {
    return inner_->retract(sequence, count);
  }
  Result<void> logits(const backend::Sequence& sequence, std::span<float> out) const override {
    return inner_->logits(sequence, out);
  }
  Result<Token> sample(const backend::Sequence& sequence, const SamplingParams& params, float uniform,
                       size_t behind) const override {
    return inner_->sample(sequence, params, uniform, behind);
  }
  Result<std::shared_ptr<const backend::StateImage>> snapshot(
      const backend::Sequence& sequence) const override {
    return inner_->snapshot(sequence);
  }
  Result<void> restore(backend::Sequence& sequence, const backend::StateImage& image) const override {
    return inner_->restore(sequence, image);
  }
  Result<void> export_state(const backend::StateImage& image, const StateParts& parts,
                            std::span<std::byte> out) const override {
    return inner_->export_state(image, parts, out);
  }
  Result<void> import_state(backend::Sequence& sequence, const StateParts& parts,
                            std::span<const std::byte> bytes) const override {
    return inner_->import_state(sequence, parts, bytes);
  }

  Result<std::vector<backend::Draft>> draft(const backend::Sequence& sequence,
                                            const backend::DraftRequest& request) const override {
    if (oracle_.run_drafter) {
      if (auto drafts = inner_->draft(sequence, request); !drafts) return drafts;
    }
    const size_t first = std::min(sequence.position() + 1, oracle_.text.size());
    const size_t count = std::min(request.depth, oracle_.text.size() - first);
    std::vector<backend::Draft> drafts(count);
    for (size_t i = 0; i < count; ++i) drafts[i].token = propose(first + i);
    oracle_.drafts += count;
    return drafts;
  }

 private:
  // A position is proposed for once, since a wrong draft is followed by the right token: one random number
  // of each is enough.
  Token propose(size_t position) const {
    const auto truth = static_cast<uint32_t>(oracle_.text[position]);
    const uint64_t random = mix(position + oracle_.seed * 0x9e3779b97f4a7c15u);
    if (static_cast<double>(random >> 11) * 0x1p-53 < oracle_.right) return static_cast<Token>(truth);
    return static_cast<Token>((truth + 1 + mix(random) % (oracle_.vocabulary - 1)) % oracle_.vocabulary);
  }

  static uint64_t mix(uint64_t x) {  // SplitMix64
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
  }

  std::unique_ptr<backend::Backend> inner_;
  backend::BackendInfo info_;
  Oracle& oracle_;
};

}  // namespace ds4::testing
