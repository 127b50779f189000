// Routed experts of some layers of one GGUF file put into another file of the same model (docs/quantize.md
// §5).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ds4/error.hpp"

namespace ds4::quantize {

struct SpliceOptions {
  std::string base;    // keys, and all tensors but the experts of `layers`
  std::string donor;   // the experts of `layers`
  std::string output;  // may be empty for a dry run
  std::string layers;  // "37-42", "0-2,40-42"
  bool overwrite = false;
  bool dry_run = false;
  bool checksums = false;
  std::function<void(uint64_t, uint64_t)> progress;  // bytes done, bytes in all
  std::function<bool()> cancelled;                   // polled while copying
};

struct SpliceSummary {
  size_t tensors = 0;                                   // in the result
  size_t donated = 0;                                   // of them from the donor
  uint64_t base_bytes = 0;                              // of the base's tensors
  uint64_t tensor_bytes = 0;                            // of the result's tensors
  uint64_t file_bytes = 0;                              // of the result
  std::vector<std::pair<std::string, size_t>> changes;  // "IQ2_XXS -> Q4_K" and how many tensors
  std::string layers;                                   // as they were understood: "37-42"
  /// The files say that they were made from different sources. No error where all that is not rounded is the
  /// same in both: a checkpoint and a BF16 file made from it are such sources.
  bool different_sources = false;
};

/// Checks that both files hold one model: counts, tokenizer, and every norm, bias and router table that both
/// have in one format, byte for byte. The file appears only when it is complete.
Result<SpliceSummary> splice_models(const SpliceOptions& options);

/// "0-2,40-42" -> 0, 1, 2, 40, 41, 42. An error for what is no such list, and for numbers from `layers` on.
Result<std::vector<uint32_t>> parse_layers(std::string_view text, uint32_t layers);
/// The shortest such list of sorted numbers.
std::string layers_text(const std::vector<uint32_t>& layers);

}  // namespace ds4::quantize
