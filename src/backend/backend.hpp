// The seam between the engine and the devices: a handful of coarse calls, never one per operation.
//
// engine/ owns time (who runs next), a backend owns memory (weights, state, scratch). A backend's calls may
// come from several threads; it serialises them itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/expert_inputs.hpp"
#include "ds4/sampling.hpp"
#include "ds4/state.hpp"
#include "ds4/steering.hpp"
#include "ds4/token.hpp"
#include "sampling/logit_summary.hpp"

namespace ds4::backend {

/// State of one sequence, in the backend's memory: raw window, compressed rows, compressor frontiers, and the
/// logits after its last token.
class Sequence {
 public:
  virtual ~Sequence() = default;
  virtual size_t position() const = 0;  // tokens evaluated
  virtual size_t state_bytes() const = 0;
  virtual void clear() = 0;  // back to position 0; gives up rows and logits
  /// Of the logits after the token `behind` tokens before the last. There are those of the last token and,
  /// after verify(), of each of its tokens; null elsewhere.
  virtual const sampling::LogitSummary* logit_summary(size_t behind) const = 0;
  const sampling::LogitSummary* logit_summary() const { return logit_summary(0); }

  /// Holds for tokens evaluated from now on; not part of snapshots. No effect without directions.
  SteeringScales steering;
};

/// Frozen copy of a sequence's state. Cheap: full pages of compressed rows are shared, not copied.
class StateImage {
 public:
  virtual ~StateImage() = default;
  virtual size_t position() const = 0;
  virtual size_t size_bytes() const = 0;
  virtual size_t own_bytes() const = 0;  // of those, without the pages of rows
};

/// A part's output, unsteered, for the last tokens of a call, copied while it runs.
struct Capture {
  Component component = Component::feed_forward;
  size_t rows = 1;            // 1 .. tokens of the call
  std::vector<float> values;  // out: [layers][rows][d]
};

/// Running sums of the inputs of the routed experts, in the backend's memory.
class ExpertInputs {
 public:
  virtual ~ExpertInputs() = default;
};

/// How a long call reports and is stopped. Both are called from the calling thread, between layers.
struct EvalControl {
  std::function<void(double)> on_progress;  // fraction of this call's work done, 0..1
  std::function<bool()> cancelled;
  Capture* capture = nullptr;
  ExpertInputs* expert_inputs = nullptr;  // the call's tokens are added; of no use after an error
};

/// One row of a decode batch.
struct DecodeRow {
  Sequence* sequence = nullptr;
  Token token = -1;
};

/// What is asked of a drafter: tokens to follow a sequence and `next`.
struct DraftRequest {
  Token next = -1;
  size_t depth = 1;  // at most this many
  float min_margin =
      0;  // a draft after the first is left out, and ends the drafting, if its margin is smaller
  bool logits = false;  // whether the drafter's logits are wanted too
};

/// A token that a drafter proposes.
struct Draft {
  Token token = -1;
  float margin = 0;           // by which its logit exceeds the second largest
  std::vector<float> logits;  // [V] if asked for
};

struct BackendInfo {
  std::string name;                  // e.g. "cpu (2 threads, AVX-512 VNNI)"
  double state_bytes_per_token = 0;  // growth of a long sequence
  bool drafter = false;              // draft() works
};

/// One model on one device. Every call checks its tokens, and that they fit the model's context
/// (context_full); none prints or throws.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const BackendInfo& info() const = 0;
  virtual Result<std::unique_ptr<Sequence>> create_sequence() const = 0;

  /// Appends `tokens` (at most one prefill chunk) to a sequence. The logits after the last token stay with
  /// the sequence; those of the last `logit_rows` tokens are also written to `logits` [logit_rows][V], which
  /// may be none. Cancelled, the sequence is as before the call. After out_of_memory or a failure of the
  /// device it is so too or, where that cannot be, empty: its position tells.
  virtual Result<void> prefill(Sequence& sequence, std::span<const Token> tokens, size_t logit_rows,
                               std::span<float> logits, const EvalControl& control) const = 0;

  /// Appends one token to each of 1..16 different sequences. Their logits stay with them and are also written
  /// to `logits` [rows][V] unless that is empty. out_of_memory and a failure of the device may leave the
  /// sequences empty, any other error leaves them as they were.
  virtual Result<void> decode(std::span<const DecodeRow> rows, std::span<float> logits) const = 0;

