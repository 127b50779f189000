// From an official checkpoint folder to GGUF files, tensor by tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "ds4/error.hpp"
#include "recipe.hpp"

namespace ds4::quantize {

struct ConvertOptions {
  std::string checkpoint;  // folder with config.json, tokenizer.json and *.safetensors
  Recipe recipe = Recipe::q8;
  std::string output;      // the main model
  std::string mtp_output;  // the MTP block; empty = leave it out
  std::string name;        // general.name; empty = that of the variant
  bool overwrite = false;
  /// Called before each tensor: its number from 1, the number of tensors, its name and its new type.
  std::function<void(size_t, size_t, std::string_view, std::string_view)> progress;
  /// Polled before each source tensor; true ends the conversion with ErrorCode::cancelled and removes what
  /// was written.
  std::function<bool()> cancelled;
};

struct ConvertSummary {
  std::string variant;        // "Flash", "Nano", ...
  size_t tensors = 0;         // of the main model
  size_t mtp_tensors = 0;     // 0 if the MTP block was not asked for
  bool mtp_left_out = false;  // the checkpoint has an MTP block that was not asked for
};

/// Checks the whole checkpoint first, then writes. Neither file appears unless both are complete. Memory is
/// bounded by a few rows of a tensor, apart from the tokenizer; the checkpoint is mapped.
Result<ConvertSummary> convert_checkpoint(const ConvertOptions& options);

}  // namespace ds4::quantize
