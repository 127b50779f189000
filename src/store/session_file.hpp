// One conversation in one file: its tokens and the state after them (docs/formats.md §13).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "ds4/error.hpp"
#include "ds4/session.hpp"
#include "ds4/token.hpp"

namespace ds4::store {

/// Writes a session's tokens and state to `path`, as a whole or not at all; a new file can be read by its
/// owner only. `preamble_tokens`: how many of them stand before the first message. `numerics` names what the
/// state depends on beside Engine::fingerprint(): the scales of steering. Errors: invalid_argument for an
/// empty session; io; out_of_memory.
Result<void> save_session(const std::string& path, const Engine& engine, const Session& session,
                          size_t preamble_tokens, const std::string& numerics = {});

/// What a file holds.
struct SavedSession {
  std::vector<Token> tokens;
  size_t preamble_tokens = 0;
  std::optional<Session> session;  // stands after `tokens`
  std::string lost;                // without a session: why the tokens have to be evaluated again
};

/// Reads it back for an engine and a context of `context` tokens. If only the state is damaged, or was made
/// otherwise (steering, drafter, numerics), the tokens are returned alone. Errors: format if the file is no
/// such file or its tokens are damaged; invalid_argument if it is another vocabulary's; context_full; io;
/// out_of_memory.
Result<SavedSession> load_session(const std::string& path, const Engine& engine, uint64_t context,
                                  const std::string& numerics = {});

}  // namespace ds4::store