  /// Appends 1..16 tokens to one sequence with the bits of decoding them one by one; the logits after each of
  /// them stay with the sequence. Errors as for decode().
  virtual Result<void> verify(Sequence& sequence, std::span<const Token> tokens) const = 0;

  /// Takes back the last `count` tokens: what follows is what would have followed had they never been
  /// evaluated. invalid_argument, changing nothing, where the sequence was once more than max_decode_rows
  /// tokens longer than it would become, or would become shorter than it was imported. Of the logits that
  /// stay with the sequence, those of tokens before remain.
  virtual Result<void> retract(Sequence& sequence, size_t count) const = 0;

  /// Copies the logits after the sequence's last token to `out` [V].
  virtual Result<void> logits(const Sequence& sequence, std::span<float> out) const = 0;

  /// Chooses the token to follow the one `behind` tokens before the last (of those whose logits stay with the
  /// sequence), with the random number `uniform` in [0, 1) of 24 bits unless greedy; the same token as
  /// ds4::sample() from the same logits. not_finite if the logits hold NaN or nothing finite.
  virtual Result<Token> sample(const Sequence& sequence, const SamplingParams& params, float uniform,
                               size_t behind) const = 0;

  /// Proposes tokens; the sequence is unchanged. Errors: unsupported without a drafter, not_finite if the
  /// drafter computes NaN.
  virtual Result<std::vector<Draft>> draft(const Sequence& sequence, const DraftRequest& request) const = 0;

  virtual Result<std::shared_ptr<const StateImage>> snapshot(const Sequence& sequence) const = 0;
  virtual Result<void> restore(Sequence& sequence, const StateImage& image) const = 0;

  /// Sums of zero, for prefill() to add to, and a copy of them. The sums are F64, over the tokens of a
  /// sequence in order, so that they depend neither on threads nor on how a text is cut into calls, as far as
  /// the activations do not. unsupported unless a backend says otherwise.
  virtual Result<std::unique_ptr<ExpertInputs>> create_expert_inputs() const;
  virtual Result<ExpertInputSums> read(const ExpertInputs& inputs) const;

  /// Copies rows, bit for bit, of a block or frontier of the state to `out`, of parts.bytes bytes. Any
  /// thread, also while sequences are computed, which wait for none of it or for a small piece. Errors:
  /// invalid_argument if the image does not hold what the parts name; unsupported.
  virtual Result<void> export_state(const StateImage& image, const StateParts& parts,
                                    std::span<std::byte> out) const;
  /// Appends a block, or the frontier, to a sequence whose position is 0 and to which all blocks before were
  /// imported; the frontier makes it a sequence of parts.position tokens with logits. Nothing in `bytes` is
  /// trusted. Threads as for export_state(), but one at a time for a sequence. Errors: invalid_argument,
  /// unsupported; after any other error the sequence is to be cleared.
  virtual Result<void> import_state(Sequence& sequence, const StateParts& parts,
                                    std::span<const std::byte> bytes) const;

  /// Measures how fast the memory that holds the weights can be read, in bytes per second; takes less than a
  /// second. unsupported unless a backend says otherwise.
  virtual Result<double> measure_read_bandwidth() const;
};

inline Result<void> Backend::export_state(const StateImage&, const StateParts&, std::span<std::byte>) const {
  return Error{ErrorCode::unsupported, "this backend cannot write its state as bytes"};
}

inline Result<void> Backend::import_state(Sequence&, const StateParts&, std::span<const std::byte>) const {
  return Error{ErrorCode::unsupported, "this backend cannot read its state from bytes"};
}

inline Result<double> Backend::measure_read_bandwidth() const {
  return Error{ErrorCode::unsupported, "this backend cannot measure its memory"};
}

inline Result<std::unique_ptr<ExpertInputs>> Backend::create_expert_inputs() const {
  return Error{ErrorCode::unsupported, "this backend cannot collect the inputs of experts"};
}

inline Result<ExpertInputSums> Backend::read(const ExpertInputs&) const {
  return Error{ErrorCode::unsupported, "this backend cannot collect the inputs of experts"};
}

/// The most sequences one decode call takes.
inline constexpr size_t max_decode_rows = 16;

}  // namespace ds4::backend
