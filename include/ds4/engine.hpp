// A loaded model. Open one, then create any number of sessions over it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/expert_inputs.hpp"
#include "ds4/memory.hpp"
#include "ds4/session.hpp"
#include "ds4/state.hpp"
#include "ds4/tokenizer.hpp"

namespace ds4 {

/// What computes. `automatic` takes a GPU if this build and this machine have one, else the CPU.
enum class BackendChoice { automatic, cpu, cuda };

struct EngineOptions {
  std::string model_path;
  std::string mtp_path;  // file with the drafter (MTP block), unless it is in the model file; empty: none
  BackendChoice backend = BackendChoice::automatic;
  unsigned threads = 0;           // 0 = one per processor
  std::string steering_path;      // directions (.f32) for Session::set_steering(); empty: none
  uint32_t prefill_chunk = 4096;  // tokens; chunk boundaries lie on multiples of it
  bool exact_activations =
      false;                  // do not round activations to 8 bits before products with quantised weights
  bool warm_weights = false;  // read the whole file before the first token
  /// Progress of copying weights to a GPU, or of reading them when warm_weights is set: bytes done, bytes in
  /// all.
  std::function<void(uint64_t, uint64_t)> on_load_progress;
  /// One sentence each: things worth knowing that are not errors.
  std::function<void(const std::string&)> on_notice;
};

/// What is in the file, for display.
struct ModelInfo {
  std::string name;     // general.name
  std::string variant;  // "Flash", "Pro", "Nano", or "custom"
  std::string backend;  // "cpu (2 threads, AVX-512)"
  uint32_t layers = 0, width = 0, heads = 0, experts = 0, experts_used = 0, vocabulary = 0;
  uint64_t max_context = 0;   // declared, tokens
  uint64_t weight_bytes = 0;  // tensor bytes in the file
  double state_bytes_per_token = 0;
  bool drafter = false;                                    // a drafter is loaded and can be used
  bool steering = false;                                   // directions are loaded
  Component steering_component = Component::feed_forward;  // the part they were made from, if told
};

/// What decoding one token has to read.
struct DecodeBytes {
  uint64_t weights = 0;  // active weights, each once
  uint64_t state = 0;    // rows that are attended to or searched
};

/// Thread-safe; sessions keep the model alive.
class Engine {
 public:
  static Result<Engine> open(const EngineOptions& options);
  /// What open() with these options would take, without taking it. Errors as open()'s, but for out_of_memory.
  static Result<MemoryPlan> plan_memory(const EngineOptions& options);

  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  const ModelInfo& info() const;
  const Tokenizer& tokenizer() const;
  uint32_t prefill_chunk() const;

  /// For a token with `position` tokens before it.
  DecodeBytes decode_bytes(uint64_t position) const;
  /// Measures how fast the memory that holds the weights can be read, in bytes per second; takes less than a
  /// second and a buffer of 0.5 to 8 GiB. Errors: out_of_memory, unsupported.
  Result<double> measure_read_bandwidth() const;

  /// A conversation state of at most `context` tokens. Memory grows with use, not with `context`.
  Result<Session> create_session(uint64_t context) const;

  /// Sums of zero for every expert: 8 * (width + expert width) bytes each. Errors: out_of_memory,
  /// unsupported.
  Result<ExpertInputs> create_expert_inputs() const;

  /// The pieces of a session's state as bytes.
  const StateLayout& state_layout() const;
  /// 32 hexadecimal digits that say for which engines such bytes hold: equal for another backend, other
  /// threads or chunks, but not for another model, drafter, steering file, exact_activations or layout.
  /// Weights are sampled, which reads up to 12 KiB of each tensor. Errors: out_of_memory.
  Result<std::string> fingerprint() const;
  /// Begins a session of `context` tokens from the bytes that a snapshot of `tokens` was exported as. Errors:
  /// as for create_session(); invalid_argument for no tokens or one outside the vocabulary; context_full if
  /// they are more than `context`.
  Result<StateImport> import_state(std::span<const Token> tokens, uint64_t context) const;

  /// Appends a token to each of 1 to max_batch_rows different sessions of this engine in one pass that reads
  /// the weights once. Each gets the bits that its eval() would give, whoever else takes part. The results
  /// are those of the rows, in order: a row fails alone, with not_finite, as eval() does. An error of the
  /// call as a whole means that no token was appended: context_full and invalid_argument, named by row,
  /// change nothing; after out_of_memory or a failure of the device sessions may have been reset (position()
  /// 0).
  Result<std::vector<Result<void>>> eval_batch(std::span<const BatchRow> rows) const;

 private:
  friend struct EngineAccess;
  std::shared_ptr<const struct EngineImpl> impl_;
  explicit Engine(std::shared_ptr<const struct EngineImpl> impl);
};

}  // namespace ds4
