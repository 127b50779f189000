// Makes the tokenizer that a model file carries.
#pragma once

#include <string>

#include "ds4/error.hpp"
#include "ds4/tokenizer.hpp"
#include "format/gguf.hpp"

namespace ds4 {

/// Reads tokenizer.ggml.tokens and tokenizer.ggml.merges; errors name the key. If tokenizer.ggml.pre names
/// other rules for cutting text than this library's, `*notice` gets one sentence that says so, else it is
/// left alone.
Result<Tokenizer> load_tokenizer(const format::GgufFile& file, std::string* notice = nullptr);

}  // namespace ds4
