// Measuring the speed of prefill and decoding at one context length after the other (docs/bench.md).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "disk_probe.hpp"
#include "ds4/engine.hpp"
#include "ds4/error.hpp"
#include "options.hpp"

namespace ds4::bench {

struct FrontierRow {
  uint64_t ctx_tokens = 0;
  uint64_t prefill_tokens = 0;  // evaluated since the frontier before
  double prefill_seconds = 0;
  uint64_t gen_tokens = 0;
  double gen_seconds = 0;
  uint64_t kvcache_bytes = 0;      // of the snapshot; 0 if none was taken
  double bytes_per_gen_token = 0;  // mean of what the decoded tokens had to read; 0 without them
  std::optional<DiskTimes> disk;   // with --kv-disk-dir

  double prefill_tps() const;
  double gen_tps() const;
};

/// The tokens to walk through: at least those of the last frontier, and of its probe if that is
/// teacher-forced. An error names how many there are and how many are needed.
Result<std::vector<Token>> prompt_tokens(const Options& options, const Tokenizer& tokenizer);

/// The first index of the largest finite logit other than that of `excluded`; -1 if there is none.
Token argmax_except(std::span<const float> logits, Token excluded);

struct FrontierCalls {
  /// After the evaluation of a frontier, before decoding; untimed. May add to the row.
  std::function<Result<void>(FrontierRow& row)> on_prefilled;
  /// Each finished row.
  std::function<Result<void>(const FrontierRow& row)> on_row;
};

/// Measures at every frontier. Stops at the first error; ErrorCode::cancelled after Ctrl+C.
Result<void> measure_frontiers(const Options& options, const Engine& engine, Session& session,
                               std::span<const Token> prompt, const FrontierCalls& calls);

}  // namespace ds4::bench
