// What one model made of some texts, kept for comparing others with it (docs/formats.md §15).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.hpp"
#include "common/atomic_file.hpp"
#include "ds4/error.hpp"
#include "ds4/token.hpp"
#include "fingerprint.hpp"
#include "score_items.hpp"

namespace ds4::quantize {

struct ReferenceHeader {
  std::string vocabulary_fingerprint;  // 32 digits
  uint32_t vocabulary = 0;
  uint32_t kept = 0;  // log-probabilities kept for a position, 1 to `vocabulary`
  std::string model;  // general.name
};

/// The distribution of the token at one position.
struct ReferencePosition {
  float target_logprob = 0;     // of the token that is there
  float rest_logprob = 0;       // of all that is not kept, together; meaningless if all are kept
  std::vector<Token> ids;       // of what is kept, likeliest first; empty if all are kept
  std::vector<float> logprobs;  // by `ids`, or by token id
  Token likeliest = -1;
};

/// Writes a reference file. Everything is there or nothing: commit() gives it its name.
class ReferenceWriter {
 public:
  static Result<ReferenceWriter> create(const std::string& path, const ReferenceHeader& header);

  /// The next item, of which item.scored() positions follow. `items` of them are to come in all.
  Result<void> begin_item(const ScoreItem& item);
  /// `target` is the token that follows; log-probabilities are those of `logits`.
  Result<void> add_position(std::span<const float> logits, Token target);
  Result<void> commit();

 private:
  ReferenceWriter(cli::AtomicFile file, const ReferenceHeader& header);
  Result<void> put(const std::string& bytes);

  cli::AtomicFile file_;
  ContentHash hash_;
  uint32_t vocabulary_, kept_;
  std::vector<Token> order_;
};

/// Reads one. Counts and lengths are checked against the bytes that are there, and the hash at the end.
class ReferenceFile {
 public:
  static Result<ReferenceFile> open(const std::string& path);

  const ReferenceHeader& header() const { return header_; }
  const std::vector<ScoreItem>& items() const { return items_; }
  /// The hash at its end, 32 digits.
  const std::string& fingerprint() const { return fingerprint_; }
  /// The distribution of token item.begin + `index`. An error if it holds what no distribution has.
  Result<void> read(size_t item, size_t index, ReferencePosition& position) const;

 private:
  explicit ReferenceFile(MappedFile file) : file_(std::move(file)) {}
  size_t position_bytes() const;

  MappedFile file_;
  ReferenceHeader header_;
  std::vector<ScoreItem> items_;
  std::vector<size_t> offsets_;  // of the first position of each item
  std::string fingerprint_;
};

/// Log-probabilities of logits, summed in double precision.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits);
  double operator()(float logit) const { return double{logit} - log_sum_; }

 private:
  double log_sum_ = 0;
};

}  // namespace ds4::quantize
