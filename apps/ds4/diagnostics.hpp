// Dumps that replace generation (docs/cli.md, "Diagnostic files").
#pragma once

#include <span>
#include <string>

#include "ds4/engine.hpp"
#include "ds4/error.hpp"
#include "options.hpp"

namespace ds4::cli {

/// --inspect: a description of the file's metadata and tensors. Needs no loadable model.
Result<std::string> describe_model(const std::string& path);
/// --dump-tokens: the ids, then one line per token. Reads only the vocabulary of the file.
Result<std::string> dump_tokens(const std::string& model_path, const std::string& text);

/// --dump-logits and --dump-logprobs. ErrorCode::cancelled after Ctrl+C.
Result<void> dump_logits(const Options& options, const std::string& model_path, const Engine& engine,
                         Session& session, std::span<const Token> prompt);
Result<void> dump_logprobs(const Options& options, const Engine& engine, Session& session,
                           std::span<const Token> prompt);

/// --perplexity-file, of which `text` is the content: the result line. ErrorCode::cancelled after Ctrl+C.
Result<std::string> measure_perplexity(const Options& options, const std::string& text, const Engine& engine,
                                       Session& session);

}  // namespace ds4::cli
