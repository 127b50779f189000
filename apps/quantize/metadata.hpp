// The keys that a GGUF file of this model has, from a checkpoint or from another GGUF file.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "checkpoint_config.hpp"
#include "checkpoint_tokenizer.hpp"
#include "format/gguf.hpp"
#include "format/gguf_writer.hpp"
#include "format/imatrix.hpp"
#include "model/shape.hpp"

namespace ds4::quantize {

void add_general_metadata(std::string_view architecture, std::string_view name, format::GgufWriter& writer);
void add_shape_metadata(const model::ModelShape& shape, format::GgufWriter& writer);
void add_tokenizer_metadata(const CheckpointConfig& config, const CheckpointTokenizer& tokenizer,
                            format::GgufWriter& writer);

/// Everything but what says how `file` was made; `name` (if not empty) in place of general.name. Keys of
/// `shape` (null for a drafter, which has none) that the file leaves out are added.
void copy_metadata(const format::GgufFile& file, const model::ModelShape* shape, std::string_view name,
                   format::GgufWriter& writer);

/// What a file is made with.
struct Origin {
  std::string recipe;                        // empty: not said
  std::string source_fingerprint;            // empty: not said
  const format::Imatrix* imatrix = nullptr;  // of `imatrix_file`
  std::string imatrix_file;  // its name without folders, so that --resume knows it from anywhere
};
void add_quantize_metadata(const Origin& origin, format::GgufWriter& writer);

}  // namespace ds4::quantize
