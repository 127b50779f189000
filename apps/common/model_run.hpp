// Opening a model and evaluating a prompt, with progress on the terminal.
#pragma once

#include <span>
#include <string>

#include "common/program_options.hpp"
#include "ds4/engine.hpp"
#include "ds4/error.hpp"

namespace ds4::cli {

/// Opens the model at `path` as the options ask, with a progress line and notices on standard error.
Result<Engine> open_engine(const ProgramOptions& options, const std::string& path);

/// --memory: what open_engine() and sessions of `context_tokens` would take, as a table.
Result<std::string> describe_memory(const ProgramOptions& options, const std::string& path,
                                    uint64_t context_tokens);

/// Drafts and steering of a new session, as the options ask.
void prepare_session(Session& session, const Engine& engine, const ProgramOptions& options);
SpeculationOptions speculation_options(const ProgramOptions& options);

/// "steering by x.f32: feed-forward 1, attention 0"
std::string steering_sentence(const Engine& engine, const ProgramOptions& options);

/// One sentence about memory: "Flash on cpu (2 threads), context 32768 tokens (110.00 MiB when full), ...".
std::string context_sentence(const Engine& engine, uint64_t context_tokens);

/// Brings the session to `prompt` with a progress line. Ctrl+C ends it with ErrorCode::cancelled.
Result<SyncStats> sync_with_progress(Session& session, std::span<const Token> prompt);

/// EOS, or the beginning of something that is not the model's to write: a user's message or a new text.
bool ends_reply(const SpecialTokens& special, Token token);

/// "drafts accepted by place: 140/143, 73/79; 2.49 tokens per step, 1.80 times the speed of single tokens"
std::string drafts_text(const SpeculationStats& stats);

/// Whole bits per weight of the routed experts: 2 and 4 for the published files; 0 without experts.
Result<unsigned> expert_bits(const std::string& model_path);

/// The device of a backend's name, without the details in parentheses: "cpu".
std::string device_name(const Engine& engine);

}  // namespace ds4::cli
