// Scores as a table, as JSON, as a chart, and as keys of the model's file.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "score.hpp"

namespace ds4::quantize {

/// What models are compared with.
struct Compared {
  std::string model;        // general.name of the reference's model
  std::string fingerprint;  // of the reference file; empty without one
};

/// A line for each model; for a single one also a line for each item.
std::string score_table(const std::vector<ModelScore>& models);
std::string score_json(const std::vector<ModelScore>& models, const Compared& compared);
std::string score_chart(const std::vector<ModelScore>& models);

/// An error if stamp_score() would refuse the model's file: split files, and what another run left beside it.
Result<void> check_stampable(const std::string& path);

/// Writes the file anew with the score in its keys (`quantize.score.*`, in place of an earlier one), and puts
/// it in the place of the old one when it is complete: a file that is cut short never has the model's name.
/// Needs room for a second copy. Errors: split files.
Result<void> stamp_score(const ModelScore& score, const Compared& compared,
                         const std::function<bool()>& cancelled);

}  // namespace ds4::quantize
