// --imatrix-dataset: collects what the routed experts are multiplied with while prompts are evaluated
// (docs/importance.md §1).
#pragma once

#include <string>

#include "ds4/engine.hpp"
#include "ds4/error.hpp"
#include "format/imatrix.hpp"
#include "options.hpp"

namespace ds4::cli {

/// Mean squares under the names of the experts' matrices; ones for an expert that no token was routed to.
/// Where an expert has fewer than `min_samples` tokens, each missing one counts as the average token of its
/// layer. not_finite if a sum is not a number.
Result<format::Imatrix> importance_from(const ExpertInputSums& sums, uint64_t min_samples);

/// Evaluates the prompts of a calibration file, of which `dataset` is the content, and writes the importance
/// file. The line to print. ErrorCode::cancelled after Ctrl+C; then, and after errors, nothing is written.
Result<std::string> collect_importance(const Options& options, const std::string& dataset,
                                       const Engine& engine);

}  // namespace ds4::cli
