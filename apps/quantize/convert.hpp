// From an official checkpoint folder, or from another GGUF file, to GGUF files, tensor by tensor.
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

/// What is about to be encoded.
struct ConvertProgress {
  size_t tensor = 0;   // from 1
  size_t tensors = 0;  // in both files
  std::string_view name, type;
  double done = 0;  // part of the work before it, 0 to 1
};

struct ConvertOptions {
  std::string checkpoint;  // folder with config.json, tokenizer.json and *.safetensors; or empty
  std::string gguf;        // file to read instead
  Recipe recipe;
  std::string recipe_file;  // that the recipe was read from, which must not be replaced; may be empty
  std::string output;       // the main model; may be empty if only the MTP block is wanted
  std::string mtp_output;   // the MTP block; empty = left out, or left in the model of a GGUF file
  std::string name;         // general.name; empty = that of the variant or of the file
  std::string imatrix;      // importance file; empty = none
  bool imatrix_strict = false;
  bool embed_imatrix = false;  // also put its vectors into the model's file
  bool overwrite = false;
  bool dry_run = false;    // checks everything and writes nothing; `output` may be empty
  bool resume = false;     // continue what a run that was ended left, and leave it if this one is ended
  bool checksums = false;  // also write NAME.sha256 for each file
  unsigned threads = 0;    // 0 = one for each processor
  /// Called before anything is written, with a sentence on importance that is not there or not used; in a dry
  /// run also with why the files could not be written.
  std::function<void(const std::string&)> notice;
  /// Called before each matrix.
  std::function<void(const ConvertProgress&)> progress;
  /// Polled while encoding; true ends the conversion with ErrorCode::cancelled and removes what was written.
  std::function<bool()> cancelled;
};

struct ConvertSummary {
  std::string variant;         // "Flash", "Nano", ...; empty if the source is a drafter's file
  size_t tensors = 0;          // of the main model, 0 if it was not asked for
  size_t resumed_tensors = 0;  // of both files, that an earlier run had written
  size_t mtp_tensors = 0;      // of a file with the MTP block only, 0 if there is none
  bool mtp_left_out = false;   // the checkpoint has an MTP block that was not asked for
  uint64_t file_bytes = 0;     // of the main model's file, also before it is written
  uint64_t mtp_file_bytes = 0;
  std::string plan;  // of a dry run
};

/// Checks the whole source first, then writes. Neither file appears unless both are complete. Memory is
/// bounded by the tokenizer, a few megabytes of encoded rows and a row for each thread; the source is mapped,
/// and its pages are let go as rows are done.
Result<ConvertSummary> convert_model(const ConvertOptions& options);

}  // namespace ds4::quantize
