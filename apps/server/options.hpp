// What the user asked for on the command line of `ds4-server`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/program_options.hpp"
#include "ds4/error.hpp"
#include "server/generation.hpp"
#include "store/save_policy.hpp"

namespace ds4::server {

struct Options : cli::ProgramOptions {
  uint64_t context_tokens = 32768;
  size_t max_tokens = 393216;
  std::string folder;  // to change to before anything else
  bool memory = false;

  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string api_key, api_key_path;
  bool allow_unauthenticated = false;
  std::vector<std::string> allowed_hosts;
  std::string cors_origin;
  std::string tls_certificate_path, tls_key_path;

  EffortProfile effort_profile = EffortProfile::preview;

  size_t sessions = 8;
  uint64_t session_memory_mib = 0;  // 0: no limit
  size_t queue = 256;
  bool exact_replay = true;
  bool keep_volatile_text = false;
  size_t tool_memory_ids = 100000;
  size_t tool_reminder_tokens = 32768;
  bool hold_to_promises = true;
  unsigned drain_seconds = 60;

  std::string kv_folder;  // conversations on disk; empty: none are kept there
  uint64_t kv_space_mib = 4096;
  store::SavePolicy kv_policy;

  std::string trace_path;
  std::string log_level = "info";
  bool log_json = false;
};

/// Reads the arguments after the program name. An error is one sentence for the user.
Result<Options> parse_options(std::span<const char* const> arguments);
std::string help_page(bool color);
/// The few lines that go with a usage error.
std::string short_help();

}  // namespace ds4::server
