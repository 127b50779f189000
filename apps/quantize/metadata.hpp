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
#include "recipe.hpp"

namespace ds4::quantize {

void add_general_metadata(std::string_view architecture, std::string_view name, format::GgufWriter& writer);
void add_shape_metadata(const model::ModelShape& shape, format::GgufWriter& writer);
void add_tokenizer_metadata(const CheckpointConfig& config, const CheckpointTokenizer& tokenizer,
                            format::GgufWriter& writer);

/// Everything but what says how `file` was made; `name` (if not empty) in place of general.name. Keys of the
/// shape that the file leaves out are added.
void copy_metadata(const format::GgufFile& file, const model::ModelShape& shape, std::string_view name,
                   format::GgufWriter& writer);

/// What a file was made with: the recipe, unless it is plain, and the importance file at `path`, if any.
void add_quantize_metadata(const Recipe& recipe, const format::Imatrix* imatrix, const std::string& path,
                           format::GgufWriter& writer);

}  // namespace ds4::quantize
