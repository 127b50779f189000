// What a run writes: rows of CSV, and the whole as JSON (docs/bench.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "machine.hpp"
#include "measure.hpp"
#include "options.hpp"

namespace ds4::bench {

/// Everything that is known about a run besides its rows.
struct RunFacts {
  Machine machine;
  Build build;
  ModelInfo model;
  std::string model_path;
  unsigned expert_bits = 0;
  std::optional<double> read_bandwidth;  // bytes per second, where it was measured
};

/// Four sentences: machine, backend, build, model.
std::vector<std::string> header_sentences(const RunFacts& facts);

/// With line ends. The first six columns are those of the original; --bandwidth adds two, --kv-disk-dir six.
std::string csv_header(const Options& options);
std::string csv_row(const Options& options, const RunFacts& facts, const FrontierRow& row);

/// "2048: prefill 410.62 t/s, generation 23.22 t/s, 9.58 GB per token = 222.4 GB/s (51.7 % of 430.0)"
std::string row_sentence(const RunFacts& facts, const FrontierRow& row);

/// `complete`: the run reached its last frontier.
std::string json_report(const Options& options, const RunFacts& facts, const std::vector<FrontierRow>& rows,
                        bool complete);

/// The logits at a frontier as JSON.
std::string logits_json(const Options& options, const RunFacts& facts, const FrontierRow& row,
                        std::span<const float> logits);

/// Percentage of the measured rate that decoding reads with; 0 where there is none.
double bandwidth_percent(const RunFacts& facts, const FrontierRow& row);

}  // namespace ds4::bench
