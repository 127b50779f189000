// Conversations of this program in files: --session, /save and /load.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "ds4/error.hpp"
#include "options.hpp"

namespace ds4::cli {

/// What was said after the preamble, closed by EOS, and the state after it.
struct SavedConversation {
  std::vector<Token> turns;
  std::optional<Session> session;  // none if the tokens have to be evaluated again
};

/// Reads a conversation; says on standard error how long it is, and why its state is lost if it is.
Result<SavedConversation> load_conversation(const std::string& path, const Engine& engine,
                                            const Options& options);
/// The same; empty if there is no such file yet.
Result<SavedConversation> load_if_there(const std::string& path, const Engine& engine,
                                        const Options& options);

/// What a state depends on beside the model: how it was steered.
std::string state_numerics(const Engine& engine, const Options& options);

/// Evaluates what the session lacks of `preamble` and `turns`, and writes them with the state, which depends
/// on `numerics`.
Result<void> save_conversation(const std::string& path, const Engine& engine, Session& session,
                               const std::vector<Token>& preamble, const std::vector<Token>& turns,
                               const std::string& numerics);

}  // namespace ds4::cli
